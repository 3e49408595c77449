# SPDX-License-Identifier: Apache-2.0
"""The bytes in the slots: written before a backup, poisoned by a flush, compared after a load.

What a page holds follows from (seed, identity, tokens up to the page's end, pool, layer, rank or head) alone, so
nothing has to be remembered, and two prefixes, two identities, two pools, two ranks or two heads never hold the same.
"""

import dataclasses
import hashlib

import torch

POISON = 0xA5


@dataclasses.dataclass(frozen=True)
class Part:
    """The device memory of one pool.

    `source` says which slots address it: "full", "swa" or "mamba".  `divisor` slots share one row.  `layers` are
    its tensors as bytes, [rows, bytes of a row], in the order of the layers.  `shared`: all ranks hold the same.
    `heads`: each row is as many equal pieces, and what a head holds is the same on whatever rank it is.
    """

    name: str
    source: str
    divisor: int
    layers: list
    shared: bool = False
    heads: int = 1


def as_rows(tensor):
    """Returns the bytes of `tensor` as [first dimension, rest] without a copy."""
    if not tensor.is_contiguous():
        raise ValueError(f"rig: device memory with gaps: {tuple(tensor.shape)}, {tensor.stride()}")
    return tensor.view(torch.uint8).view(tensor.shape[0], -1)


class Content:
    """Makes the bytes of pages for one seed and rank."""

    def __init__(self, seed, rank, page_size):
        self.seed = seed
        self.rank = rank
        self.page_size = page_size

    def chain(self, tokens, extra_key, cache_salt):
        """Returns one digest per whole page of `tokens`; each stands for the identity and all tokens so far."""
        running = hashlib.sha256(repr((self.seed, extra_key, cache_salt)).encode())
        digests = []
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            running.update(repr(list(tokens[start : start + self.page_size])).encode())
            digests.append(running.digest())
        return digests

    def page_bytes(self, digest, part, layer, rows):
        """Returns what `rows` rows of `part` hold in `layer` for the page that `digest` stands for."""
        size = rows * part.layers[layer].shape[1] // part.heads
        owners = ["all"] if part.shared else range(self.rank * part.heads, (self.rank + 1) * part.heads)
        heads = []
        for owner in owners:
            name = f"{part.name}/{layer}/{owner}".encode()
            data = hashlib.shake_128(digest + name).digest(size)
            heads.append(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(rows, -1))
        return torch.cat(heads, dim=1)

    def write(self, part, digests, slots):
        """Fills the rows of `part` that `slots` address, one page per digest."""
        for digest, rows in zip(digests, self._rows(part, slots, len(digests)), strict=True):
            for layer, memory in enumerate(part.layers):
                memory[rows] = self.page_bytes(digest, part, layer, len(rows))

    def differences(self, part, digests, slots):
        """Returns a line of text for every page and layer whose bytes are not those of its digest."""
        found = []
        for page, (digest, rows) in enumerate(zip(digests, self._rows(part, slots, len(digests)), strict=True)):
            for layer, memory in enumerate(part.layers):
                wrong = memory[rows] != self.page_bytes(digest, part, layer, len(rows))
                if wrong.any():
                    poison = " (poison)" if (memory[rows][wrong] == POISON).all() else ""
                    found.append(
                        f"{part.name} page {page} of {len(digests)}, layer {layer}: "
                        f"{int(wrong.sum())} of {wrong.numel()} bytes differ{poison}"
                    )
        return found

    def _rows(self, part, slots, pages):
        """Returns the row numbers of each page."""
        slots = slots.to(torch.int64)
        if slots.numel() % max(pages, 1):
            raise ValueError(f"rig: {slots.numel()} slots do not make {pages} pages of {part.name}")
        if not pages:
            return []
        return list(slots.view(pages, -1)[:, :: part.divisor] // part.divisor)


def poison(tensors):
    """Overwrites `tensors`, so that bytes left over from before can not pass for bytes that were loaded."""
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(POISON)
