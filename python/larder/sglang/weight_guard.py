# SPDX-License-Identifier: Apache-2.0
"""Keeps state of old weights from being stored under the identity of new ones.

SGLang sets a new weight version first and flushes its cache then, or not at all. What it holds until the flush was
computed with the old weights, before the store was attached or after, and nothing in a page says so. A flush clears the
host pools. So pages are taken only if the weights are those of the last flush (or of the start); until the next one
they are declined.

A trainer that flushes and then updates gets no more of it: what the device computed between the two is of the old
weights too, and SGLang shows its storage neither that nor when the update was.

A decode server that offloads never clears its host pool, and no other sign would do: what it computes rests on prompts
that prefill servers have computed, and nothing there says with which weights. So after an update it stores nothing.
"""

import threading
from typing import Any, Optional

from larder.sglang.identity import Identity, Weights

# What the guard before has left to the next attach: the engine, and its weights of the last flush; None: there were
# others since.
_left: tuple[Any, Optional[Weights]] = (None, None)


class WeightGuard:
    """Any thread."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        engine, weights = _left
        if engine is not None and engine is identity.engine():
            is_flushed = weights == identity.weights()
        else:
            is_flushed = identity.is_as_launched()
        self._flushed: Optional[str] = identity.text() if is_flushed else None
        self._pool: Any = None
        self._original: Any = None

    def close(self) -> None:
        """Leaves the pool alone, and what it knows to the next guard. A flush or an update in between shows there only
        if the weights then have another name."""
        global _left
        self.release()
        try:
            is_flushed = self.may_store(self._identity.text())
            _left = (self._identity.engine(), self._identity.weights() if is_flushed else None)
        except Exception:  # nobody knows the weights: nothing is stored until a flush
            _left = (self._identity.engine(), None)

    def watch(self, host_pool: Any) -> None:
        """Notices from now on when SGLang clears `host_pool`, the anchor: its clear() is wrapped, on this object alone.

        A pool without clear() is never flushed: after new weights nothing is stored until the server starts anew.
        """
        self.release()
        original = getattr(host_pool, "clear", None)
        if original is None:
            return

        def clear(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._note_flush()
            return result

        host_pool.clear = clear
        self._pool, self._original = host_pool, clear

    def release(self) -> None:
        """The pool is as it was, unless somebody else has wrapped it since."""
        if self._pool is not None and vars(self._pool).get("clear") is self._original:
            del self._pool.clear
        self._pool = self._original = None

    def may_store(self, identity: str) -> bool:
        """Whether what the engine holds was computed with the weights of `identity`, those of now.

        Call it wherever the identity is seen: an update that is taken back without a flush counts, too.
        """
        with self._lock:
            if identity != self._flushed:
                self._flushed = None
            return self._flushed is not None

    def _note_flush(self) -> None:
        try:
            now: Optional[str] = self._identity.text()
        except Exception:  # SGLang's flush goes on; nothing is stored until the next one
            now = None
        with self._lock:
            self._flushed = now
