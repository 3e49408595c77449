#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests see what they are there to see: switches on one deliberate defect after another.

Builds with -DLARDER_DEFECTS=ON (build/defects), runs the simulator against each defect of src/base/defect.h, and the
suites where the simulator has seen nothing, and prints a table: defect, what caught it, after how many worlds.
Ends with 1 if a defect was not caught by anything.

  tools/defects.py [--worlds 2000] [--jobs 2] [--only CopyErrorIgnored ...]
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "defects"
# Quick ones first. Those that take minutes are not needed: what they see, these or the simulator see.
SUITES = ["larder_key_test", "larder_pool_test", "larder_model_test", "larder_transfer_test", "larder_controller_test",
          "larder_tests_hf3fs", "larder_tests_metadata", "larder_tests_conformance", "larder_storage_test",
          "larder_tests_cache", "larder_tests_connector", "larder_tests_sim", "larder_tests_crash"]
# A run that takes this much longer than the same one without a defect does not end.
PATIENCE = 10
LEAST_SECONDS = 60
MOST_SECONDS = 3600


def defects():
    text = (ROOT / "src" / "base" / "defect.h").read_text()
    found = re.findall(r'X\(k(\w+), "([^"]*)",[\s\\]*"([^"]*)"\)', text)
    assert len(found) == text.count("  X(k"), "an entry of defect.h has a form that this does not read"
    return found


def build():
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                    "-DLARDER_DEFECTS=ON"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD, "--target", "larder", *SUITES, "--", "--quiet"], check=True)


def run(command, name, seconds):
    """Exit status (None: it hung), and what it printed."""
    environment = dict(os.environ, LARDER_DEFECT=name)
    try:
        done = subprocess.run(command, env=environment, cwd=BUILD, timeout=seconds, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout


def simulator(worlds):
    return ["./larder", "sim", "--seeds", str(worlds), "--events", "1000", "--no-shrink"]


def suite_command(suite):
    return ["./" + suite, "--gtest_brief=1"]


def limits(worlds):
    """How long each command may take, by its run without a defect. If that fails, the table would say nothing."""
    out = {}
    for command in [simulator(worlds), *map(suite_command, SUITES)]:
        begun = time.monotonic()
        status, text = run(command, "none", MOST_SECONDS)
        if status != 0:
            sys.exit(f"without a defect, {' '.join(command)} fails:\n{text[-2000:]}")
        out[command[0]] = max(LEAST_SECONDS, PATIENCE * (time.monotonic() - begun))
    return out


def by_simulator(name, worlds, limit):
    status, text = run(simulator(worlds), name, limit["./larder"])
    if status == 0:
        return None
    seed = re.search(r"seed (\d+):", text)
    what = re.search(r"FAILED after \d+ events: (.*)", text)
    number = seed.group(1) if seed else "?"
    if status is None:
        return "simulator: does not end", "-"
    if what:
        return "simulator: " + re.sub(r"\d+", "N", what.group(1))[:70], number
    return "simulator: the process died", number


def by_suites(name, limit):
    for suite in SUITES:
        command = suite_command(suite)
        status, text = run(command, name, limit[command[0]])
        if status == 0:
            continue
        failed = re.findall(r"\[  FAILED  \] (\S+?)[, \n]", text)
        return f"{suite}: {failed[0] if failed else 'the process died' if status is not None else 'does not end'}", "-"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000, help="of the simulator, per defect")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="defects tried at once (the processors)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these defects, named as in the table")
    options = parser.parse_args()
    listed = defects()
    only = {name.removeprefix("k") for name in options.only or []}
    unknown = only - {name for name, _, _ in listed}
    if unknown:
        parser.error(f"src/base/defect.h has no {', '.join(sorted(unknown))}")
    build()
    limit = limits(options.worlds)
    print("| defect | what it is | caught by | world |\n|---|---|---|---|")
    chosen = [entry for entry in listed if not only or entry[0] in only]
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        tried = lambda entry: by_simulator(entry[0], options.worlds, limit) or by_suites(entry[0], limit)
        results = jobs.map(tried, chosen)
        for (name, words, _), caught in zip(chosen, results):
            missed += caught is None
            who, when = caught or ("**nothing**", "-")
            print(f"| {name} | {words} | {who} | {when} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
