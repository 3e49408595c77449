# SPDX-License-Identifier: Apache-2.0
"""Processes: starting, signals, health, logs, and the memory that 3FS leaves behind when a process is killed.

Every child ends when this process ends, however it ends: the kernel kills it (setpriv --pdeathsig). The signal comes
when the *thread* ends that started the child, so one thread, which lasts as long as the process, starts them all.
"""

import os
import pathlib
import queue
import random
import signal
import socket
import subprocess
import threading
import time

from soak import http
from soak.clock import CLOCK

START_SECONDS = 60
STOP_SECONDS = 100  # serve itself gives open requests 10 s and backups 60 s
SETTLE_SECONDS = 5
SHARED_MEMORY = "/dev/shm/hf3fs-iov-"


class DidNotStart(Exception):
    """The process ended, or was not healthy in time."""


class Spawner:
    def __init__(self):
        self._wanted = queue.Queue()
        threading.Thread(target=self._work, name="spawner", daemon=True).start()

    def _work(self):
        while True:
            command, log, answer = self._wanted.get()
            try:
                answer.put(subprocess.Popen(["setpriv", "--pdeathsig", "SIGKILL", *command], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True))
            except OSError as error:
                answer.put(error)

    def spawn(self, command, log):
        answer = queue.Queue()
        self._wanted.put((command, log, answer))
        process = answer.get()
        if isinstance(process, OSError):
            raise process
        return process


class Ports:
    """Free ports of the loopback address, below those that the kernel gives to connections: nobody takes the port of
    a server while it is down, and no client connects to itself."""

    def __init__(self):
        low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        self._range = (10_000, low - 1) if low > 11_000 else (low, 60_999)
        self._given = set()

    def take(self):
        for _ in range(1000):
            port = random.randint(*self._range)
            if port not in self._given and self._is_free(port):
                self._given.add(port)
                return port
        raise OSError("no free port was found")

    @staticmethod
    def _is_free(port):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True


class Life:
    """From one start of a process to its end."""

    def __init__(self, number, process):
        self.number, self.process = number, process
        self.judged_from = CLOCK.now()  # later once storage has been attached (watch.py)
        self.attaches = 0
        self.ended = None
        self.samples = []  # watch.Sample
        self.counters = {}  # the last that the server said about itself

    @property
    def pid(self):
        return self.process.pid

    def is_alive(self):
        return self.process.poll() is None

    def attached(self):
        """Storage was attached to it while it ran."""
        self.attaches += 1
        if self.attaches == 1:
            self.judged_from = CLOCK.now() + SETTLE_SECONDS


class Child:
    """A server and its lives, one after another, all on one port. Threads: one starts and ends it, all may look."""

    def __init__(self, name, command, port, log_path, spawner, key=None):
        self.name, self.command, self.port, self.log_path, self.key = name, command, port, log_path, key
        self._spawner = spawner
        self.lives = []
        self.is_meant_to_run = False

    @property
    def life(self):
        return self.lives[-1] if self.lives else None

    def start(self):
        """Returns when it is healthy. DidNotStart."""
        with open(self.log_path, "a", encoding="utf-8") as log:
            log.write(f"--- life {len(self.lives) + 1} begins\n")
            log.flush()
            life = Life(len(self.lives) + 1, self._spawner.spawn(self.command, log))
        self.lives.append(life)
        limit = CLOCK.now() + START_SECONDS
        while CLOCK.now() < limit:
            if not life.is_alive():
                life.ended = CLOCK.now()
                raise DidNotStart(f"{self.name} ended with {life.process.returncode} while starting")
            if self.is_healthy():
                self.is_meant_to_run = True
                return
            time.sleep(0.05)
        self.kill()
        raise DidNotStart(f"{self.name} was not healthy after {START_SECONDS} s")

    def is_healthy(self):
        try:
            return http.call(self.port, "GET", "/health", timeout=2)[0] == 200
        except http.Failed:
            return False

    def kill(self):
        """kill -9; returns when it is gone."""
        self.is_meant_to_run = False
        if self.life and self.life.is_alive():
            self.life.process.kill()
            self.life.process.wait()
        if self.life and self.life.ended is None:
            self.life.ended = CLOCK.now()

    def terminate(self):
        """SIGTERM; returns the exit code, or None if it did not end in time (it is killed then)."""
        self.is_meant_to_run = False
        self.life.process.send_signal(signal.SIGTERM)
        limit = CLOCK.now() + STOP_SECONDS
        while self.life.is_alive():
            if CLOCK.now() > limit:
                self.kill()
                return None
            time.sleep(0.02)
        self.life.ended = CLOCK.now()
        return self.life.process.returncode

    def pause(self, is_paused):
        self.life.process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def log_tail(self, lines=12):
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join("    " + line for line in text.splitlines()[-lines:])


def mapped_memory(pid):
    """Names of the 3FS memory that a process has mapped."""
    try:
        text = pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    return {word for word in text.split() if word.startswith(SHARED_MEMORY)}


def unused_memory(mount, children):
    """3FS memory that has a link under `mount`, and that no living child has mapped: (link, name) of each."""
    in_use = set()
    for child in children:
        if child.life and child.life.is_alive():
            in_use |= mapped_memory(child.life.pid)
    found = []
    for link in (mount / "3fs-virt" / "iovs").iterdir():
        try:
            name = os.readlink(link)
        except OSError:
            continue
        if name.startswith(SHARED_MEMORY) and name not in in_use:
            found.append((link, name))
    return found


def remove_unused_memory(mount, children):
    """What the 3FS daemon does when a process dies. Returns how many there were in memory."""
    count = 0
    for link, name in unused_memory(mount, children):
        link.unlink(missing_ok=True)
        if os.path.exists(name):
            os.unlink(name)
            count += 1
    return count
