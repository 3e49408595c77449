#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clang's thread-safety analysis of everything but the tests, with warnings as errors.

Configures preset `clang` and runs its compiler with -fsyntax-only: the analysis needs no code, and so takes half the
time of a build. Ten sources of a library are read at a time, which is four times as fast; with --alone each is read by
itself, which shows in addition that it includes what it uses. Ends with 1 if there is a finding.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def check(entry):
    """What the compiler says of one source; empty if nothing."""
    words = shlex.split(entry["command"])
    while "clang" not in pathlib.Path(words[0]).name:  # a launcher (ccache)
        words = words[1:]
    at = words.index("-o")
    words = words[:at] + words[at + 2:]
    words.append("-fsyntax-only")
    done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode != 0 else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--alone", action="store_true", help="one source at a time: four times as long, and missing "
                        "includes are found")
    together = "OFF" if parser.parse_args().alone else "ON"
    subprocess.run(["cmake", "--preset", "clang", "-DLARDER_BUILD_TESTS=OFF", f"-DLARDER_UNITY={together}"], cwd=ROOT,
                   check=True, stdout=subprocess.DEVNULL)
    entries = json.loads((ROOT / "build/clang/compile_commands.json").read_text(encoding="utf-8"))
    entries = [entry for entry in entries if not entry["file"].endswith(".c")]  # C has no annotations
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for entry, said in zip(entries, pool.map(check, entries)):
            if said:
                failed += 1
                print(f"{os.path.relpath(entry['file'], ROOT)}:\n{said}", file=sys.stderr)
    print(f"thread safety: {len(entries)} compilations, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
