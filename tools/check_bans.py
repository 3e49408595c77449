#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time, randomness, threads and files are injected: what makes them is used in base/ and in real_* files only.

Sleeping is banned everywhere: waiting is a condition, an inbox, an event or an injected clock. Files called
real_*.{h,cc} are the documented adapters to the operating system (a device driver, a network library, io_uring).
fakes/ stand in for foreign libraries below those adapters: they have threads, time and files of their own.
"""

import re

import source_tree

EVERYWHERE = (
    (re.compile(r"\bsleep_(for|until)\b|\b(?:::)?(?:usleep|nanosleep)\s*\(|(?<![\w.:>])sleep\s*\("),
     "no sleeping: wait on a condition, an inbox or the injected clock"),
    (re.compile(r"\bstd::(random_device|rand|srand)\b|(?<![\w:.>])s?rand\s*\("),
     "no unseeded randomness: take a larder::Rng"),
    (re.compile(r"\.detach\s*\(\s*\)"), "no detached thread: someone joins it"),
)
OUTSIDE_REAL = (
    (re.compile(r"\b(steady_clock|system_clock|high_resolution_clock)::now\b|\bclock_gettime\s*\(|"
                r"(?<![\w.>:])time\s*\(\s*(NULL|nullptr|0)\s*\)"),
     "time is injected: take a larder::Clock"),
    (re.compile(r"\bstd::(jthread|thread)\b(?!::(id|hardware_concurrency))"),
     "threads are injected: take a larder::Executor (base/thread_pool.h)"),
    (re.compile(r"(?<![\w>.])::(open|openat|pread|pwrite|preadv|pwritev|fsync|fdatasync|rename|unlink|mkdir|flock)"
                r"\s*\(|"
                r"\bstd::(ofstream|fstream)\b|\bfopen\s*\("),
     "files are injected: take a larder::FileSystem"),
)


def is_real(path):
    return path.parts[:2] == ("src", "base") or path.parts[0] == "fakes" or path.name.startswith("real_")


def main():
    problems = []
    for path in source_tree.files(source_tree.CPP_SUFFIXES):
        code = source_tree.without_comments_and_strings(source_tree.text_of(path))
        rules = EVERYWHERE + (() if is_real(path) else OUTSIDE_REAL)
        for number, line in enumerate(code.splitlines(), 1):
            problems += [(path, number, text) for pattern, text in rules if pattern.search(line)]
    source_tree.report("bans", problems)


main()
