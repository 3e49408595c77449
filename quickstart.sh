#!/usr/bin/env bash
# From a fresh clone to a running demonstration: installs what is missing, builds, runs `larder quickstart`.
# Arguments go to that command (see build/release/larder quickstart --help). Debian 12; root or sudo only to install.
set -euo pipefail
cd "$(dirname "$0")"

tools/install_deps.sh
echo "building (build/release) ..."
cmake --preset release >/dev/null
cmake --build --preset release --target larder -- --quiet
exec build/release/larder quickstart "$@"
