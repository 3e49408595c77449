# SPDX-License-Identifier: Apache-2.0
"""What went wrong, counted and logged at most once a minute per kind; and what was moved, for SGLang's metrics."""

import logging
import threading
import time
from typing import Any, Callable, Optional

logger = logging.getLogger("larder.sglang")

_LOG_SECONDS = 60.0
# A store that is busy or gone is the operator's concern, not a defect.
_MAX_KINDS = 256


class Trouble:
    """Counters of failures by kind. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._next_log: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def note(self, kind: str, what: object, level: int = logging.ERROR) -> None:
        """Counts one failure. `what`: the text or the exception that the log shows."""
        with self._lock:
            if kind not in self._counts and len(self._counts) >= _MAX_KINDS:
                kind = "other"
            self._counts[kind] = self._counts.get(kind, 0) + 1
            now = self._clock()
            if now < self._next_log.get(kind, 0.0):
                self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
                return
            self._next_log[kind] = now + _LOG_SECONDS
            before = self._unlogged.pop(kind, 0)
        more = f" (and {before} more of this kind since the last such line)" if before else ""
        text = f"{type(what).__name__}: {what}" if isinstance(what, BaseException) else str(what)
        logger.log(level, "larder: %s: %s%s", kind, text, more)

    def counts(self) -> dict[str, int]:
        """Failures by kind since the start."""
        with self._lock:
            return dict(self._counts)


class Meter:
    """Pages and bandwidth of transfers since the last look, as SGLang's StorageMetrics has them. Any thread."""

    _KEPT = 4096  # transfers; older ones are forgotten when nobody looks

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: list[tuple[int, float]] = []
        self._writes: list[tuple[int, float]] = []

    def add(self, is_put: bool, pages: int, size: int, seconds: float) -> None:
        """size: bytes that were moved."""
        if pages == 0:
            return
        transfers = self._writes if is_put else self._reads
        with self._lock:
            if len(transfers) < self._KEPT:
                transfers.append((pages, size / max(seconds, 1e-9) / 1e9))

    def take(self) -> Optional[Any]:
        """A StorageMetrics of what was added since the last call; None if SGLang has no such class."""
        try:
            from sglang.srt.observability.metrics_collector import StorageMetrics
        except ImportError:
            return None
        with self._lock:
            reads, self._reads = self._reads, []
            writes, self._writes = self._writes, []
        metrics = StorageMetrics()
        metrics.prefetch_pgs.extend(pages for pages, _ in reads)
        metrics.prefetch_bandwidth.extend(rate for _, rate in reads)
        metrics.backup_pgs.extend(pages for pages, _ in writes)
        metrics.backup_bandwidth.extend(rate for _, rate in writes)
        return metrics
