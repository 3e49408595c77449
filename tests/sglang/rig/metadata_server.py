# SPDX-License-Identifier: Apache-2.0
"""Runs `larder metadata-server` for the tests, makes SGLang's own clients of it, and knows what must hold.

The server is the program named by the environment variable LARDER_BINARY, else build/release/larder.
"""

import importlib
import json
import os
import pathlib
import re
import subprocess
import threading

from . import settings

ROOT = pathlib.Path(__file__).parents[3]
BINARY = pathlib.Path(os.environ.get("LARDER_BINARY", ROOT / "build" / "release" / "larder"))
CONFIG_VARIABLE = "SGLANG_HICACHE_HF3FS_CONFIG_PATH"
CLIENT_MODULE = "sglang.srt.mem_cache.storage.hf3fs.mini_3fs_metadata_server"
START_SECONDS = 30.0

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+) \(([\d,]+) keys? stored")


def launch(command, listening):
    """Starts a server and waits until a line of its output matches `listening`; returns the process and the match."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = []
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            said.append(line)
            if found := listening.search(line):
                return process, found
    finally:
        watchdog.cancel()
    raise AssertionError(f"the server ended with {process.wait()}\n{''.join(said)}")


class MetadataServer:
    """A server with a journal in `folder`; it may be killed and started again, on the same port.

    `keys_stored` is what it said at its last start.
    """

    def __init__(self, folder, *options):
        self.folder = pathlib.Path(folder)
        self.options = [str(option) for option in options]
        self.port = 0
        self.keys_stored = 0
        self._process = None

    @property
    def url(self):
        """The address as a client's configuration has it."""
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Starts the process and waits until it listens."""
        command = [BINARY, "metadata-server", "--port", str(self.port), "--directory", self.folder, *self.options]
        self._process, found = launch(command, _LISTENING)
        self.port, self.keys_stored = int(found[1]), int(found[2].replace(",", ""))
        return self

    def kill(self):
        """Ends the process at once, as a crash does."""
        self._end(self._process.kill)

    def stop(self):
        """Ends the process in order; fails if its end is not clean."""
        status = self._end(self._process.terminate)
        assert status == 0, f"the metadata server ended with {status}"

    def _end(self, signal):
        signal()
        status = self._process.wait(timeout=30)
        self._process.stdout.close()
        self._process = None
        return status

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        if self._process:
            self.kill()


class Model:
    """What has to hold for one namespace, whoever calls; every method from any thread.

    `life` counts the server's lives: a reservation does not outlive one, and a confirmation that comes after the end of
    its reservation's life is ignored. So only what was reserved and confirmed in one life is known to be stored.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.life = 0
        self.held = {}  # page -> (key, life): reserved, and in nobody else's hands
        self.stored = {}  # key -> page, for certain
        self.pages = {}  # the other way round
        self.gone = set()  # keys that are not stored, for certain
        self.seen = set()
        self.confirmed_in_life = {}

    def reserved(self, key, life, known, written, page):
        """Takes one answer to a reserve that began in `life`, when the key was `known` to be in a page, or not (None).

        Returns whether the caller has to write.
        """
        with self.lock:
            self.seen.add(key)
            if known is not None:
                assert (written, page) == (True, known), f"{key} is stored in {known}: {page}"
            if written:
                assert self.pages.get(page, key) == key, f"page {page} of {self.pages.get(page)} is said to have {key}"
                return False
            assert page >= 0, "the pool has room"
            assert page not in self.pages, f"page {page} of {self.pages.get(page)} was given to {key}"
            if life == self.life:
                other = self.held.get(page)
                assert other is None or other[1] != life, f"page {page} of {other} was given to {key}"
                self.held[page] = (key, life)
                self.gone.discard(key)
            return True

    def let_go(self, key, page):
        """Before a release: the page may be somebody else's from now on."""
        with self.lock:
            if self.held.get(page, (None,))[0] == key:
                del self.held[page]

    def confirmed(self, key, page, life):
        """After a confirmation of what was reserved in `life`."""
        with self.lock:
            if self.held.get(page) != (key, life):
                return
            del self.held[page]
            if life == self.life:
                self.stored[key] = page
                self.pages[page] = key
                self.confirmed_in_life[life] = self.confirmed_in_life.get(life, 0) + 1

    def deleting(self, key):
        """Before a delete."""
        with self.lock:
            self.pages.pop(self.stored.pop(key, None), None)

    def missing(self, key):
        """After a delete, or a release in the life of the reserve: nobody else writes this key."""
        with self.lock:
            self.gone.add(key)


def client(url):
    """Returns SGLang's client of the server at `url`, as its hf3fs backend makes it."""
    return importlib.import_module(CLIENT_MODULE).Hf3fsGlobalMetadataClient(url)


def backend(url, folder, monkeypatch, file_size=8 << 20):
    """Describes SGLang's hf3fs backend, with plain files in the place of 3FS and its index in the server at `url`."""
    config = {
        "file_path_prefix": str(folder / "pages"),
        "file_size": file_size,
        "numjobs": 2,
        "entries": 8,
        "metadata_server_url": url,
    }
    path = folder / "hf3fs.json"
    path.write_text(json.dumps(config))
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    return settings.Backend("hf3fs", {"use_mock_hf3fs_client": True})
