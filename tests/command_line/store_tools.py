#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `larder store` says, and its exit code, where not all of a store can be read.

    store_tools.py BINARY
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ARCHIVE = pathlib.Path(__file__).parents[1] / "golden" / "archive_v1.larder"
DONE, DAMAGE = 0, 1


class Tools:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.problems = []

    def run(self, *arguments):
        return subprocess.run([self.binary, "store", *map(str, arguments)], capture_output=True, text=True, timeout=60)

    def expect(self, code, words, *arguments):
        """Runs the command; what it printed."""
        ended = self.run(*arguments)
        name = "larder store " + " ".join(map(str, arguments))
        if ended.returncode != code:
            self.problems.append(f"{name}: exit code {ended.returncode}, not {code}: {ended.stderr}")
        for word in words:
            if word not in ended.stdout + ended.stderr:
                self.problems.append(f"{name}: does not say '{word}' but: {ended.stdout}{ended.stderr}")
        return ended

    def check(self, is_right, what):
        if not is_right:
            self.problems.append(what)


def make_store(tools):
    """A store of four pages, in one sealed segment; that segment."""
    store = tools.folder / "store"
    tools.expect(DONE, ["4 pages"], "import", "--extra", "segment_size=1Mi", ARCHIVE, store)
    segments = sorted(store.glob("segment-*"))
    tools.check(len(segments) == 1, f"one segment is expected, not {segments}")
    return store, segments[0]


def whole_store(tools, store):
    tools.expect(DONE, ["4 pages"], "export", "--overwrite", tools.folder / "whole", store)
    tools.expect(DONE, [], "ls", store)
    listed = json.loads(tools.expect(DONE, [], "ls", "--json", store).stdout)
    tools.check(listed["unreadable_segments"] == [], f"ls --json: {listed['unreadable_segments']}")


def segment_that_is_being_made(tools, store, segment):
    """It is empty, or has its room and no header yet: no damage."""
    made = [segment.with_name(f"segment-{number:016x}.larder") for number in (0x51, 0x52)]
    made[0].write_bytes(b"")
    made[1].write_bytes(bytes(3 << 20))
    whole_store(tools, store)
    tools.expect(DONE, [], "verify", store)
    tools.expect(DONE, ["nothing was written yet"], "fsck", store)
    for path in made:
        path.unlink()


def segment_that_does_not_open(tools, store, segment):
    """A copy of another number: its pages are in no report, so nothing else counts as left out."""
    wrong = segment.with_name(f"segment-{0x63:016x}.larder")
    shutil.copy(segment, wrong)
    for command in (["export", tools.folder / "partial"], ["ls"], ["ls", "--pages"], ["verify"]):
        tools.expect(DAMAGE, [wrong.name], *command, store)
    for command in (["export", tools.folder / "partial-too"], ["ls"], ["verify"]):
        said = json.loads(tools.expect(DAMAGE, [], *command, "--json", store).stdout)
        files = [entry["file"] for entry in said["unreadable_segments"]]
        tools.check(files == [str(wrong)], f"{command[0]} --json names {files}")
    tools.expect(DONE, ["4 pages"], "import", "--dry-run", tools.folder / "partial", tools.folder / "none")
    wrong.unlink()


def check_makes_no_file(tools, store):
    """Without --repair, fsck leaves a directory as it is: a LOCK of root's would keep the server out."""
    (store / "LOCK").unlink()
    before = sorted(store.iterdir())
    tools.expect(DONE, ["nothing wrong"], "fsck", store)
    tools.check(sorted(store.iterdir()) == before, f"fsck made a file: {sorted(store.iterdir())}")


def wrong_options(tools):
    none = tools.folder / "none"
    tools.expect(2, ["option 'evict'"], "import", "--extra", "evict=maybe", ARCHIVE, none)
    tools.expect(2, ["--extra: KEY=VALUE is expected, not 'evict'"], "import", "--extra", "evict", ARCHIVE, none)


def main():
    with tempfile.TemporaryDirectory() as folder:
        tools = Tools(sys.argv[1], pathlib.Path(folder))
        store, segment = make_store(tools)
        whole_store(tools, store)
        segment_that_is_being_made(tools, store, segment)
        segment_that_does_not_open(tools, store, segment)
        check_makes_no_file(tools, store)
        wrong_options(tools)
    for problem in tools.problems:
        print(problem)
    sys.exit(1 if tools.problems else 0)


if __name__ == "__main__":
    main()
