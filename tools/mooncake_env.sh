#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python environment with Mooncake Store for the tests of backend mooncake: tools/mooncake_env.sh [DIR]
# (build/mooncake)
#
# DIR becomes a virtual environment with the pinned package mooncake-transfer-engine-non-cuda of PyPI (46 MB, checked by
# its hash): bin/python has the client library, bin/mooncake_master starts a master. Nothing of it is committed.
# A second run with the same inputs returns at once.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly package=mooncake-transfer-engine-non-cuda version=0.3.13.post1
readonly sha256=ca9f668a04ffe648b250fda28b97d0a7da149cb110dec5cf3d166a9e68afc940

progress() { printf 'mooncake_env: %s (%ds)\n' "$*" "$SECONDS"; }

fail() {
  printf 'mooncake_env: %s\n' "$*" >&2
  exit 1
}

# Prints a hash of everything the environment is made from.
fingerprint() { sha256sum <"${BASH_SOURCE[0]}" | cut -d ' ' -f 1; }

check_machine() {
  local library
  [[ "$(uname -m)" == x86_64 ]] || fail "the pinned package is for x86_64, this machine is $(uname -m)"
  python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "the pinned package is for Python 3.11, this is $(python3 --version)"
  python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 -m venv does not work: install python3-venv"
  for library in libibverbs.so.1 libnuma.so.1 libcurl.so.4; do
    ldconfig -p | grep -q "$library" || fail "$library is missing: install libibverbs1, libnuma1 and libcurl4"
  done
}

make_venv() {
  local dir="$1"
  if [[ -e "$dir" && ! -e "$dir/pyvenv.cfg" ]] && [[ -n "$(ls -A "$dir")" ]]; then
    fail "$dir has other files in it"
  fi
  python3 -m venv --clear "$dir"
}

# The master lies in the package; its libraries, beside it.
link_programs() {
  local dir="$1" site program
  site="$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  for program in mooncake_master mooncake_client; do
    [[ -e "$site/mooncake/$program" ]] || fail "the package has no $program"
    chmod +x "$site/mooncake/$program"
    ln -sf "$site/mooncake/$program" "$dir/bin/$program"
  done
}

main() {
  local dir="${1:-$root/build/mooncake}" wanted
  wanted="$(fingerprint)"
  if [[ -e "$dir/made_from" && "$(cat "$dir/made_from")" == "$wanted" ]]; then
    return 0
  fi
  check_machine
  mkdir -p "$dir"
  dir="$(cd "$dir" && pwd)"
  rm -f "$dir/made_from"
  progress "virtual environment in $dir"
  make_venv "$dir"
  progress "package $package $version"
  printf '%s==%s --hash=sha256:%s\n' "$package" "$version" "$sha256" >"$dir/requirements.txt"
  "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    -r "$dir/requirements.txt" ||
    fail "PyPI did not give $package $version with the pinned hash: is there a network, or a mirror in pip's settings?"
  link_programs "$dir"
  "$dir/bin/python" -c 'from mooncake import store; store.MooncakeDistributedStore' ||
    fail "the client library does not load"
  printf '%s\n' "$wanted" >"$dir/made_from"
  progress "done"
}

main "$@"
