# SPDX-License-Identifier: Apache-2.0
"""Pages in pieces, for servers with other numbers of tensor-parallel ranks (SGLang's tp_lcm_size, layout page_head).

With tp_lcm_size L each page of rank r of T is in L / T pieces: piece i has the heads of rank r * L / T + i of L ranks.
A piece is stored as the page of that rank: with its layout, its size and its place among L. So a server with L ranks,
whose pages are whole, shares them too. A page is there when all its pieces are.

    page_head: [K, V][page][head][token][layer][dim]     the heads of a piece are two runs of bytes, in K and in V
"""

from dataclasses import dataclass
from typing import Any, Optional

import larder
from larder.sglang import tensors
from larder.sglang.layouts import device_layouts

LAYOUT = "page_head"

_REMEDY = "to store the pool, leave tp_lcm_size out: then servers with other numbers of ranks find nothing of this one"


@dataclass(frozen=True)
class Piece:
    """Of every page of a host pool. flat: its (offset, size) in the bytes of a page that is one run."""

    layout: Optional[larder.PageLayout]  # None: pages have no fixed places
    flat: tuple[tuple[int, int], ...]


def cut(host_pool: Any, layout: Optional[larder.PageLayout], pieces: int) -> tuple[Piece, ...]:
    """The pieces of the host pool's pages, given where the pages lie. Raises ValueError: they are not in pieces."""
    heads = getattr(host_pool, "head_num", None)
    if layout is None:
        raise ValueError(f"tp_lcm_size: its pages have no fixed places in memory, so they cannot be divided; {_REMEDY}")
    if not isinstance(heads, int) or getattr(host_pool, "layout", None) != LAYOUT:
        raise ValueError(
            f"tp_lcm_size: its pages are no heads in layout {LAYOUT}, which alone are divided among ranks; {_REMEDY}"
        )
    if layouts := device_layouts(host_pool):
        raise ValueError(
            f"tp_lcm_size: SGLang copies pages with the device's order of bytes, {layouts[0]}, in which heads do not "
            f"lie as in {LAYOUT}; {_REMEDY}"
        )
    if heads % pieces:
        raise ValueError(
            f"tp_lcm_size: the {heads} heads of this rank cannot be divided among {pieces} ranks; tp_lcm_size has to "
            "divide the number of the model's KV heads"
        )
    first = layout.addresses(0)
    second = layout.addresses(layout.slots_per_page) if layout.slots > layout.slots_per_page else first
    strides = [after - before for (before, _), (after, _) in zip(first, second)]
    out = []
    for piece in range(pieces):
        runs = [(at + piece * (size // pieces), step, size // pieces) for (at, size), step in zip(first, strides)]
        places = larder.PageLayout(runs, layout.slots_per_page, layout.slots)
        out.append(Piece(places, _flat([size for _, size in first], pieces, piece)))
    for slot in (0, layout.slots - layout.slots_per_page):
        mine = [run for piece in out if piece.layout is not None for run in piece.layout.addresses(slot)]
        if mine != _by_engine(host_pool, slot, layout, pieces):
            raise ValueError(f"tp_lcm_size: SGLang does not divide its heads, or in another way; {_REMEDY}")
    return tuple(out)


def _flat(runs: list[int], pieces: int, piece: int) -> tuple[tuple[int, int], ...]:
    """runs: sizes of what a page is made of; each has a part of each piece."""
    sizes = [size // pieces for size in runs]
    return tuple((sum(runs[:i]) + piece * size, size) for i, size in enumerate(sizes))


def _by_engine(host_pool: Any, slot: int, layout: larder.PageLayout, pieces: int) -> list[tuple[int, int]]:
    """(address, size) of a page's pieces as SGLang says it; empty if it does not."""
    divide = getattr(host_pool, "get_split_heads_page_buffer_meta", None)
    if divide is None:
        return []
    try:
        addresses, sizes = divide(tensors.page_slots(slot, layout.slots_per_page), pieces)
    except (AssertionError, NotImplementedError):
        return []
    return [(int(address), int(size)) for address, size in zip(addresses, sizes)]
