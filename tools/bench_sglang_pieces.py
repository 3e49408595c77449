#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tp_lcm_size costs a server of SGLang: pages whole, and in 2, 4 and 8 pieces, by turns.

Every repetition stores 128 pages of a host pool of SGLang (page_head, 32 heads, 512 KiB a page) through Larder's file
backend with `fsync`: "group", reads them back and compares each byte, and asks for them 20 times. The page cache is as
the store leaves it: reads are direct.

    PYTHONPATH=build/python build/sglang/bin/python tools/bench_sglang_pieces.py --directory /mnt/disk/bench

Needs the environment of tools/sglang_env.sh. Ends with 1 if a page was missed or had other bytes.
"""

import argparse
import hashlib
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "sglang"))

PIECES = (1, 2, 4, 8)
PAGES = 128
PAGE_SIZE = 64  # tokens
HEADS = 32
QUERIES = 20


def timed(work):
    """Returns the seconds that `work` took; fails unless it answers for every page."""
    begin = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - begin
    if done != PAGES and done != [True] * PAGES:
        raise ValueError(f"pages are missing: {done}")
    return seconds


def measure(directory, pieces, repetition):
    """Returns the seconds of a set, a get and a query of 128 pages."""
    import torch
    from rig import larder_backend, world

    backend = larder_backend.describe(directory, tp_lcm_size=pieces, staging_bytes="128Mi", fsync="group")
    settings = {"kind": "mha", "layout": "page_head", "heads": HEADS, "page_size": PAGE_SIZE, "pages": PAGES // 2 + 8}
    with world.World(backend, **settings) as w:
        (entry,) = w.host_entries()
        memory = entry.host_pool.kv_buffer[:, :PAGES].view(torch.uint8)
        memory.random_(0, 256)
        keys = [hashlib.sha256(f"{pieces} {repetition} {page}".encode()).hexdigest() for page in range(PAGES)]
        slots = torch.arange(PAGES * PAGE_SIZE)
        written = timed(lambda: w.store.batch_set_v1(keys, slots))
        before = memory.clone()
        memory.zero_()
        read = timed(lambda: w.store.batch_get_v1(keys, slots))
        if not torch.equal(before, memory):
            raise ValueError("other bytes came back")
        asked = statistics.median(timed(lambda: w.store.batch_exists(keys)) for _ in range(QUERIES))
    return written, read, asked


def in_milliseconds(seconds):
    """Returns the median and the spread as text."""
    middle, least, most = (value * 1e3 for value in (statistics.median(seconds), min(seconds), max(seconds)))
    return f"{middle:.2f} ms [{least:.2f}..{most:.2f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=pathlib.Path, help="on the disk to measure (default: for temporary files)")
    parser.add_argument("--repetitions", type=int, default=7, help="of everything (default: 7)")
    given = parser.parse_args()
    from rig import world

    world.quiet()
    found = {pieces: [] for pieces in PIECES}
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        for repetition in range(given.repetitions):
            for pieces in PIECES:
                try:
                    found[pieces].append(measure(pathlib.Path(name) / str(pieces), pieces, repetition))
                except ValueError as error:
                    print(f"WRONG: {pieces} pieces: {error}")
                    return 1
    for pieces, times in found.items():
        columns = zip(("set", "get", "exists"), zip(*times))
        cells = [f"{what} {in_milliseconds(seconds)}" for what, seconds in columns]
        print(f"{pieces} pieces:", ", ".join(cells))
    print("load at the end:", ", ".join(f"{value:.1f}" for value in os.getloadavg()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
