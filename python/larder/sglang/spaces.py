# SPDX-License-Identifier: Apache-2.0
"""The spaces of one rank: for each state of SGLang's weights and list of pools, opened when first used.

One space for whole pages, one for each piece of pages that are in pieces (heads.py).
"""

import contextlib
import logging
import threading
from collections import OrderedDict
from typing import Callable

import larder
from larder.sglang.identity import described
from larder.sglang.patience import Deadline
from larder.sglang.pools import ANCHOR, MappedPool
from larder.sglang.ranks import Ranks

logger = logging.getLogger("larder.sglang")

_MAX_SPACES = 4


class NotReady(Exception):
    """No call can be made now: closed, or no anchor pool; the text says which."""


class OpenSpace:
    """The spaces of a page's pieces, with the host pools that they were opened for. Their use is counted by the table.

    spaces: as many as each of the pools has pieces, and in that order. namespace: the digest of all of them, in hex, as
    `larder store ls` shows it.
    """

    def __init__(self, spaces: list[larder.Space], pools: dict[str, MappedPool], identity: str) -> None:
        self.spaces = spaces
        self.pools = pools
        self.identity = identity
        self.namespace = spaces[0].digest().hex()
        self.users = 0
        self.is_retired = False

    @property
    def anchor(self) -> MappedPool:
        return self.pools[ANCHOR]

    def clear(self, timeout: float) -> None:
        """Drops the pages of the namespace, which all tensor-parallel ranks share."""
        self.spaces[0].clear(timeout)

    def close(self) -> None:
        """Closes all spaces, whatever one of them raises."""
        with contextlib.ExitStack() as stack:
            for space in self.spaces:
                stack.callback(space.close)


class SpaceTable:
    """Any thread. A space is closed when it is retired and its last user has left."""

    def __init__(self, store: larder.Store, identity: Callable[[], str], ranks: Ranks, pieces: int) -> None:
        self._store = store
        self._identity = identity
        self._ranks = ranks
        self._pieces = pieces
        self._changed = threading.Condition()
        self._pools: dict[str, MappedPool] = {}  # the anchor first; replaced, never changed
        self._open: OrderedDict[str, OpenSpace] = OrderedDict()
        self._in_use = 0
        self._is_closed = False

    def add_pool(self, pool: MappedPool) -> None:
        """From the next call on. Pages of the other pools stay valid: their identity does not depend on this one's."""
        with self._changed:
            pools = {**self._pools, pool.name: pool}
            self._pools = {name: pools[name] for name in sorted(pools, key=lambda name: name != ANCHOR)}
            retired = self._retire_all()
        _close(retired)

    def remove_pool(self, name: str) -> None:
        with self._changed:
            if name not in self._pools:
                return
            self._pools = {other: pool for other, pool in self._pools.items() if other != name}
            retired = self._retire_all()
        _close(retired)

    def enter(self) -> OpenSpace:
        """The space for SGLang's weights as they are now; leave() it. Raises NotReady, larder.Error, ValueError."""
        identity = self._identity()
        with self._changed:
            is_new = identity not in self._open
            current, retired = self._find(identity)
            self._enter(current)
        try:
            if is_new:
                model, version = described(identity)
                logger.info(
                    "larder: namespace %s: model %s, weight_version %s, rank %s", current.namespace, model, version,
                    self._ranks.folder,
                )  # fmt: skip
            _close(retired)
        except BaseException:
            self.leave(current)
            raise
        return current

    def leave(self, current: OpenSpace) -> None:
        with self._changed:
            current.users -= 1
            self._in_use -= 1
            if self._is_closed:
                self._changed.notify_all()
            is_last = current.is_retired and current.users == 0
        if is_last:
            current.close()

    def namespaces(self) -> dict[str, tuple[str, str]]:
        """Of the spaces that are open: model and weight version of each, the latest used last."""
        with self._changed:
            return {current.namespace: described(current.identity) for current in self._open.values()}

    def clear(self, deadline: Deadline) -> None:
        """Drops the pages of the present weights, and of those that are still open."""
        present = self.enter()
        try:
            with self._changed:
                spaces = list(self._open.values())
                for current in spaces:
                    self._enter(current)
            try:
                for current in spaces:
                    current.clear(deadline.left())
            finally:
                for current in spaces:
                    self.leave(current)
        finally:
            self.leave(present)

    def close(self, timeout: float) -> bool:
        """No call begins any more; waits for those in flight. False: some did not end in time."""
        with self._changed:
            self._is_closed = True
            retired = self._retire_all()
            is_quiet = self._changed.wait_for(lambda: self._in_use == 0, timeout)
        _close(retired)
        return is_quiet

    def _enter(self, current: OpenSpace) -> None:
        current.users += 1
        self._in_use += 1

    def _find(self, identity: str) -> tuple[OpenSpace, list[OpenSpace]]:
        if self._is_closed:
            raise NotReady("the backend is closed")
        if ANCHOR not in self._pools:
            raise NotReady("no usable anchor pool is registered")
        retired: list[OpenSpace] = []
        current = self._open.get(identity)
        if current is None:
            current = OpenSpace(self._open_spaces(identity), self._pools, identity)
            self._open[identity] = current
            while len(self._open) > _MAX_SPACES:
                _, oldest = self._open.popitem(last=False)
                oldest.is_retired = True
                retired += [oldest] if oldest.users == 0 else []
        self._open.move_to_end(identity)
        return current, retired

    def _open_spaces(self, identity: str) -> list[larder.Space]:
        opened: list[larder.Space] = []
        try:
            for tp in self._ranks.tp_of_pieces(self._pieces):
                space = self._store.space(
                    page_size=self._pools[ANCHOR].slots_per_page,
                    identity=identity,
                    pools=[pool.pool for pool in self._pools.values()],
                    tp=tp,
                    pp=self._ranks.pp,
                    cp=self._ranks.cp,
                )
                opened.append(space)
        except BaseException:
            for space in opened:
                space.close()
            raise
        return opened

    def _retire_all(self) -> list[OpenSpace]:
        """Takes all spaces out of the table; returns those that nobody uses, to be closed without the lock."""
        retired = list(self._open.values())
        self._open.clear()
        for current in retired:
            current.is_retired = True
        return [current for current in retired if current.users == 0]


def _close(retired: list[OpenSpace]) -> None:
    with contextlib.ExitStack() as stack:
        for current in retired:
            stack.callback(current.close)
