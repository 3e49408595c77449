# SPDX-License-Identifier: Apache-2.0
"""How long SGLang's threads wait for a store: one deadline for all that a call of SGLang's asks of it.

SGLang waits for its storage threads when it flushes and detaches, 10 s, and ends the server then. So a store that hangs
must not hold a thread once per pool, or per slice of its pages, and not in full with every batch.
"""

import contextlib
import time
from typing import Iterator

# A call has as much, however late the ones before it were: the store then takes the bytes of a put to write later.
_LEAST_SECONDS = 0.02
_LITTLE_SECONDS = 0.1  # for what comes after something late
_FULL_AGAIN = 8  # after so many late ones in a row


class Deadline:
    """A moment at which all work that shares it shall end."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self.was_asked = False

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._end

    def left(self) -> float:
        """Seconds for the next call of the store, _LEAST_SECONDS at least."""
        self.was_asked = True
        return max(_LEAST_SECONDS, self._end - time.perf_counter())


class Patience:
    """Of one kind of work: `full` seconds; little after work that was late, and now and then in full again, in which a
    store that is slow but well shows it. Any thread."""

    def __init__(self, full: float) -> None:
        self._full = full
        self._late = 0  # in a row

    def seconds(self) -> float:
        """Of the next work."""
        return self._full if self._late % _FULL_AGAIN == 0 else min(self._full, _LITTLE_SECONDS)

    @contextlib.contextmanager
    def deadline(self) -> Iterator[Deadline]:
        """For work that is done inside; notes whether it was late, if it came to the store at all."""
        deadline = Deadline(self.seconds())
        try:
            yield deadline
        finally:
            if deadline.was_asked:
                self._late = self._late + 1 if deadline.is_over else 0
