#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a running demonstration: installs what is missing, builds, runs `larder quickstart`.
#   ./quickstart.sh [OPTION...]        options of that command; on Debian 12, with root or sudo only to install
#   ./quickstart.sh --llama [...]      builds llama-server, too, and shows what `larder proxy` gives before it
#
#   --num-clients N, --num-rounds N    how many conversations, and turns of each
#   --request-length N                 new prompt tokens of a turn
#   --output-length N                  tokens of an answer
#   --model NAME, --seed N             a hybrid preset with recurrent layers; of the random prompt tokens
#   --max-mamba-cache-size N           device slots for recurrent states
#   --hicache-ratio RATIO              host bytes / device bytes
#   --control                          instead: the same load with states, then KV, kept on the device only
#   --keep                             keep the temporary directory
set -euo pipefail
if [[ "${1:-}" == --llama ]]; then
  exec "$(dirname "$0")/tools/quickstart_llama.sh" "${@:2}"
fi
cd "$(dirname "$0")"
. tools/build_parts.sh
if asks_for_help "$@"; then
  sed -n '3,14s/^# \{0,1\}//p' quickstart.sh
  exit 0
fi
readonly with_value="--num-clients --num-rounds --request-length --output-length --model --seed --max-mamba-cache-size
  --hicache-ratio"
check_options "$with_value" "--control --keep" "$@"

tools/install_deps.sh --build
echo "building (build/release) ..."
cmake --preset release -DLARDER_BUILD_TESTS=OFF >/dev/null  # ./test.sh turns them on
cmake --build --preset release -j "$(build_jobs)" --target larder -- --quiet
exec build/release/larder quickstart "$@"
