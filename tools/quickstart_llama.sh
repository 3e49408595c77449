#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./quickstart.sh --llama`: from a fresh clone to what `larder proxy` gives before an unmodified llama-server.
#
# Installs what is missing, builds llama-server (tools/llama_env.sh) and larder, writes a model of random weights (a
# hybrid of 24 layers, 283 MB; what a prompt costs depends on a model's shape only), and asks a plain llama-server and
# the proxy the same prompts (`larder bench llama`).
#
#   --model FILE           a GGUF file of yours in place of that model
#   --llama-server PATH    with --model: a llama-server of yours, and llama.cpp is not built
#   ...                    goes to `larder bench llama` in place of --rows 9,11 --fronts proxy --repeats 1 --threads N:
#                          --rows, --fronts, --repeats, --threads, --server-args, --page-size, --host-memory, --seed,
#                          --json (docs/llama_cpp.md)
set -euo pipefail

called_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/build_parts.sh

readonly larder=build/release/larder written=build/quickstart/middle.gguf
# Attention in every fourth layer, recurrent states in the others.
readonly bench_options="--server-args --rows --fronts --repeats --threads --page-size --host-memory --seed"
readonly shape=(embedding=1024 layers=24 heads=8 kv_heads=2 head_length=256 feed_forward=3584 state_size=128
  state_groups=16 state_heads=16 attention_interval=4 is_quantized=1)
# One processor is left to everything else: llama.cpp's threads wait for each other by spinning.
threads="$(($(nproc) > 1 ? $(nproc) - 1 : 1))"
readonly threads
model="" server="" has_own_server=0 rows=() seconds_of_stages=""

fail() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 2
}

# Prints a path that is good from here, of one that was good where we were called.
from_here() { [[ "$1" == /* ]] && printf '%s' "$1" || printf '%s' "$called_from/$1"; }

read_arguments() {
  if asks_for_help "$@"; then
    sed -n '3,13s/^# \{0,1\}//p' tools/quickstart_llama.sh
    exit 0
  fi
  check_options "$bench_options --model --llama-server" --json "$@"
  while (($#)); do
    case "$1" in
      --model | --llama-server) set -- "$1=${2:-}" "${@:3}" ;;
    esac
    case "$1" in
      --model=*) model="$(from_here "${1#*=}")" ;;
      --llama-server=*) server="$(from_here "${1#*=}")" ;;
      *) rows+=("$1") ;;
    esac
    shift
  done
  [[ -z "$model" || -f "$model" ]] || fail "--model: there is no file $model"
  if [[ -n "$server" ]]; then
    [[ -x "$server" && ! -d "$server" ]] || fail "--llama-server: $server is no executable"
    [[ -n "$model" ]] || fail "--llama-server needs --model: only llama.cpp, built here, can write a model"
    has_own_server=1
  else
    server=build/llama/build/bin/llama-server
  fi
  ((${#rows[@]})) || rows=(--rows 9,11 --fronts proxy --repeats 1 --threads "$threads")
}

# stage NAME COMMAND...
stage() {
  local name="$1" begun="$SECONDS"
  shift
  printf '\n== %s (%d s so far)\n' "$name" "$SECONDS"
  "$@"
  seconds_of_stages+="$name $((SECONDS - begun)) s, "
}

# A pip that is not Debian's does as well.
install() {
  if ((has_own_server)) || python3 -m pip --version >/dev/null 2>&1; then
    tools/install_deps.sh --build
  else
    tools/install_deps.sh --llama
  fi
}

build_larder() {
  local targets=(larder)
  if ((has_own_server)); then
    cmake --preset release -DLARDER_BUILD_TESTS=OFF >/dev/null
  else
    cmake --preset release -DLARDER_BUILD_TESTS=OFF -DLARDER_LLAMA=ON >/dev/null
    targets+=(larder_write_model)
  fi
  cmake --build --preset release -j "$(build_jobs)" --target "${targets[@]}" -- --quiet
}

write_model() {
  [[ ! -e "$written" ]] || return 0
  mkdir -p "${written%/*}"
  build/release/larder_write_model qwen35 "$written.part" "${shape[@]}" 2>/dev/null
  mv "$written.part" "$written"
}

print_next() {
  local shown="${1:-MODEL.gguf}" note=""
  ((has_own_server)) || note=" (the one that was built here computes on the processor)"
  cat <<END

Rows 9: the servers were killed and started again. Rows 11: other questions about the same beginning.
Times: ${seconds_of_stages}$SECONDS s in all.

Next, with a model of your own and any llama-server$note:

    $larder plan --gguf $shown
    $larder proxy --store /var/tmp/larder -- \\
        $server -m $shown -c 32768 -np 4 -fa on -t $threads
    $larder bench llama --llama-server $server --model $shown --threads $threads    # all rows, three times

The proxy listens on http://127.0.0.1:8080, where clients talk to it as to llama-server: docs/llama_cpp.md
END
}

main() {
  read_arguments "$@"
  stage packages install
  if ! ((has_own_server)); then
    stage llama-server env LARDER_LLAMA_JOBS="${LARDER_LLAMA_JOBS:-$(build_jobs)}" tools/llama_env.sh
  fi
  stage larder build_larder
  if [[ -z "$model" ]]; then
    stage model write_model
  fi
  stage requests "$larder" bench llama --llama-server "$server" --model "${model:-$written}" "${rows[@]}"
  print_next "$model"
}

main "$@"
