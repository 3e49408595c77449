#!/usr/bin/env bash
# Installs the Debian 12 packages Larder needs, and only those that are missing.
#
# Quick (no network) when everything is there. Needs root, or sudo. The package list lives here and nowhere else.
#   tools/install_deps.sh            what a build and its tests need
#   tools/install_deps.sh --full     in addition what the full check (clang; Python and SGLang; llama.cpp) and
#                                    `larder bench storage` (fio) need
#   tools/install_deps.sh --fuzz     in addition what tools/fuzz.sh needs: clang, libFuzzer and the sanitizers for it
#   tools/install_deps.sh --tidy     in addition what tools/tidy.py needs
#   tools/install_deps.sh --list     prints the names instead
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache python3 curl
  libssl-dev libxxhash-dev libfmt-dev libgtest-dev
  nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libyaml-cpp-dev libboost1.81-dev liburing-dev
  librocksdb-dev
  libhiredis-dev redis-server  # redis-server: tests start their own
  clang-format universal-ctags
  pkg-config  # tests/package uses what is installed through it
)
full_packages=(clang-16 fio python3-venv python3-dev python3-pip binutils)
fuzz_packages=(clang-16 libclang-rt-16-dev)
tidy_packages=(clang-16 clang-tidy-16)

main() {
  local packages=("${build_packages[@]}")
  case "${1:-}" in
    --full) packages+=("${full_packages[@]}") ;;
    --fuzz) packages+=("${fuzz_packages[@]}") ;;
    --tidy) packages+=("${tidy_packages[@]}") ;;
    --list)
      printf '%s\n' "${build_packages[@]}" "${full_packages[@]}" "${fuzz_packages[@]}" "${tidy_packages[@]}" | sort -u
      return 0
      ;;
    "") ;;
    *) echo "usage: $0 [--full|--fuzz|--tidy|--list]" >&2; return 2 ;;
  esac

  local missing=() package
  for package in "${packages[@]}"; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
  done
  if [ "${#missing[@]}" -eq 0 ]; then return 0; fi

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null; then
      as_root=(sudo)
    else
      echo "error: these packages are missing: ${missing[*]}" >&2
      echo "       run as root:  apt-get install ${missing[*]}   (neither root nor sudo here)" >&2
      return 1
    fi
  fi
  echo "installing: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >/dev/null
}

main "$@"
