#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every check of the tree's rules, also after one failed; ends with 1 if any did. Seconds, no build needed.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1

failed=0
for check in tools/check_*.py tools/check_format.sh; do
  "./$check" || failed=1
done
tools/options_page.py --check || failed=1
tools/pictures.py --check || failed=1
exit "$failed"
