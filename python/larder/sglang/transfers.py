# SPDX-License-Identifier: Apache-2.0
"""Moves pages between host pools and a space, whatever way the host pool offers."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional, Sequence

import larder
from larder.sglang import tensors
from larder.sglang.patience import Deadline
from larder.sglang.pools import MappedPool, Reach
from larder.sglang.spaces import OpenSpace
from larder.store import MAX_PAGES

# Pages that are copied at once where a host pool can only be copied.
_COPIED_AT_ONCE = 64


@dataclass(frozen=True)
class Move:
    """What a transfer is done with. deadline: of all calls of the store. piece: of each page, the one to move."""

    current: OpenSpace
    is_put: bool
    deadline: Deadline
    cancel: Any  # larder.Cancel
    piece: int = 0

    @property
    def space(self) -> larder.Space:
        return self.current.spaces[self.piece]

    def call(self, count: int, run: Callable[..., list[int]]) -> list[int]:
        """One call of the store about `count` pages: `run`, with its terms. Late reads are not begun; late writes are,
        because the store takes their bytes."""
        if self.deadline.is_over and not self.is_put:
            return [int(larder.Code.DEADLINE_EXCEEDED)] * count
        if self.is_put:
            return run(retry=True, timeout=self.deadline.left(), cancel=self.cancel)
        codes = run(timeout=self.deadline.left(), cancel=self.cancel)
        if larder.Code.OK in codes:
            self.deadline.note_progress()
        return codes


def move_pages(
    move: Move, pool: MappedPool, keys: Sequence[str], host_indices: Any, parent: Optional[str]
) -> list[int]:
    """Reads or writes pages of one pool; keys are consecutive pages of a chain, parent the key before them.

    host_indices: slots_per_page slots per key. Returns a larder.Code per key. Raises ValueError, larder.Error.
    """
    count = len(keys)
    if host_indices is None or len(host_indices) != count * pool.slots_per_page:
        given = "no" if host_indices is None else str(len(host_indices))
        raise ValueError(f"{pool.name}: {given} host indices for {count} pages of {pool.slots_per_page} slots")
    if pool.reach is Reach.LISTED:
        return _move_listed(move, pool, keys, host_indices, parent)
    slots = tensors.first_slots(host_indices, pool.slots_per_page)
    if pool.reach is Reach.COPIED:
        return _move_copied(move, pool, keys, slots, parent)
    codes: list[int] = []
    for begin in range(0, count, MAX_PAGES):
        some, there = keys[begin : begin + MAX_PAGES], slots[begin : begin + MAX_PAGES]
        before = keys[begin - 1] if begin else parent
        codes += _in_pieces(move, lambda part: _move_mapped(part, pool, some, there, before))
    return codes


def move_tensors(move: Move, pool: MappedPool, keys: Sequence[str], flat_tensors: Sequence[Any]) -> list[int]:
    """Reads or writes pages from or into flat tensors in CPU memory, one per key; None among them is skipped (a miss).

    Raises ValueError if the pool's pages have another order of bytes than flat ones.
    """
    if not pool.is_flat:
        raise ValueError(f"pages of {pool.name} are not stored as flat ones: use interface_v1")
    places = [i for i, tensor in enumerate(flat_tensors) if tensor is not None]
    for i in places:
        size = tensors.tensor_bytes(flat_tensors[i])
        if size != pool.page_bytes:
            raise ValueError(f"{pool.name}: a tensor of {size} bytes for a page of {pool.page_bytes}")

    def move_piece(part: Move) -> list[int]:
        pages = []
        for i in places:
            begin = int(flat_tensors[i].data_ptr())
            data = [(begin + offset, size) for offset, size in pool.pieces[part.piece].flat if size]
            pages.append(larder.Page(keys[i], data or None, pool.name, keys[i - 1] if i and move.is_put else None))
        return _move_described(part, pages)

    codes = [int(larder.Code.NOT_FOUND)] * len(keys)
    for place, code in zip(places, _in_pieces(move, move_piece)):
        codes[place] = code
    return codes


def _in_pieces(move: Move, move_piece: Callable[[Move], list[int]]) -> list[int]:
    """Moves each piece of the same pages. A page is moved when all its pieces are; else the code of the first that is
    not says what became of it."""
    if len(move.current.spaces) == 1:
        return move_piece(move)
    codes: list[int] = []
    for piece in range(len(move.current.spaces)):
        more = move_piece(dataclasses.replace(move, piece=piece))
        codes = [before if before != larder.Code.OK else after for before, after in zip(codes, more)] if piece else more
    return codes


def _move_mapped(
    move: Move, pool: MappedPool, keys: Sequence[str], slots: list[int], parent: Optional[str]
) -> list[int]:
    space, layout = move.space, pool.pieces[move.piece].layout
    assert layout is not None
    if move.is_put:
        run = partial(space.put, keys, slots, layout, pool=pool.name, parent=parent)
    else:
        run = partial(space.get, keys, slots, layout, pool=pool.name)
    return move.call(len(keys), run)


def _move_described(move: Move, pages: list[larder.Page]) -> list[int]:
    codes: list[int] = []
    for begin in range(0, len(pages), MAX_PAGES):
        some = pages[begin : begin + MAX_PAGES]
        codes += move.call(len(some), partial(move.space.put_pages if move.is_put else move.space.get_pages, some))
    return codes


def _move_listed(
    move: Move, pool: MappedPool, keys: Sequence[str], host_indices: Any, parent: Optional[str]
) -> list[int]:
    addresses, sizes = pool.host_pool.get_page_buffer_meta(host_indices)
    width = len(addresses) // max(1, len(keys))
    if width * len(keys) != len(addresses) or len(addresses) != len(sizes):
        raise ValueError(f"{pool.name}: {len(addresses)} segments for {len(keys)} pages")
    segments = [(int(address), int(size)) for address, size in zip(addresses, sizes)]
    pages = []
    for i, key in enumerate(keys):
        before = (keys[i - 1] if i else parent) if move.is_put else None
        pages.append(larder.Page(key, segments[i * width : (i + 1) * width], pool.name, before))
    return _move_described(move, pages)


def _move_copied(
    move: Move, pool: MappedPool, keys: Sequence[str], slots: list[int], parent: Optional[str]
) -> list[int]:
    codes: list[int] = []
    for begin in range(0, len(keys), _COPIED_AT_ONCE):
        some, there = keys[begin : begin + _COPIED_AT_ONCE], slots[begin : begin + _COPIED_AT_ONCE]
        if move.is_put:
            copies = [tensors.flat_on_cpu(pool.host_pool.get_data_page(slot, flat=True)) for slot in there]
        else:
            template = pool.host_pool.get_dummy_flat_data_page()
            copies = [tensors.empty_like(template) for _ in there]
        answer = move_tensors(move, pool, some, copies)
        if not move.is_put:
            for slot, copy, code in zip(there, copies, answer):
                if code == larder.Code.OK:
                    pool.host_pool.set_from_flat_data_page(slot, copy)
        codes += answer
    return codes
