#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must hold before a commit.
#   ./test.sh --fast   the rules of the tree, the release build, all tests but the slow ones, the longest of them with
#                      fewer rounds (LARDER_TEST_BRIEF)
#   ./test.sh          in addition CUDA's compiler (105 MB of downloads, once), the Python package inside the real
#                      SGLang (660 MB), the real llama.cpp and llama-server (77 MB), the slow tests (with the real
#                      Mooncake Store, 46 MB), the tests under AddressSanitizer + UBSan, and clang's thread-safety
#                      analysis with warnings as errors
#   ./test.sh --sanitizers  the tests under AddressSanitizer + UBSan alone, all of them (./test.sh: a quarter)
# Ends with 1 at the first stage that fails. ctest's output of each stage is kept in build/test_<stage>.log.
set -euo pipefail
cd "$(dirname "$0")"
. tools/build_parts.sh

jobs="$(nproc)"
# The last stage is left out, aloud, when it would begin later than this.
readonly clang_latest_start_seconds=2550

# Under sanitizers: what reads bytes from outside, owns memory, or runs on several threads. Not the command line, the
# benchmarks, and the tests that compute with models or compare with other systems. Each commit has one of four lines,
# by the libraries that they are linked with: most of the time goes into compiling these. After a "|" stand the tests
# that take the longest: every second one of them, and the other ones four commits later.
readonly asan_turns=(
  "base_test key_test model_test policy_test pool_test tests_shared transfer_test tree_test | storage_test"
  "controller_test door_test events_test config_test engine_test | tests_cache tests_connector"
  "metadata_test tests_cuda tests_metadata tests_mooncake | tests_attach tests_conformance tests_crash tests_disk"
  "server_test tests_metadata_http tests_server fuzz_replay |"
)

# Of the slow tests with many cases alike every fourth; of SGLang's servers that one test alone uses every second.
readonly slow_sampled=(tests_model tests_disk_slow tests_ranks_slow tests_cache_slow tests_attach_slow)

# What runs beside the stages, by name: process groups, which end with this script, however it ends.
declare -A running=()
end_running() {
  local group
  for group in "${running[@]}"; do kill -- "-$group" 2>/dev/null || true; done
}
trap end_running EXIT

# beside NAME COMMAND...: begins it in a group of its own; it prints to build/test_NAME.log.
beside() {
  local name="$1"
  shift
  set -m
  "$@" </dev/null >"build/test_$name.log" 2>&1 &
  set +m
  running["$name"]=$!
}

# finish NAME: waits for it; what it printed is shown if it failed.
finish() {
  local result=0
  wait "${running[$1]}" || result=$?
  unset "running[$1]"
  [ "$result" = 0 ] || cat "build/test_$1.log"
  return "$result"
}

stage() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

# build PRESET [cmake options]
build() {
  local preset="$1"
  shift
  cmake --preset "$preset" "$@" >/dev/null
  cmake --build --preset "$preset" -j "$(build_jobs)" -- --quiet
}

# run_tests PRESET NAME [ctest options]
run_tests() {
  local preset="$1" log="build/test_$2.log"
  shift 2
  if ! ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@" >"$log" 2>&1; then
    cat "$log"
    return 1
  fi
  tail -n 12 "$log"
}

# Joins words by "|".
any_of() { local IFS='|'; printf '%s' "$*"; }

# turn COUNT: which of COUNT this commit runs, from 1 on: in turn, or by its hash where the commits before it are not
# here.
turn() {
  local number
  if [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = false ]; then
    number="$(git rev-list --count HEAD)"
  else
    number="0x$(git rev-parse --short=6 HEAD 2>/dev/null || echo 0)"
  fi
  echo $((number % $1 + 1))
}

# pick_asan LINE...: what runs under sanitizers: asan_whole, asan_sampled, and the names of its tests.
pick_asan() {
  local line line_whole line_sampled
  asan_whole=() asan_sampled=()
  for line in "$@"; do
    read -r -a line_whole <<<"${line%%|*}"
    read -r -a line_sampled <<<"${line#*|}"
    asan_whole+=("${line_whole[@]}") asan_sampled+=("${line_sampled[@]}")
  done
  asan_names="^larder_($(any_of "${asan_whole[@]}"))/" asan_sampled_names="^larder_($(any_of "${asan_sampled[@]}"))/"
  case " ${asan_whole[*]} " in *" fuzz_replay "*) asan_names+="|^fuzz_" ;; esac
}

build_asan() {
  cmake --preset asan -DLARDER_SLOW_TESTS=OFF >/dev/null
  cmake --build --preset asan -j "$(build_jobs)" --target "${asan_whole[@]/#/larder_}" \
    "${asan_sampled[@]/#/larder_}" -- --quiet
}

# With what time others leave over, and after llama.cpp, which is needed first.
build_asan_beside() {
  renice -n 19 "$BASHPID" >/dev/null
  tail --pid="${running[llama_env]}" -f /dev/null
  build_asan
}

run_all_asan() {
  export LARDER_TEST_ALL_SERVERS=1
  pick_asan "${asan_turns[@]}"
  build_asan
  run_tests asan asan -LE slow -j "$((jobs + 1))" -R "$asan_names|$asan_sampled_names"
}

run_slow() {
  local sampled
  sampled="^larder_($(any_of "${slow_sampled[@]}"))/"
  run_tests release slow -L slow -j "$((jobs + 1))" -E "$sampled"  # the longest mostly wait
  run_tests release slow_sampled -L slow -j "$((jobs + 1))" -R "$sampled" -I "$(turn 4),,4"
}

run_asan() {
  run_tests asan asan -LE slow -j "$((jobs + 1))" -R "$asan_names"
  [ ${#asan_sampled[@]} = 0 ] ||
    run_tests asan asan_sampled -LE slow -j "$((jobs + 1))" -R "$asan_sampled_names" -I "$((($(turn 8) + 3) / 4)),,2"
}

# The Python package, SGLang of its wheel with it as storage backend, and SGLang's own clients before `larder serve`.
# Environments: tools/sglang_env.sh, tools/mooncake_env.sh.
run_sglang() {
  local python="$PWD/build/sglang/bin/python" suite failed=0
  tools/sglang_env.sh
  tools/mooncake_env.sh  # two of SGLang's servers share a store
  cmake -S python -B build/python -G Ninja -DPython_EXECUTABLE="$python" \
    -DLARDER_LIBRARY="$PWD/build/release/liblarder.so" >/dev/null
  cmake --build build/python -- --quiet
  local suites=(python/tests tests/sglang tests/sglang_clients tests/sglang_server)
  for suite in "${suites[@]}"; do  # side by side: each waits for its servers most of the time
    beside "${suite//\//_}" env PYTHONPATH="$PWD/build/python" LARDER_TEST_HALF="$(($(turn 2) - 1))" \
      "$python" -m pytest "$suite"
  done
  for suite in "${suites[@]}"; do
    if finish "${suite//\//_}"; then
      printf '%s: %s\n' "$suite" "$(grep -E '[0-9]+ passed' "build/test_${suite//\//_}.log")"
    else
      failed=1
    fi
  done
  return "$failed"
}

# src/engine/llama on the real libllama, and the proxy before the real llama-server. The Python is that of run_sglang.
run_llama() {
  finish llama_env
  build release -DLARDER_LLAMA=ON
  run_tests release llama -R '^larder_tests_llama/' -j 1  # llama.cpp's threads wait by spinning
  local half failed=0
  for half in 0 1; do  # side by side: a server has one thread
    beside "llama_fronts_$half" env LARDER_TEST_HALF="$half" build/sglang/bin/python -m pytest tests/llama_fronts
  done
  for half in 0 1; do
    if finish "llama_fronts_$half"; then
      grep -E '[0-9]+ passed' "build/test_llama_fronts_$half.log"
    else
      failed=1
    fi
  done
  return "$failed"
}

main() {
  local fast=0
  case "${1:-}" in
    --fast) fast=1 ;;
    --sanitizers) tools/install_deps.sh --full; run_all_asan; return ;;
    "") ;;
    *) echo "usage: $0 [--fast | --sanitizers]" >&2; return 2 ;;
  esac

  stage "packages"
  if [ "$fast" = 1 ]; then
    tools/install_deps.sh
  else
    tools/install_deps.sh --full
    export LARDER_TEST_ALL_SERVERS=1  # a test that finds no server to start fails now
  fi
  rm -f build/test_*.log

  stage "rules of the tree"
  tools/check_all.sh

  stage "release build"
  if [ "$fast" = 1 ]; then
    export LARDER_TEST_BRIEF=1
    build release -DLARDER_SLOW_TESTS=OFF
  else
    tools/cuda_env.sh  # that it builds without a GPU; its tests run on a simulated driver
    build release -DLARDER_CUDA=ON
    # In the processor time that tests leave over: for a sixth of it they wait for clocks, servers and disks.
    beside llama_env nice -n 19 tools/llama_env.sh
    pick_asan "${asan_turns[$(($(turn 4) - 1))]}"
    beside asan_build build_asan_beside
  fi
  stage "tests"
  run_tests release fast -LE slow -j "$((jobs + 1))"  # a sixth of their time they wait
  if [ "$fast" = 1 ]; then return 0; fi

  stage "Python and SGLang"
  run_sglang

  stage "llama.cpp"
  run_llama

  stage "slow tests"
  if ctest --test-dir build/release -N -L slow | grep -q '^Total Tests: 0$'; then
    echo "none"
  else
    run_slow
  fi

  stage "commands of the documentation"  # configures build/release as a user does: without tests
  tools/run_docs.py

  stage "build with AddressSanitizer and UBSan, begun beside the tests"
  finish asan_build
  stage "tests with AddressSanitizer and UBSan"
  run_asan

  if [ "$SECONDS" -gt "$clang_latest_start_seconds" ]; then
    stage "clang thread-safety analysis: LEFT OUT, no time; run: tools/thread_safety.py"
    return 0
  fi
  stage "clang thread-safety analysis"
  tools/thread_safety.py
}

main "$@"
printf '\nall ok (%ds)\n' "$SECONDS"
