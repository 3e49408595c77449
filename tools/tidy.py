#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy with the checks of .clang-tidy over everything but the tests; each finding is an error.

Too slow for every run of test.sh (a quarter of an hour on two cores): by hand, or for the files that you changed.

  tools/tidy.py [--jobs N] [FILE ...]
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDY = "clang-tidy-16"
MOST_SECONDS = 600  # some forms of code keep one of its checks busy for ever: write them in another one


def check(path):
    """The findings in one source, and in our headers that it includes."""
    try:
        done = subprocess.run([TIDY, "-p", ROOT / "build/clang", "--quiet", "--warnings-as-errors=*", path],
                              capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"clang-tidy does not end (after {MOST_SECONDS} s)\n"
    if done.returncode == 0:
        return ""
    return re.sub(r"^\d+ warnings? (treated|generated).*\n", "", done.stdout, flags=re.MULTILINE) or done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("files", nargs="*", help="sources (default: all but the tests)")
    options = parser.parse_args()
    subprocess.run([ROOT / "tools/install_deps.sh", "--tidy"], check=True)
    subprocess.run(["cmake", "--preset", "clang", "-DLARDER_BUILD_TESTS=OFF"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    entries = json.loads((ROOT / "build/clang/compile_commands.json").read_text(encoding="utf-8"))
    known = sorted({entry["file"] for entry in entries if not entry["file"].endswith(".c")})
    wanted = [str((ROOT / name).resolve()) for name in options.files] or known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"not a source of the build: {' '.join(unknown)}", file=sys.stderr)
        return 2
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for path, said in zip(wanted, pool.map(check, wanted)):
            if said:
                failed += 1
                print(f"{os.path.relpath(path, ROOT)}:\n{said}", flush=True)
    print(f"clang-tidy: {len(wanted)} sources, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
