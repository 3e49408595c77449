#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a running demonstration: installs what is missing, builds, runs `larder quickstart`.
# Arguments go to that command (see build/release/larder quickstart --help). Debian 12; root or sudo only to install.
#   ./quickstart.sh --llama   builds llama-server, too, and shows what `larder proxy` gives before it
set -euo pipefail
if [[ "${1:-}" == --llama ]]; then
  exec "$(dirname "$0")/tools/quickstart_llama.sh" "${@:2}"
fi
cd "$(dirname "$0")"

tools/install_deps.sh --build
echo "building (build/release) ..."
cmake --preset release -DLARDER_BUILD_TESTS=OFF >/dev/null  # ./test.sh turns them on
cmake --build --preset release --target larder -- --quiet
exec build/release/larder quickstart "$@"
