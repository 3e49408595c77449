#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the CUDA compiler for -DLARDER_CUDA=ON: tools/cuda_env.sh [DIR]  (build/cuda)
#
# The wheels of NVIDIA on PyPI (105 MB, pinned, checked by their hashes) hold nvcc, ptxas and the headers. No GPU and no
# driver is needed to build; nothing of them is committed, installed or linked. DIR becomes bin/, include/, nvvm/, lib/.
# A second run with the same pins returns at once.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root

fail() {
  printf 'cuda_env: %s\n' "$*" >&2
  exit 1
}

case "${1:-}" in
  -h | --help)
    sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  -*) fail "unknown option $1 (see --help)" ;;
esac
readonly dir="${1:-$root/build/cuda}"
[[ "$(uname -m)" == x86_64 ]] ||
  fail "the pinned wheels are for x86-64; use an installed toolkit: -DLARDER_CUDA_ROOT=DIR"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 -m pip does not work: install python3-pip"

pins() {
  cat <<'PINS'
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
PINS
}

fingerprint="$(pins | sha256sum | cut -d ' ' -f 1)"
readonly fingerprint
if [[ -f "$dir/.made-from" && "$(cat "$dir/.made-from")" == "$fingerprint" ]]; then
  printf 'cuda_env: %s is up to date\n' "$dir"
  exit 0
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
pins >"$work/pins.txt"
printf 'cuda_env: fetching nvcc and its headers (105 MB)\n'
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --require-hashes \
  --only-binary=:all: --no-compile --target "$work/site" -r "$work/pins.txt" ||
  fail "pip could not fetch the pinned wheels: is PyPI, or its mirror, within reach?"
rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
mv "$work/site/nvidia/cu13" "$dir"
"$dir/bin/nvcc" --version >/dev/null || fail "$dir/bin/nvcc does not run on this machine"
printf '%s\n' "$fingerprint" >"$dir/.made-from"
printf 'cuda_env: done: cmake -DLARDER_CUDA=ON finds %s\n' "$dir"
