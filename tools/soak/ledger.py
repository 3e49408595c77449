# SPDX-License-Identifier: Apache-2.0
"""What happened: requests, windows in which they may fail, events, failures. Threads: any."""

import collections
import threading

from soak.clock import CLOCK

GRACE_SECONDS = 0.25  # a connection that was opened before the process was gone
STILL_GRACE_SECONDS = 10  # after the whole machine stood still

DISK_STOOD_STILL = "attaches for which the disk was too slow"


class Window:
    def __init__(self, server, what, begun):
        self.server, self.what, self.begun, self.ended = server, what, begun, None


class Ledger:
    """The first failure ends the soak, unless `keeps_going`."""

    def __init__(self, keeps_going=False, clock=CLOCK):
        self._clock = clock.now
        self._still_moments = clock.still_moments
        self._lock = threading.Lock()
        self._keeps_going = keeps_going
        self._windows = []
        self.begun = self._clock()
        self.is_over = threading.Event()
        self.counts = collections.defaultdict(collections.Counter)  # server -> what -> how often
        self.events = collections.Counter()
        self.failures = []
        self.slowest_seconds = 0.0

    def seconds(self):
        return self._clock() - self.begun

    def count(self, server, what, amount=1):
        with self._lock:
            self.counts[server][what] += amount

    def event(self, what):
        with self._lock:
            self.events[what] += 1

    def total(self, what):
        with self._lock:
            return sum(counter[what] for counter in self.counts.values())

    def fail(self, text):
        with self._lock:
            self.failures.append(f"[{self.seconds():.1f} s] {text}")
        if not self._keeps_going:
            self.is_over.set()

    def open_window(self, server, what):
        window = Window(server, what, self._clock())
        with self._lock:
            self._windows.append(window)
        return window

    def close_window(self, window):
        window.ended = self._clock()

    def stood_still(self, begun, ended):
        """Did the whole machine stand still at some time from `begun` to `ended`, or just before?"""
        return any(at <= ended and at + STILL_GRACE_SECONDS >= begun for at in list(self._still_moments))

    def is_excused(self, server, begun, ended, grace=GRACE_SECONDS):
        """Was there a window of `server` at some time from `begun` to `ended`?"""
        if self.stood_still(begun, ended):
            return True
        with self._lock:
            return any(w.server == server and w.begun <= ended and (w.ended is None or w.ended + grace >= begun)
                       for w in self._windows)

    def request_failed(self, server, begun, text):
        """Excused if it met a window, else a failure. True: excused."""
        ended = self._clock()
        if self.is_excused(server, begun, ended):
            self.count(server, "failed in windows")
            return True
        self.count(server, "failed outside windows")
        self.fail(f"{server}: a request failed outside every window, after {ended - begun:.2f} s: {text}")
        return False

    def request_done(self, seconds):
        with self._lock:
            self.slowest_seconds = max(self.slowest_seconds, seconds)
