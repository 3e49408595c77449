#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python environment for the tests against the real SGLang: tools/sglang_env.sh [DIR]  (build/sglang)
#
# DIR becomes a virtual environment with exactly what tests/sglang/requirements.txt pins (660 MB of downloads, no
# dependencies), with empty CUDA libraries and an empty triton, so that SGLang runs on a CPU.
# A second run with the same inputs returns at once. Run the tests with DIR/bin/python -m pytest tests/sglang.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly source_dir="$root/tests/sglang"

progress() { printf 'sglang_env: %s (%ds)\n' "$*" "$SECONDS"; }

fail() {
  printf 'sglang_env: %s\n' "$*" >&2
  exit 1
}

# Prints a hash of everything the environment is made from.
fingerprint() {
  cat "$source_dir/requirements.txt" "$source_dir/make_cuda_stubs.py" "$source_dir/stubs/triton/__init__.py" \
    "${BASH_SOURCE[0]}" | sha256sum | cut -d ' ' -f 1
}

check_machine() {
  local tool
  for tool in python3 gcc g++ readelf; do
    command -v "$tool" >/dev/null || fail "$tool is missing: install python3, g++ and binutils"
  done
  [[ "$(uname -m)" == x86_64 ]] || fail "the pinned packages are for x86_64, this machine is $(uname -m)"
  python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "the pinned packages are for Python 3.11, this is $(python3 --version)"
  python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 -m venv does not work: install python3-venv"
  [[ -e /usr/include/openssl/sha.h ]] || fail "the headers of OpenSSL are missing: install libssl-dev"
}

make_venv() {
  local dir="$1"
  if [[ -e "$dir" && ! -e "$dir/pyvenv.cfg" ]] && [[ -n "$(ls -A "$dir")" ]]; then
    fail "$dir has other files in it"
  fi
  python3 -m venv --clear "$dir"
}

# Makes the cache of every model kind once. That compiles SGLang's page hashing and writes the bytecode of what the
# tests import (a tenth of what is installed), and shows that all of it works.
warm_up() {
  local dir="$1"
  env -u PYTHONDONTWRITEBYTECODE PATH="$dir/bin:$PATH" TORCH_EXTENSIONS_DIR="$dir/torch_extensions" \
    PYTHONPATH="$source_dir" "$dir/bin/python" -W ignore - <<'PYTHON'
import pytest
import torch
from sglang.srt.mem_cache.cpp_utils import native_hash

from rig import dict_store, pools, settings, world

world.quiet()
assert not torch.cuda.is_available()
native_hash._load_native_hash_module()
for kind in pools.KINDS:
    with world.World(settings.dynamic("rig.dict_store", "DictStorage"), kind=kind):
        pass
PYTHON
}

main() {
  local dir="${1:-$root/build/sglang}" wanted
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
  progress "packages"
  "$dir/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps --only-binary :all: \
    --require-hashes -r "$source_dir/requirements.txt"
  progress "CUDA stand-ins"
  local site
  site="$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  "$dir/bin/python" "$source_dir/make_cuda_stubs.py" "$site"
  cp -r "$source_dir/stubs/triton" "$site/"
  progress "first use"
  warm_up "$dir"
  printf '%s\n' "$wanted" >"$dir/made_from"
  progress "done"
}

main "$@"
