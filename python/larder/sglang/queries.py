# SPDX-License-Identifier: Apache-2.0
"""Which lengths of a chain are restorable, as SGLang asks."""

from typing import Any, Optional, Sequence

import larder
from larder.sglang.patience import Deadline
from larder.sglang.pools import ANCHOR
from larder.sglang.spaces import OpenSpace
from larder.store import MAX_KEYS

_ALL = larder.HitPolicy.ALL_PAGES
_TRAILING = larder.HitPolicy.TRAILING_PAGES


class UnknownPool(Exception):
    """The query needs a pool that cannot be stored: nothing is restorable."""


def needs_of(current: OpenSpace, transfers: Optional[Sequence[Any]]) -> list[larder.Need]:
    """What a query needs, the anchor first. Raises UnknownPool."""
    needs = [larder.Need(ANCHOR)]
    for transfer in transfers or ():
        policy = _policy(transfer)
        name = pool_name(transfer.name)
        if policy is None or name == ANCHOR:
            continue
        if name not in current.pools:
            raise UnknownPool(f"pool {name} is not registered, or cannot be stored")
        trailing = max(1, len(transfer.keys or ())) if policy is _TRAILING else 0
        needs.append(larder.Need(name, policy, trailing))
    return needs


def _policy(transfer: Any) -> Optional[larder.HitPolicy]:
    """None: a pool that never bounds the hit (block_groups: a second form of pages that are there anyway)."""
    text = str(getattr(transfer.hit_policy, "value", transfer.hit_policy))
    if text == "block_groups":
        return None
    return larder.HitPolicy[text.upper()]


def pool_name(name: Any) -> str:
    """SGLang's names are str enums."""
    return str(getattr(name, "value", name))


def query(
    current: OpenSpace, keys: Sequence[str], needs: list[larder.Need], deadline: Deadline, cancel: Any
) -> larder.Exists:
    """A page is there when all its pieces are."""
    found: Optional[larder.Exists] = None
    for space in current.spaces:
        answer = _ask(space, keys, needs, deadline, cancel)
        found = answer if found is None else found & answer
    assert found is not None
    return found


def _ask(
    space: larder.Space, keys: Sequence[str], needs: list[larder.Need], deadline: Deadline, cancel: Any
) -> larder.Exists:
    """One question; several for a longer chain than a question may have, up to the one in which the anchor ends. Each
    says which pages are there, and what can be restored follows from all of them."""
    if len(keys) <= MAX_KEYS:
        return space.exists(keys, needs, deadline.left(), present=len(needs) > 1, cancel=cancel)
    masks = {need.pool: 0 for need in needs}
    for begin in range(0, len(keys), MAX_KEYS):
        some = keys[begin : begin + MAX_KEYS]
        answer = space.exists(some, needs, deadline.left(), present=True, cancel=cancel)
        for pool in masks:
            masks[pool] |= answer.present_mask(pool) << begin
        if _leading(answer.present_mask(ANCHOR)) < len(some):
            break
    restorable = (1 << len(keys)) - 1
    for need in needs:
        restorable &= _allowed(masks[need.pool], need)
    size = (len(keys) + 63) // 64 * 8
    present = {pool: mask.to_bytes(size, "little") for pool, mask in masks.items()}
    return larder.Exists(len(keys), restorable.to_bytes(size, "little"), present)


def leading_pages(current: OpenSpace, keys: Sequence[str], deadline: Deadline, cancel: Any) -> int:
    """How many pages from the first on the anchor has."""
    count = len(keys)
    for space in current.spaces:
        count = _leading_pages(space, keys[:count], deadline, cancel)
    return count


def _leading_pages(space: larder.Space, keys: Sequence[str], deadline: Deadline, cancel: Any) -> int:
    count = 0
    while count < len(keys):
        some = keys[count : count + MAX_KEYS]
        more = space.leading_pages(some, deadline.left(), cancel=cancel)
        count += more
        if more < len(some):
            break
    return count


def boundaries(exists: larder.Exists, needs: list[larder.Need]) -> dict[str, int]:
    """For each pool how many pages it alone would let through; pools without any are left out, as in SGLang's own."""
    if len(needs) == 1:
        return {ANCHOR: exists.best} if exists.best else {}
    anchor = _allowed(exists.present_mask(ANCHOR), needs[0])
    found = {}
    for need in needs:
        boundary = (_allowed(exists.present_mask(need.pool), need) & anchor).bit_length()
        if boundary:
            found[need.pool] = boundary
    return found


def _allowed(mask: int, need: larder.Need) -> int:
    """Bit p - 1 is set if the pages of `mask` are enough for a restore after p pages."""
    if need.hit_policy is _ALL:
        return (1 << _leading(mask)) - 1
    return _windows(mask, need.trailing_pages)


def _leading(mask: int) -> int:
    """How many bits from the lowest on are set."""
    return (~mask & (mask + 1)).bit_length() - 1


def _windows(mask: int, width: int) -> int:
    """Bit p - 1 is set if the pages [max(0, p - width), p) are there."""
    below = (mask << width) | ((1 << width) - 1)  # pages before the first are never missing
    done = 1
    while done < width:  # bit i of `below`: `done` pages down from i are there
        step = min(done, width - done)
        below &= below << step
        below |= (1 << width) - 1
        done += step
    return below >> width
