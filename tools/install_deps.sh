#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian 12 packages Larder needs, and only those that are missing.
#
# Quick (no network) when everything is there. Needs root, or sudo. docs/install.md says what each package is for;
# tools/check_packages.py compares the two lists.
#   tools/install_deps.sh            what a build with everything in it, and its quick tests need
#   tools/install_deps.sh --build    only what the `larder` command and liblarder.so are built with (./quickstart.sh)
#   tools/install_deps.sh --llama    the same, and what tools/llama_env.sh needs (./quickstart.sh --llama)
#   tools/install_deps.sh --package  what the Debian packages are made with
#   tools/install_deps.sh --full     in addition what the full check (clang; Python and SGLang; llama.cpp; packages) and
#                                    `larder bench storage` (fio) need
#   tools/install_deps.sh --fuzz     in addition what tools/fuzz.sh needs: clang, libFuzzer and the sanitizers for it
#   tools/install_deps.sh --tidy     in addition what tools/tidy.py needs
#   tools/install_deps.sh --list [GROUP]  prints the names instead
set -euo pipefail

# a|b|c: any of them will do; the first is installed where none is there. Boost's versions conflict with each other, so
# what somebody has installed stays.
build_packages=(
  g++ cmake ninja-build
  libssl-dev libxxhash-dev libfmt-dev nlohmann-json3-dev libsimdjson-dev
  libcli11-dev libtomlplusplus-dev libyaml-cpp-dev "libboost-dev|libboost1.74-dev|libboost1.81-dev"
  liburing-dev
)
index_packages=(librocksdb-dev libhiredis-dev)
events_packages=(libzmq3-dev cppzmq-dev)
plot_packages=(libcairo2-dev)
test_packages=(ccache python3 libgtest-dev redis-server clang-format universal-ctags pkg-config)
llama_packages=(python3-pip)
package_packages=(python3 dpkg-dev file)
full_packages=(clang-16 fio curl chromium chromium-driver
  python3-venv python3-dev python3-pip binutils dpkg-dev file systemd libibverbs1 libnuma1 libcurl4)
fuzz_packages=(clang-16 libclang-rt-16-dev)
tidy_packages=(clang-16 clang-tidy-16)
readonly groups=(build index events plot test llama package full fuzz tidy)

# Prints the names of groups, each once.
list_groups() {
  local group
  for group in "$@"; do
    local -n names="${group}_packages"
    printf '%s\n' "${names[@]}"
  done | sort -u
}

is_installed() {
  local name
  for name in ${1//|/ }; do
    if dpkg -s "$name" 2>/dev/null | grep -q '^Status: .* ok installed$'; then return 0; fi
  done
  return 1
}

install_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null; then
      as_root=(sudo)
    else
      echo "error: these packages are missing: $*" >&2
      echo "       run as root:  apt-get install $*   (neither root nor sudo here)" >&2
      return 1
    fi
  fi
  echo "installing: $*"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

main() {
  local wanted=(build index events plot test)
  case "${1:-}" in
    --build) wanted=(build) ;;
    --llama) wanted=(build llama) ;;
    --package) wanted=(build index events package) ;;
    --full | --fuzz | --tidy) wanted+=("${1#--}") ;;
    --list)
      if [ -n "${2:-}" ]; then list_groups "$2"; else list_groups "${groups[@]}"; fi
      return 0
      ;;
    "") ;;
    *) echo "usage: $0 [--build|--llama|--package|--full|--fuzz|--tidy|--list [GROUP]]" >&2; return 2 ;;
  esac

  local missing=() package
  for package in $(list_groups "${wanted[@]}"); do
    is_installed "$package" || missing+=("${package%%|*}")
  done
  if [ "${#missing[@]}" -gt 0 ]; then install_packages "${missing[@]}"; fi
}

main "$@"
