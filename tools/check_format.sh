#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails, naming each place, if a C++ file is not formatted as .clang-format says. tools/format.sh mends it.
set -uo pipefail
cd "$(dirname "$0")/.."

problems="$(find . -path ./build -prune -o -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cpp' \) \
    -print |
  xargs -r -n 16 -P "$(nproc)" clang-format --dry-run 2>&1 | grep -E '^[^ ].*: (warning|error):' | sort)"
if [ -n "$problems" ]; then
  echo "$problems"
  echo "format: $(echo "$problems" | wc -l) problem(s); tools/format.sh mends them"
  exit 1
fi
echo "format: ok"
