#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats all C++ of the tree in place (.clang-format), or only the files named.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$#" -gt 0 ]; then
  for file in "$@"; do
    case "$file" in
      *.h | *.cc | *.cu | *.c | *.cpp) ;;
      *) echo "$0: $file is not C or C++: nothing was formatted" >&2; exit 2 ;;
    esac
  done
  clang-format -i "$@"
else
  find . -path ./build -prune -o -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cpp' \) -print |
    xargs -r -n 16 -P "$(nproc)" clang-format -i
fi
