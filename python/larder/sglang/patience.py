# SPDX-License-Identifier: Apache-2.0
"""How long SGLang's threads wait for a store: one deadline for all that a call of SGLang's asks of it.

SGLang waits for its storage threads when it flushes and detaches, 10 s, and ends the server then. The thread that
writes a node looks up only after the last batch, and a store that hangs fails no write: it takes the bytes, to write
them later. So all pools and slices of a call share one deadline; a thread waits in full for one call in 30 s, and a
little for the others. With the 5 s of a write it has made 200 calls within 10 s, of 128 pages each if pages are whole.
A read that is late but brought pages shows a store that is slow and well: the next one has all the time, too.
"""

import contextlib
import time
from typing import Callable, Iterator, Optional

# A call has as much, however late the ones before it were: the store then takes the bytes of a put to write later.
LEAST_SECONDS = 0.02
_LITTLE_SECONDS = 0.1  # for what comes after something late
_FULL_AGAIN_SECONDS = 30.0  # after the last full wait that was in vain

Clock = Callable[[], float]


class Deadline:
    """A moment at which all work that shares it shall end."""

    def __init__(self, seconds: float, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self.was_asked = False
        self.has_progress = False

    def note_progress(self) -> None:
        """The store has done a part of the work. Not for writes: their bytes are taken whether it works or not."""
        self.has_progress = True

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end

    def left(self) -> float:
        """Seconds for the next call of the store, LEAST_SECONDS at least."""
        self.was_asked = True
        return max(LEAST_SECONDS, self._end - self._clock())


class Patience:
    """Of one kind of work: `full` seconds. After work that was late and without progress `little`, for 30 s; then
    `full` once more, in which a store that is slow but well shows it. Work that is in time, or late with progress, has
    `full` again at once. Any thread."""

    def __init__(self, full: float, little: float = _LITTLE_SECONDS, clock: Clock = time.perf_counter) -> None:
        self._full = full
        self._little = min(full, little)
        self._clock = clock
        self._full_from: Optional[float] = None  # None: the last work was in time

    def seconds(self) -> float:
        """Of the next work."""
        full_from = self._full_from
        return self._full if full_from is None or self._clock() >= full_from else self._little

    @contextlib.contextmanager
    def deadline(self) -> Iterator[Deadline]:
        """For work that is done inside; notes whether it was late, if it came to the store at all."""
        seconds = self.seconds()
        deadline = Deadline(seconds, self._clock)
        try:
            yield deadline
        finally:
            if deadline.was_asked and (deadline.has_progress or not deadline.is_over):
                self._full_from = None
            elif deadline.was_asked and seconds == self._full:
                self._full_from = self._clock() + _FULL_AGAIN_SECONDS
