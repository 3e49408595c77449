# SPDX-License-Identifier: Apache-2.0
"""The few things that are asked of tensors."""

import itertools
from typing import Any, Iterable, Iterator

# A page in more pieces than this is moved by copy.
_MAX_SEGMENTS = 4096


def page_slots(first: int, count: int) -> Any:
    """Slots first .. first + count - 1, as the engine hands them over."""
    import torch

    return torch.arange(first, first + count, dtype=torch.int64)


def first_slots(host_indices: Any, slots_per_page: int) -> list[int]:
    """The first slot of each page. Raises ValueError where a page's last slot does not belong to it.

    Not each slot is looked at: there are as many as tokens.
    """
    first = _numbers(host_indices[::slots_per_page])
    if slots_per_page > 1:
        last = _numbers(host_indices[slots_per_page - 1 :: slots_per_page])
        if last != [slot + slots_per_page - 1 for slot in first]:
            raise ValueError(f"the host indices are no whole pages of {slots_per_page} slots")
    return first


def _numbers(indices: Any) -> list[int]:
    return [int(slot) for slot in indices] if isinstance(indices, list) else list(indices.tolist())


def tensor_bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def flat_on_cpu(tensor: Any) -> Any:
    """The tensor itself if it is contiguous in CPU memory, else such a copy."""
    return tensor.cpu().contiguous()


def empty_like(tensor: Any) -> Any:
    """As much memory, not pinned."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def same_memory(one: Any, other: Any) -> bool:
    """Whether two tensors are views of one allocation. Both have to be alive."""
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def in_cpu_memory(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors among the values, and in lists and tuples there, whose memory is not a device's."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from in_cpu_memory(value)
        elif hasattr(value, "untyped_storage") and str(value.device).startswith("cpu"):
            yield value


def segments_of(view: Any) -> list[tuple[int, int]]:
    """(address, size) of the contiguous pieces of a strided view, in the order of its elements."""
    item = int(view.element_size())
    run = item
    outer: list[tuple[int, int]] = []
    for size, stride in reversed(list(zip(view.shape, view.stride()))):
        if size == 1:
            continue
        if not outer and stride * item == run:
            run *= size
        else:
            outer.append((int(size), int(stride) * item))
    outer.reverse()
    count = 1
    for size, _ in outer:
        count *= size
    if count > _MAX_SEGMENTS or tensor_bytes(view) == 0:
        raise ValueError(f"a page in {count} pieces")
    return list(_pieces(int(view.data_ptr()), outer, run))


def _pieces(base: int, outer: list[tuple[int, int]], run: int) -> Iterator[tuple[int, int]]:
    for place in itertools.product(*(range(size) for size, _ in outer)):
        yield base + sum(i * stride for i, (_, stride) in zip(place, outer)), run


def merged(segments: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same memory, sorted, neighbours joined."""
    out: list[tuple[int, int]] = []
    for address, size in sorted(segments):
        if out and out[-1][0] + out[-1][1] == address:
            out[-1] = (out[-1][0], out[-1][1] + size)
        else:
            out.append((address, size))
    return out
