# SPDX-License-Identifier: Apache-2.0
"""Time that stands still while the whole machine does.

A laptop that sleeps, or somebody who stops all of its processes for a minute, is no trouble that servers are tested
for: timeouts of clients and servers end in the same moment then. A thread ticks twice a second; where two looks at the
clock lie further apart than STILL_SECONDS, that time did not pass.
"""

import threading
import time

STILL_SECONDS = 3.0
TICK_SECONDS = 0.5


class Clock:
    """Threads: any."""

    def __init__(self, source=time.monotonic):
        self._source, self._lock = source, threading.Lock()
        self._last = source()
        self.still_seconds = 0.0
        self.still_moments = []  # of this clock

    def now(self):
        with self._lock:
            now = self._source()
            gap, self._last = now - self._last, now
            if gap > STILL_SECONDS:
                self.still_seconds += gap
                self.still_moments.append(now - self.still_seconds)
            return now - self.still_seconds

    def _tick(self):
        while True:
            time.sleep(TICK_SECONDS)
            self.now()

    def start(self):
        threading.Thread(target=self._tick, name="clock", daemon=True).start()


CLOCK = Clock()
