#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is too long for every commit: each check of docs/testing.md at length, one after the other, on this tree.
#
#   tools/nightly.sh [--hours N]     five and a half hours on two cores, and N of fuzzing more (0: a minute for each)
#
# Prints a line for each as it ends, and keeps what each has said in build/nightly/. Goes on after a failure; ends with
# 1 if there was one.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly out=build/nightly
failed=0

# check NAME COMMAND...
check() {
  local name="$1" begin="$SECONDS" result=ok
  shift
  "$@" >"$out/$name.log" 2>&1 || { result="FAILED: $out/$name.log"; failed=1; }
  printf '%-14s %6d s  %s\n' "$name" "$((SECONDS - begin))" "$result"
}

# test.sh runs a part of these with each commit.
slow_tests() {
  cmake --preset release >/dev/null && cmake --build --preset release -- --quiet
  LARDER_PROPERTY_OPERATIONS=40000 LARDER_HOST_SIZE_SEEDS=8 \
    ctest --test-dir build/release --output-on-failure --no-tests=error -L slow -j "$(($(nproc) + 1))"
}

# All of them; test.sh takes a part.
sglang_servers() {
  PYTHONPATH="$PWD/build/python" build/sglang/bin/python -m pytest tests/sglang_server
}

main() {
  local hours=0
  case "${1:-}" in
    --hours) [[ "${2:-}" =~ ^[0-9]+$ ]] || { echo "usage: $0 [--hours N]" >&2; return 2; }; hours="$2" ;;
    "") ;;
    *) echo "usage: $0 [--hours N]" >&2; return 2 ;;
  esac
  local targets=(fuzz/*_fuzz.cc)
  local seconds=$((hours * 3600 / ${#targets[@]}))
  mkdir -p "$out"
  check test ./test.sh
  check slow slow_tests
  check servers sglang_servers
  check sanitizers ./test.sh --sanitizers
  check mixtures tests/replay/mixtures.py build/release/larder --first "$(date +%Y%j)" --seeds 300
  check simulation build/release/larder sim --seeds 10000 --events 1000 --probes --write-failure "$out/failure.txt"
  check every_fault build/release/larder sim --every-fault --seeds 100 --events 120 \
    --write-failure "$out/fault.txt"
  check every_event build/release/larder sim --seeds 500 --events 1000 --check-every 1 \
    --write-failure "$out/event.txt"
  check defects tools/defects.py
  check thread_safety tools/thread_safety.py --alone
  check tsan tools/tsan.sh
  check tidy tools/tidy.py
  check fuzz tools/fuzz.sh --keep --seconds "$((seconds > 60 ? seconds : 60))"
  check soak tools/soak.py --minutes 30 --seed "$(date +%j)"
  return "$failed"
}

main "$@"
