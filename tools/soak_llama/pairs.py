# SPDX-License-Identifier: Apache-2.0
"""Both processes of a pair, and what they leave in files.

The proxy is a child of ours (soak.children.Child), its llama-server a child of that: it is found in /proc, its lives
are counted, and it is seen when it is another one.
"""

import os
import pathlib
import signal
import threading
import time

from soak import children
from soak.clock import CLOCK

GONE_SECONDS = 5  # for a llama-server whose proxy was killed: the kernel kills it, too
LOCK = "larder-proxy.lock"


def _status(pid):
    """(parent, state) of a process; None: it is not there."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rsplit(")", 1)[1].split()  # a name may have blanks and parentheses
    return int(fields[1]), fields[0]


def is_running(pid):
    status = _status(pid)
    return status is not None and status[1] not in "ZX"


def child_of(parent):
    """Its first living child, or None."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        status = _status(path.name)
        if status and status[0] == parent and status[1] not in "ZX":
            return int(path.name)
    return None


def slot_folder_of(pid):
    """What --slot-save-path of a llama-server says, or None."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    places = [at for at, word in enumerate(words) if word == "--slot-save-path"]
    return pathlib.Path(words[places[-1] + 1]) if places else None


class Foreign:
    """As much of a subprocess.Popen as soak.children.Life asks of."""

    returncode = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        return None if is_running(self.pid) else -1


class Server:
    """The llama-server of a proxy, as tables and samples see it. Threads: any."""

    def __init__(self, proxy):
        self.name, self.lives, self.is_meant_to_run, self.key = f"{proxy.name}-llama", [], False, None
        self.folder = None  # of slot files
        self._proxy, self._lock = proxy, threading.Lock()

    @property
    def life(self):
        return self.lives[-1] if self.lives else None

    def look(self):
        """True: it is another one than before."""
        proxy = self._proxy.life
        if proxy is None or not proxy.is_alive():
            return False
        with self._lock:
            if self.life and self.life.is_alive():
                return False
            pid = child_of(proxy.pid)
            folder = slot_folder_of(pid) if pid else None
            if folder is None:
                return False  # it is just being started
            if self.life and self.life.ended is None:
                self.life.ended = CLOCK.now()
            self.folder = folder
            self.lives.append(children.Life(len(self.lives) + 1, Foreign(pid)))
            return True

    def signal(self, number):
        """Nothing, if it is not there."""
        life = self.life
        if life and life.is_alive():
            try:
                os.kill(life.pid, number)
            except ProcessLookupError:
                pass

    def is_alive(self):
        return self.life is not None and self.life.is_alive()

    def wait_gone(self):
        """False: it is there after GONE_SECONDS; it is killed then."""
        limit = CLOCK.now() + GONE_SECONDS
        while self.is_alive():
            if CLOCK.now() > limit:
                self.signal(signal.SIGKILL)
                return False
            time.sleep(0.02)
        return True


class NoServer:
    """In place of the llama-server, of `larder serve`."""

    lives, life, folder = (), None, None

    def look(self):
        return False

    def signal(self, number):
        pass

    def is_alive(self):
        return True

    def wait_gone(self):
        return True


class Pair:
    """plan: settings.PairPlan. Of a ServePlan `proxy` is the server itself."""

    def __init__(self, plan, options, directory, spawner, port):
        self.plan, self.name = plan, plan.name
        log = directory / f"{plan.name}.log"
        self.proxy = children.Child(plan.name, plan.command(options, port), port, log, spawner)
        self.server = Server(self.proxy) if plan.has_server else NoServer()

    @property
    def processes(self):
        return [self.proxy, self.server] if self.plan.has_server else [self.proxy]

    def start(self):
        """Returns when the proxy listens, so its llama-server was proven. DidNotStart."""
        before = self.server.folder
        self.proxy.start()
        self.server.look()
        if not self.server.is_alive():
            raise children.DidNotStart(f"{self.name} serves, and has no llama-server")
        if before and before != self.server.folder and before.exists():
            raise children.DidNotStart(f"{self.name} was started, and {before} of the killed one is still there")

    def end(self):
        """Both, at once, whatever they do."""
        self.proxy.kill()
        self.server.signal(signal.SIGKILL)


def size_of(folder):
    """Bytes of all files in it."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_size
        except OSError:
            pass  # it has just gone
    return total


def slot_files(folder):
    """Names of files that hold a slot, but those that each slot has for its restores, which stay."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name != LOCK and not name.startswith("larder-restore-"))


def restore_files(folder):
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith("larder-restore-"))
    except OSError:
        return []


def why_too_much(plan, folder, slots):
    """Of the store and the folder of slot files at any time: [] or words."""
    found = []
    stored = size_of(plan.store)
    if stored > plan.store_bytes:
        found.append(f"{plan.name}: the store has {stored} bytes, and --store-size says {plan.store_bytes}")
    if folder is None:
        return found
    # Saves that wait to be taken apart (2 slots + 4), one that is, one of each slot, three of the proof.
    most = 3 * slots + 8
    saved, restored = slot_files(folder), restore_files(folder)
    if len(saved) > most:
        found.append(f"{plan.name}: {len(saved)} slot files in {folder}, {most} are allowed: {saved[:6]} ...")
    if len(restored) > slots:
        found.append(f"{plan.name}: {len(restored)} files of restores in {folder}, one for each slot is allowed")
    return found
