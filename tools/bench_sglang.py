#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Larder and SGLang's own `file` backend, with the same host pools of SGLang, by turns.

Every repetition stores 128 pages per thread in both, makes the caches cold, and reads them back into other pages of the
pool; each byte is compared. Calls are those of SGLang's controller: `file` gets flat copies of pages (its generic
path), Larder the pool's own memory. A set counts until the pages would survive a power cut: `file` syncs each new file
and the folder ("fsync"), or, in another row, the whole file system at once ("syncfs"); Larder has `fsync`: "group", and
answers only then. Ratios are of medians; their spread is over the repetitions.

    build/sglang/bin/python tools/bench_sglang.py --quick
    build/sglang/bin/python tools/bench_sglang.py --directory /mnt/disk/bench --stored 1000000

Needs the environment of tools/sglang_env.sh, and `larder` on PYTHONPATH (build/python). Ends with 1 if a
backend returned wrong bytes or missed a page that was stored, else with 0, whatever the figures are.
"""

import argparse
import json
import logging
import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "sglang"))

from bench_sglang_parts import host as host_pages  # noqa: E402
from bench_sglang_parts import measure, report, sides  # noqa: E402

SIZES = {"64Ki": 64 << 10, "512Ki": 512 << 10, "2Mi": 2 << 20}
TINY_PAGE = 1 << 10
SPARE_BYTES = 5 << 30
EVERYTHING = ("set", "get", "exists")


def arguments():
    """Returns the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 KiB pages only, 3 repetitions: under a minute")
    parser.add_argument(
        "--directory",
        type=pathlib.Path,
        help="folder on the disk to measure; a new folder is made in it and removed at the end (default: the system's "
        "folder for temporary files)",
    )
    parser.add_argument("--pages", nargs="+", choices=SIZES, default=list(SIZES), help="page sizes (default: all)")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 4], help="that call at once (default: 1 4)")
    parser.add_argument("--repetitions", type=int, default=7, help="of everything (default: 7)")
    parser.add_argument(
        "--filled", type=int, default=10_000, help="pages stored before set and get are measured (default: 10000)"
    )
    parser.add_argument(
        "--fill-bytes",
        type=int,
        default=2 << 30,
        help="most bytes per backend that --filled may take: large pages are fewer then (default: 2 GiB)",
    )
    parser.add_argument(
        "--stored",
        type=int,
        default=10_000,
        help="pages of 1 KiB stored where only exists is measured (default: 10000); 1000000 needs 9 GiB, 1,000,000 "
        "inodes and a few minutes",
    )
    parser.add_argument("--parts", nargs="+", choices=("transfers", "exists", "overhead"), help="measure these only")
    parser.add_argument(
        "--cold",
        choices=("auto", "drop_caches", "fadvise"),
        default="auto",
        help="before each read: drop all caches of the machine (root), or only those of the files' data; "
        "auto (default): the first where allowed",
    )
    parser.add_argument("--json", type=pathlib.Path, help="write all times to this file, too")
    given = parser.parse_args()
    if min(given.threads) < 1 or given.repetitions < 1:
        parser.error("--threads, --repetitions: 1 at least")
    asked = asked_at_once(given)
    if given.quick:
        given.pages, given.repetitions = ["64Ki"], min(given.repetitions, 3)
        given.filled = min(given.filled, max(1000, asked))
    given.parts = given.parts or ("transfers", "exists", "overhead")
    fewest = min(filled_pages(given, SIZES[name]) for name in given.pages)
    if "transfers" in given.parts and fewest < asked:
        parser.error(f"--filled, --fill-bytes: {fewest} pages, and --threads {max(given.threads)} ask for {asked}")
    if "exists" in given.parts and given.stored < asked:
        parser.error(f"--stored: {given.stored} pages, and --threads {max(given.threads)} ask for {asked}")
    return given


def asked_at_once(given):
    """Returns how many stored pages one query of all threads is about: each of another."""
    return host_pages.BATCH * max(given.threads)


def filled_pages(given, size):
    """Returns how many pages of `size` bytes are stored before set and get are measured."""
    return min(given.filled, given.fill_bytes // size)


def prepare():
    """Lets SGLang run without a GPU, and log errors only."""
    from rig import cpu

    cpu.install()
    logging.getLogger("sglang").setLevel(logging.ERROR)


def say(*words, sep=" "):
    """Prints at once."""
    print(*words, sep=sep, flush=True)


def require_room(directory, size):
    """Ends the program if the disk has no room for `size` bytes and some to spare."""
    free = shutil.disk_usage(directory).free
    if free < size + SPARE_BYTES:
        needed = (size + SPARE_BYTES) >> 30
        sys.exit(f"{directory} has {free >> 30} GiB free, and this needs {needed}: fewer --pages, --stored")


def run_transfers(given, directory, cold):
    """Measures set, get and exists with pages of each size; returns the rows."""
    rows = []
    for size in (SIZES[name] for name in given.pages):
        filled = filled_pages(given, size)
        written = sum(given.threads) * given.repetitions * host_pages.BATCH
        require_room(directory, size * (3 * filled + 4 * written))
        host = host_pages.HostPages(size, max(given.threads))
        with tempfile.TemporaryDirectory(dir=directory) as name:
            rows += _transfers_of(given, host, pathlib.Path(name), filled, cold)
    return rows


def _transfers_of(given, host, folder, filled, cold):
    compared = [
        sides.FileSide(report.FILE, host, folder / "file", EVERYTHING),
        sides.FileSide(report.SYNCFS, host, folder / "file", ("set",), sync="syncfs"),
        sides.LarderSide(report.LARDER, host, folder / "larder", EVERYTHING),
        sides.LarderSide(report.ZERO_COPY, host, folder / "zero_copy", ("set", "get"), zero_copy=True),
    ]
    rows = []
    try:
        keys = host_pages.keys_of("filled", 0, filled)
        for side in compared:
            if "get" in side.operations:  # the others share a folder
                side.fill(keys)
        for threads in given.threads:
            rows += measure.transfers(host, compared, threads, given.repetitions, filled, cold)
            asked = [side for side in compared if "exists" in side.operations]
            rows.append(measure.queries("exists, warm", host, asked, threads, given.repetitions, keys))
            say(report.table(rows[-3:]))
    finally:
        for side in compared:
            side.close()
    return rows


def run_exists(given, directory, cold):
    """Measures exists with --stored small pages, warm and cold, also against `file` with its metadata cache."""
    require_room(directory, given.stored * 9 * 1024)
    host = host_pages.HostPages(TINY_PAGE, max(given.threads))
    keys = host_pages.keys_of("stored", 0, given.stored)
    rows = []
    with tempfile.TemporaryDirectory(dir=directory) as name:
        folder = pathlib.Path(name)
        plain = sides.FileSide(report.FILE, host, folder / "file", EVERYTHING)
        larder = sides.LarderSide(report.LARDER, host, folder / "larder", EVERYTHING)
        try:
            for side in (plain, larder):
                side.fill(keys)
            say(f"stored {given.stored:,} pages of {report.size_text(TINY_PAGE)} in each")
            options = {"enable_metadata_cache": True, "metadata_ttl": -1}
            cached = sides.FileSide(report.CACHED, host, folder / "file", EVERYTHING, **options)
            for threads in given.threads:
                for title, chill in (("exists, warm", None), ("exists, cold", cold)):
                    compared = [plain, cached, larder]
                    rows.append(measure.queries(title, host, compared, threads, given.repetitions, keys, chill))
                    say(report.table(rows[-1:]))
        finally:
            larder.close()
    return rows


def run_overhead(given):
    """Measures what a call costs that moves next to nothing."""
    host = host_pages.HostPages(TINY_PAGE, 1)
    side = sides.LarderSide("memory", host, None, EVERYTHING, backend="memory")
    try:
        return measure.overhead(host, side, 300 if given.quick else 3000)
    finally:
        side.close()


def main():
    given = arguments()
    prepare()
    directory = given.directory or pathlib.Path(tempfile.gettempdir())
    directory.mkdir(parents=True, exist_ok=True)
    cold = measure.Cold(given.cold)
    about = {"machine": report.machine(directory), "command": " ".join(["bench_sglang.py", *sys.argv[1:]])}
    about["cold"] = cold.how
    say(about["machine"], about["command"], sep="\n")
    say(f"before reads: {cold.how}; {given.repetitions} repetitions, by turns\n")
    rows, found = [], {}
    try:
        if "overhead" in given.parts:
            found = run_overhead(given)
        if "transfers" in given.parts:
            rows += run_transfers(given, directory, cold)
        if "exists" in given.parts:
            rows += run_exists(given, directory, cold)
    except measure.WrongBytes as error:
        say(f"WRONG: {error}")
        return 1
    judged = report.bars(rows, found)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    if rows:
        say("", report.table(rows), sep="\n")
    if found:
        say("", report.overhead_table(found), sep="\n")
    say("", report.bars_table(judged), sep="\n")
    say(f"load at the end: {load}")
    if given.json:
        given.json.write_text(json.dumps(report.as_json(rows, found, judged, about), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
