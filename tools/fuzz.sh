#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzz targets under libFuzzer with AddressSanitizer and UBSan, one after the other (docs/testing.md).
#
#   tools/fuzz.sh [--seconds N] [--keep] [TARGET...]     N seconds each (60); no TARGET: all of fuzz/*_fuzz.cc
#
# Installs clang's runtime if it is missing and builds preset `fuzz`. Each target starts from fuzz/corpus/TARGET. What
# it finds goes to build/fuzz/findings/TARGET, its log to build/fuzz/TARGET.log. New inputs are dropped; with --keep
# they stay in build/fuzz/corpus/TARGET, and later runs start from them as well: an hour may be made of many runs, and
# the column "cpu s" says how many seconds of a core such runs have had in all (on a busy machine less than N each).
# Prints a table; ends with 1 if any target has a finding.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=60
keep=0
targets=()

usage() {
  echo "usage: $0 [--seconds N] [--keep] [TARGET...]" >&2
  exit 2
}

read_arguments() {
  while [ "$#" -gt 0 ]; do
    case "$1" in
      --seconds) [[ "${2:-}" =~ ^[0-9]+$ ]] || usage; seconds="$2"; shift 2 ;;
      --keep) keep=1; shift ;;
      -*) usage ;;
      *)
        [ -f "fuzz/$1_fuzz.cc" ] || { echo "error: there is no fuzz/$1_fuzz.cc" >&2; exit 2; }
        targets+=("$1")
        shift
        ;;
    esac
  done
  local file
  if [ "${#targets[@]}" -eq 0 ]; then
    for file in fuzz/*_fuzz.cc; do file="${file##*/}"; targets+=("${file%_fuzz.cc}"); done
  fi
}

# run_target NAME: prints its line of the table; 1 if it has a finding.
run_target() {
  local name="$1" log="build/fuzz/$1.log" corpus="build/fuzz/corpus/$1" found="build/fuzz/findings/$1" result=ok
  local spent="$corpus.cpu"
  [ "$keep" = 1 ] || rm -rf "$corpus" "$spent"
  mkdir -p "$corpus" "$found"
  # A gigabyte, and a minute for one input, are findings too.
  TIMEFORMAT='%U %S'
  { time "build/fuzz/fuzz_$name" "$corpus" "fuzz/corpus/$name" -max_total_time="$seconds" -timeout=60 \
    -rss_limit_mb=1024 -max_len=16384 -print_final_stats=1 -artifact_prefix="$found/" >"$log" 2>&1; } 2>"$spent.run" ||
    result="FINDING: $log"
  local last runs rate total
  total="$(cat "$spent" "$spent.run" 2>/dev/null | awk '{ s += $1 + $2 } END { printf "%d", s }')"
  echo "$total" >"$spent"
  last="$(grep -E '^#[0-9]+.*cov: ' "$log" | tail -n 1 || true)"
  runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  rate="$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")"
  field() { sed -n "s/.* $1: \([0-9][^ ]*\).*/\1/p" <<<"$last"; }
  printf '%-16s %8s %10s %8s %7s %9s %14s  %s\n' \
    "$name" "$total" "${runs:-?}" "${rate:-?}" "$(field cov)" "$(field ft)" "$(field corp)" "$result"
  [ "$result" = ok ]
}

# For readable stacks: what clang calls it differs from package to package.
find_symbolizer() {
  local found
  for found in /usr/lib/llvm-*/bin/llvm-symbolizer; do
    if [ -x "$found" ]; then export ASAN_SYMBOLIZER_PATH="$found"; fi
  done
}

main() {
  read_arguments "$@"
  find_symbolizer
  tools/install_deps.sh --fuzz
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz --target "${targets[@]/#/fuzz_}" >build/fuzz/build.log 2>&1 ||
    { cat build/fuzz/build.log; return 1; }
  local failed=0 name
  printf '%-16s %8s %10s %8s %7s %9s %14s  %s\n' target 'cpu s' runs runs/s edges features corpus result
  for name in "${targets[@]}"; do run_target "$name" || failed=1; done
  return "$failed"
}

main "$@"
