# SPDX-License-Identifier: Apache-2.0
"""Stores and spaces."""

import atexit
import json
import os
import time
import weakref
from types import TracebackType
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from larder import _native
from larder._types import Integers, Key, Keys
from larder.errors import Error
from larder.pages import Exists, Need, Page, Pool

Log = Callable[[int, str, str], object]

# Largest numbers of keys and pages in one call.
MAX_KEYS = 65536
MAX_PAGES = 65536

# What is still open when the interpreter ends is closed then, for this long at most, all together.
_CLOSE_AT_EXIT_SECONDS = 5.0
_open_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()

_PUT_DURABLE = 1
_PUT_RETRY = 2
_POOL_REPLICATED = 1


def _close_at_exit() -> None:
    end = time.monotonic() + _CLOSE_AT_EXIT_SECONDS
    for store in list(_open_stores):
        try:
            store.close(max(0.1, end - time.monotonic()))
        except Error:
            pass  # the process ends; what the disk still works on is lost with it


class Store:
    """An open storage backend.

    backend: one of :func:`larder.backends`, such as "file" or "memory". config: its options (see
    :func:`larder.option_help`) as a mapping, or a JSON object as text; a path may be a str or a pathlib.Path.
    memory: (address, size) of regions where payloads mostly lie, aligned to 4096 bytes: registered with the device
    once; they have to live until :meth:`close`.
    log: called as ``log(level, where, message)``, level 0 debug to 3 error, one line after the other on a thread of its
    own; of lines that come too fast some are lost, and counted. Of several open stores with a log the newest has the
    lines of all. It is let go when the store is closed. None: silent.

    Raises :class:`larder.Error`: INVALID_ARGUMENT for an unknown backend or option (the message lists the known ones),
    CONFLICT if another process has the store, UNAVAILABLE if it cannot be reached, read or written.
    Opening a large store reads its index: about 0.2 us per stored page.
    In a child of fork() its calls are errors, and closing it does nothing.
    """

    def __init__(
        self,
        backend: str,
        config: Union[Mapping[str, Any], str, None] = None,
        memory: Sequence[tuple[int, int]] = (),
        log: Optional[Log] = None,
    ) -> None:
        if log is not None and not callable(log):
            raise TypeError(f"log is {log!r}, which cannot be called")
        text = config if isinstance(config, str) else json.dumps(dict(config or {}), default=os.fspath)
        self._native = _native.Store(backend, text, list(memory), log)
        _open_stores.add(self)

    def space(
        self,
        *,
        page_size: int,
        identity: str,
        pools: Sequence[Pool],
        adapter: str = "",
        salt: str = "",
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        cp: tuple[int, int] = (0, 1),
    ) -> "Space":
        """Describes a model to the store. Cheap; does no I/O.

        page_size: tokens per page of keys. identity: text with all that gives the state its meaning besides the layouts
        (model, revision, digest of the weights, quantization ...); not empty. adapter, salt: "" for none.
        tp, pp, cp: (rank, size). pools: 1 to 55; the first is the anchor.
        Raises Error INVALID_ARGUMENT. The store closes its spaces with itself.
        """
        return Space(self, page_size, identity, pools, adapter, salt, (*tp, *pp, *cp))

    def stats(self) -> dict[str, Any]:
        """Statistics; docs/c_api.md lists the keys."""
        out = json.loads(self._native.text(False))
        assert isinstance(out, dict)
        return out

    def metrics(self) -> str:
        """The statistics as Prometheus text."""
        return self._native.text(True)

    def add_memory(self, regions: Sequence[tuple[int, int]]) -> None:
        """Registers more (address, size) regions in which payloads mostly lie: of use with the option `zero_copy`.

        They have to live until :meth:`close`. Raises Error UNSUPPORTED where the backend or the system gains nothing by
        it, OVERLOADED where the system refuses (its limit of locked memory); transfers work all the same.
        """
        self._native.add_memory(list(regions))

    def clear(self, timeout: Optional[float] = None) -> None:
        """Drops every page of every space. Raises Error UNSUPPORTED if the backend cannot."""
        self._native.clear(timeout or 0.0)

    def close(self, timeout: Optional[float] = None) -> None:
        """Closes the spaces and the store; waits for calls in other threads and for what the disk works on.

        timeout: for both together; None: for calls no limit, then the store's own. Closing again does nothing. Raises
        Error DEADLINE_EXCEEDED if something still runs then, or another thread is still closing it: the store keeps the
        memory that it was lent, takes no more calls, and may be closed again.
        """
        self._native.close(timeout or 0.0)
        _open_stores.discard(self)

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()


_ANCHOR_ALONE = [(0, 0, 0)]  # all pages of the first pool


class Space:
    """A namespace of a store: one model on one rank. Made by :meth:`Store.space`.

    Pools are named; None is the anchor. ``timeout``: seconds, None or 0 for the store's own; every call ends by then.
    ``cancel``: a :class:`larder.Cancel` that ends the call early.
    """

    def __init__(
        self,
        store: Store,
        page_size: int,
        identity: str,
        pools: Sequence[Pool],
        adapter: str,
        salt: str,
        ranks: tuple[int, int, int, int, int, int],
    ) -> None:
        self._store = store  # where the garbage collector finds the log function, which may have this space
        self.pools: tuple[Pool, ...] = tuple(pools)
        self._index = {pool.name: i for i, pool in enumerate(self.pools)}
        described = [
            (p.name, p.page_bytes, p.layout, int(p.hit_policy), p.trailing_pages, _POOL_REPLICATED * p.replicated)
            for p in self.pools
        ]
        self._native = _native.Space(store._native, page_size, identity, adapter, salt, ranks, described)

    def pool_index(self, pool: Optional[str]) -> int:
        """The place of a pool in the list that the space was opened with. KeyError: it has no such pool."""
        return 0 if pool is None else self._index[pool]

    def exists(
        self,
        keys: Keys,
        needs: Optional[Sequence[Need]] = None,
        timeout: Optional[float] = None,
        *,
        present: bool = False,
        cancel: Optional[_native.Cancel] = None,
    ) -> Exists:
        """Which prefixes of a chain of pages are restorable.

        keys: the chain from its first page, at most 65536. needs: the pools that matter, and how; the anchor is always
        one of them. None: all pools, as they were described. present: also answer page by page.
        Does not reach the disk on a local store. Raises Error.
        """
        asked = None
        if needs is not None:
            asked = [(self._index[need.pool], int(need.hit_policy), need.trailing_pages) for need in needs]
        restorable, words = self._native.exists(keys, asked, timeout or 0.0, present, cancel)
        count = len(keys) // 32 if isinstance(keys, bytes) else len(keys)
        masks: dict[str, bytes] = {}
        if present:
            width = (count + 63) // 64 * 8
            names = [pool.name for pool in self.pools] if needs is None else [need.pool for need in needs]
            masks = {name: words[i * width : (i + 1) * width] for i, name in enumerate(names)}
        return Exists(count, restorable, masks)

    def leading_pages(
        self, keys: Keys, timeout: Optional[float] = None, *, cancel: Optional[_native.Cancel] = None
    ) -> int:
        """How many pages from the first on the anchor has; as exists() for the anchor alone, but quicker."""
        restorable, _ = self._native.exists(keys, _ANCHOR_ALONE, timeout or 0.0, False, cancel)
        return int.from_bytes(restorable, "little").bit_length()

    def get(
        self,
        keys: Keys,
        slots: Integers,
        layout: _native.PageLayout,
        *,
        pool: Optional[str] = None,
        timeout: Optional[float] = None,
        cancel: Optional[_native.Cancel] = None,
    ) -> list[int]:
        """Reads pages of one pool into a host pool.

        keys: at most 65536. slots: the first slot of each page, as many as keys. layout: where the host pool's pages
        lie; the memory is lent for the call. Returns a :class:`larder.Code` per page: OK, or what became of it; the
        memory of a page that is not OK holds what it held, or nothing of use. Raises Error for the call as a whole.
        """
        return self._native.get(keys, self.pool_index(pool), slots, layout, timeout or 0.0, cancel)

    def put(
        self,
        keys: Keys,
        slots: Integers,
        layout: _native.PageLayout,
        *,
        pool: Optional[str] = None,
        parent: Optional[Key] = None,
        durable: bool = False,
        retry: bool = False,
        timeout: Optional[float] = None,
        cancel: Optional[_native.Cancel] = None,
    ) -> list[int]:
        """Stores pages of one pool out of a host pool, each for itself. Arguments and answer as of :meth:`get`.

        keys are consecutive pages of a chain; parent: the key before the first, None if unknown or at the head.
        durable: answer only when the pages survive a power cut. retry: what fails for a reason that may pass is copied
        into a queue of the store, written later, and answered OK; with durable, answered with the failure all the same.
        """
        flags = _PUT_DURABLE * durable + _PUT_RETRY * retry
        return self._native.put(keys, self.pool_index(pool), slots, layout, parent, flags, timeout or 0.0, cancel)

    def get_pages(
        self,
        pages: Sequence[Page],
        *,
        timeout: Optional[float] = None,
        cancel: Optional[_native.Cancel] = None,
    ) -> list[int]:
        """Reads pages of any pools into memory that each page names. Returns a :class:`larder.Code` per page."""
        described = [(self.pool_index(page.pool), page.key, None, page.data) for page in pages]
        return self._native.get_pages(described, timeout or 0.0, cancel)

    def put_pages(
        self,
        pages: Sequence[Page],
        *,
        durable: bool = False,
        retry: bool = False,
        timeout: Optional[float] = None,
        cancel: Optional[_native.Cancel] = None,
    ) -> list[int]:
        """Stores pages of any pools. Successive pages with one key are a group: all of it becomes visible, or nothing;
        within a group the anchor comes last. Parents before children. Returns a :class:`larder.Code` per page."""
        flags = _PUT_DURABLE * durable + _PUT_RETRY * retry
        described = [(self.pool_index(page.pool), page.key, page.parent, page.data) for page in pages]
        return self._native.put_pages(described, flags, timeout or 0.0, cancel)

    def digest(self) -> bytes:
        """The 32 bytes of the namespace digest."""
        return self._native.digest()

    def clear(self, timeout: Optional[float] = None) -> None:
        """Drops every page of the namespace: of all its pools, tensor-parallel ranks included."""
        self._native.clear(timeout or 0.0)

    def close(self) -> None:
        """Waits for calls in other threads and closes. Closing again does nothing."""
        self._native.close()

    def __enter__(self) -> "Space":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()


atexit.register(_close_at_exit)
