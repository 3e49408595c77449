# SPDX-License-Identifier: Apache-2.0
"""A store that fails on command, moody_backend.c."""

import itertools
import mmap
import pathlib
import struct
import subprocess
import time

from . import settings

HERE = pathlib.Path(__file__).parent
HEADERS = HERE.parents[2] / "src" / "storage" / "plugin"
KINDS = ("exists", "read", "write")
MOODS = ("fine", "hang", "error", "short", "silent", "slow", "wrong")
FIELDS = (
    *(f"mood_{kind}" for kind in KINDS),
    *(f"calls_{kind}" for kind in KINDS),
    "hung",
    "pass_groups",
    "fail_groups",
    "objects",
    "open",
)
TIMES = {"timeout_seconds": 0.25, "put_timeout_seconds": 0.25}
WAIT = 20.0

_numbers = itertools.count(1)


def compile_library(folder):
    """Compiles the moody backend, as the author of a plug-in would; returns the library's path."""
    library = folder / "libmoody.so"
    command = ["gcc", "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-pthread", "-I", str(HEADERS)]
    subprocess.run([*command, str(HERE / "moody_backend.c"), "-o", str(library)], check=True, timeout=60)
    return library


class Moody:
    """A store of Larder's plug-in backend; its moods are set from here, also while calls are in it."""

    def __init__(self, library, folder):
        self.library = library
        self.path = folder / "control"
        self.store = next(_numbers)
        self.path.write_bytes(bytes(4 * len(FIELDS)))
        with open(self.path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def backend(self, **config):
        """Describes Larder's backend on top of this store, with short timeouts."""
        fixed = {"backend": "plugin", "library": str(self.library)}
        fixed |= {"control": str(self.path), "store": str(self.store)}
        fixed |= {"weights_fingerprint": "rig-weights", "staging_bytes": "1Mi"} | TIMES
        return settings.dynamic("larder_sglang", "LarderStorage", "larder", **(fixed | config))

    def __getitem__(self, field):
        return struct.unpack_from("i", self.memory, 4 * FIELDS.index(field))[0]

    def __setitem__(self, field, value):
        struct.pack_into("i", self.memory, 4 * FIELDS.index(field), value)

    def mood(self, mood, *kinds):
        """Sets the mood of calls of these kinds; without kinds, of all."""
        for kind in kinds or KINDS:
            self[f"mood_{kind}"] = MOODS.index(mood)

    def settle(self):
        """All is fine again, and no call hangs any more."""
        self.mood("fine")
        until(lambda: self["hung"] == 0, "the hanging calls")


def until(done, what, seconds=WAIT):
    """Waits until `done()`; fails with words after a while."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"rig: {what} did not end within {seconds} s")
        time.sleep(0.002)
