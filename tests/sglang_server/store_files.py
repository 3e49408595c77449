# SPDX-License-Identifier: Apache-2.0
"""Damages what a storage has on disk."""

import json
import pathlib
import subprocess

from rig.metadata_server import BINARY

_STEP = 4096


def damage(folder):
    """Flips the high byte of a float in each 4 KiB of all files below `folder`: several in each page of KV."""
    for path in filter(pathlib.Path.is_file, pathlib.Path(folder).rglob("*")):
        _flip(path, range(_STEP // 2 + 3, path.stat().st_size, _STEP))


def damage_pool(folder, pool):
    """The same in the middle of each page of one pool of Larder's file store, and nowhere else; returns how many."""
    command = [BINARY, "store", "ls", "--json", "--pages", "--limit", "0", "--pool", pool, str(folder)]
    pages = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)["pages"]
    for page in pages:
        _flip(page["file"], [page["offset"] + page["bytes"] // 8 * 4 + 3])
    return len(pages)


def _flip(path, places):
    with open(path, "r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0xFF]))
