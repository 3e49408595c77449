#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests under ThreadSanitizer, without suppressions (docs/testing.md).
#
#   tools/tsan.sh [NAME...]      executables, as larder_tests_cache; none: all, the slow ones included (an hour)
#
# Builds preset `tsan`, runs one executable after the other and prints a line for each; logs are in build/tsan/log. Ends
# with 1 if one of them fails, or if ThreadSanitizer has said anything, in child processes too.
set -euo pipefail
cd "$(dirname "$0")/.."

# Libraries of the system (RocksDB first of all) are not built with ThreadSanitizer: it cannot see what orders their
# own accesses, so what they do among themselves is left out. That is no suppression: our code is watched all the same.
export TSAN_OPTIONS="exitcode=66 ignore_noninstrumented_modules=1"
readonly limit_seconds=5400  # the slow suites take 20 to 50 minutes, as busy as the machine is

run_one() {
  local name="$1" log="build/tsan/log/$1.txt" begin=$SECONDS result=ok said
  (cd build/tsan && timeout "$limit_seconds" "./$name" --gtest_brief=1) >"$log" 2>&1 || result="FAILED: $log"
  said="$(grep -c 'WARNING: ThreadSanitizer' "$log" || true)"
  if [ "$said" != 0 ]; then result="FAILED: $log"; fi
  printf '%-34s %6d s %6d warnings  %s\n' "$name" "$((SECONDS - begin))" "$said" "$result"
  [ "$result" = ok ]
}

main() {
  tools/install_deps.sh
  cmake --preset tsan >/dev/null
  cmake --build --preset tsan -- --quiet
  mkdir -p build/tsan/log
  local names=("$@") path failed=0 name
  if [ "${#names[@]}" -eq 0 ]; then
    for path in build/tsan/larder_*test*; do
      if [ -f "$path" ] && [ -x "$path" ] && [ "${path##*/}" != larder_test_headers ]; then names+=("${path##*/}"); fi
    done
  fi
  for name in "${names[@]}"; do run_one "$name" || failed=1; done
  return "$failed"
}

main "$@"
