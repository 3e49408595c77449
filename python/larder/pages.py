# SPDX-License-Identifier: Apache-2.0
"""The plain values that a space is described with and answers with."""

import enum
from dataclasses import dataclass
from typing import Optional

from larder import _native
from larder._types import Data, Key


class HitPolicy(enum.IntEnum):
    """What a request that resumes after p pages needs of a pool."""

    ALL_PAGES = 0  # all pages of [0, p)
    TRAILING_PAGES = 1  # the last n of them (fewer, if p < n)


@dataclass(frozen=True)
class Pool:
    """One kind of a model's state.

    name: 1 to 63 characters of [a-z0-9_.-]. page_bytes: of one page, below 4 GiB; 0: a marker without bytes.
    layout: text with all that gives the bytes their meaning (dtype, shape, order of dimensions); pages under another
    text are other pages. trailing_pages: with TRAILING_PAGES 1 or more, else 0.
    replicated: the same bytes on every tensor-parallel rank; they are stored once for all of them.
    """

    name: str
    page_bytes: int
    layout: str
    hit_policy: HitPolicy = HitPolicy.ALL_PAGES
    trailing_pages: int = 0
    replicated: bool = False


@dataclass(frozen=True)
class Need:
    """What a query needs of one pool, where it differs from the pool's own description."""

    pool: str
    hit_policy: HitPolicy = HitPolicy.ALL_PAGES
    trailing_pages: int = 0


@dataclass(frozen=True)
class Page:
    """One page to read or to write.

    data: where its bytes are: a buffer (bytearray, numpy array ...; writable for a read), or a sequence of buffers and
    (address, size); together page_bytes long. None for a marker. A tensor of PyTorch in CPU memory is
    ``[(tensor.data_ptr(), tensor.nbytes)]``. The memory is lent for the call, and the caller's again when it returns.
    pool: a name; None: the anchor. parent (writes): key of the page before it in the chain, or None.
    """

    key: Key
    data: Data = None
    pool: Optional[str] = None
    parent: Optional[Key] = None


class Exists:
    """Which prefixes of a chain are restorable, and which pages are there."""

    __slots__ = ("_count", "_present", "_restorable")

    def __init__(self, count: int, restorable: bytes, present: dict[str, bytes]) -> None:
        self._count = count
        self._restorable = restorable
        self._present = present

    @property
    def restorable(self) -> list[int]:
        """Every p after which all pools that were asked for can resume, ascending; p counts pages."""
        return _native.lengths(self._restorable)

    @property
    def restorable_mask(self) -> int:
        """The same as an integer: bit p - 1 is set. Ranks that must agree take the AND of theirs."""
        return int.from_bytes(self._restorable, "little")

    @property
    def best(self) -> int:
        """The longest restorable prefix in pages; 0: none."""
        return self.restorable_mask.bit_length()

    @property
    def present(self) -> dict[str, list[bool]]:
        """For each pool that was asked for, whether it has page i. Empty unless asked for (``present=True``)."""
        return {
            pool: [bool(words[i // 8] >> (i % 8) & 1) for i in range(self._count)]
            for pool, words in self._present.items()
        }

    def present_mask(self, pool: str) -> int:
        """The pages of one pool as an integer: bit i is set if it has page i."""
        return int.from_bytes(self._present[pool], "little")

    def __and__(self, other: "Exists") -> "Exists":
        """What both have, of one chain and the same pools: for pages that are stored in pieces, each in a space."""
        if self._count != other._count or self._present.keys() != other._present.keys():
            raise ValueError("answers to different questions")
        return Exists(
            self._count,
            _both(self._restorable, other._restorable),
            {pool: _both(words, other._present[pool]) for pool, words in self._present.items()},
        )

    def __repr__(self) -> str:
        return f"Exists(best={self.best} of {self._count}, restorable={len(self.restorable)})"


def _both(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") & int.from_bytes(other, "little")).to_bytes(len(one), "little")
