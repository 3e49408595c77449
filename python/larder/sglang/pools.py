# SPDX-License-Identifier: Apache-2.0
"""SGLang's host pools as Larder's pools: what their bytes mean, who shares them, and where their pages lie.

How the bytes of a page are reached, the best that a host pool offers:

    MARKER    the pool has no bytes (DeepSeek-V4's anchor): a page is there or not
    MAPPED    page p's segments lie at base + p * stride: found out once, verified on the first, second and last page
    LISTED    the pool is asked at each call (get_page_buffer_meta)
    COPIED    through get_data_page / set_from_flat_data_page, a copy each
"""

import enum
import itertools
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import larder
from larder.sglang import heads, tensors
from larder.sglang.identity import canonical
from larder.sglang.layouts import device_layouts, indexer_orders

ANCHOR = "kv"


class Reach(enum.Enum):
    MARKER = "marker"
    MAPPED = "mapped"
    LISTED = "listed"
    COPIED = "copied"


class Unusable(Exception):
    """A host pool whose pages cannot be stored; the text says why."""


@dataclass(frozen=True)
class Rule:
    """policy: what a restore needs of the pool, unless the query says it. follows_kv: whether the bytes are the same on
    all tensor-parallel ranks when those of the KV are."""

    policy: larder.HitPolicy
    follows_kv: bool


_ALL = larder.HitPolicy.ALL_PAGES
_TRAILING = larder.HitPolicy.TRAILING_PAGES

# SGLang's names. KV is the same on all ranks if SGLang calls the model MLA (multi-head latent attention, DeepSeek-V4):
# then only the first rank stores it and what follows it. A pool with heads of its own never follows (_has_heads()).
RULES: dict[str, Rule] = {
    "kv": Rule(_ALL, follows_kv=True),
    "mamba": Rule(_TRAILING, follows_kv=False),  # heads are split over ranks, beside latent KV, too; each rank stores
    "swa": Rule(_TRAILING, follows_kv=True),  # of DeepSeek-V4 latent; of MHA models with heads
    "auxiliary_swa": Rule(_TRAILING, follows_kv=True),
    "indexer": Rule(_ALL, follows_kv=True),  # one index key per token, computed on every rank
    "deepseek_v4_c1": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c1_indexer": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c1_indexer_scale": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c2": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c2_indexer": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c2_indexer_scale": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c4": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c4_indexer": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c4_indexer_scale": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c128": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c4_rope": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c128_rope": Rule(_ALL, follows_kv=True),
    "deepseek_v4_c4_state": Rule(_TRAILING, follows_kv=True),  # compressor states of latent KV: no heads
    "deepseek_v4_c4_indexer_state": Rule(_TRAILING, follows_kv=True),
    "deepseek_v4_c128_state": Rule(_TRAILING, follows_kv=True),
    "draft": Rule(_ALL, follows_kv=True),  # unless the draft model has heads
    "draft_indexer": Rule(_ALL, follows_kv=True),
    "draft_swa": Rule(_TRAILING, follows_kv=True),
}
# A name that is not known: stored by every rank for itself, as far as SGLang hands it over there.
_UNKNOWN = Rule(_ALL, follows_kv=False)

# Attributes of host pools that give the bytes their meaning; which of them there are depends on the class. Not among
# them: sizes of the whole pool, which may change from start to start.
_MEANING = (
    "_draft_layer_num",
    "_live_target_layers",
    "_target_layer_indices",
    "conv_dtype",
    "conv_state_shapes",
    "dcp_rank",
    "dcp_size",
    "dsa_kv_cache_store_fp8",
    "dtype",
    "end_layer",
    "head_dim",
    "head_group_num",
    "head_num",
    "indexer_dtype",
    "indexer_page_stride_size",
    "item_bytes",
    "k_sf_page_bytes",
    "kv_cache_dim",
    "kv_lora_rank",
    "layer_num",
    "layout",
    "num_mamba_layers",
    "override_kv_cache_dim",
    "page_aligned_only",
    "page_size",
    "qk_rope_head_dim",
    "ring_size",
    "row_bytes",
    "size_per_token",
    "slot_page_size",
    "start_layer",
    "state_page_bytes",
    "storage_format_tag",
    "storage_objects_per_page",
    "swa_page_size",
    "target_layer_num",
    "temporal_dtype",
    "temporal_state_shape",
    "v_head_dim",
    "v_sf_page_bytes",
)
# Of these a piece of a page has its part (heads.py).
_PER_HEAD = ("head_num", "size_per_token")
# Without these nobody can say what the bytes are.
_NEEDED = (("layout",), ("page_size",), ("dtype",), ("layer_num", "num_mamba_layers"))


@dataclass(frozen=True)
class MappedPool:
    """A host pool, ready for transfers. Immutable."""

    name: str
    host_pool: Any
    reach: Reach
    pool: larder.Pool  # a piece of each page, as its space knows it
    slots_per_page: int
    layout: Optional[larder.PageLayout]  # of whole pages; MARKER and MAPPED
    is_flat: bool  # a page's bytes are those of get_data_page(flat=True), in that order
    pieces: tuple[heads.Piece, ...]  # one per space; mostly one, the page
    # What the addresses point into: SGLang destroys its host pools at its end before it ends its storage's threads.
    memory: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def page_bytes(self) -> int:
        return self.pool.page_bytes * len(self.pieces)


def map_pool(
    name: str, host_pool: Any, is_replicated_model: bool, draft: Optional[str], pieces: int = 1
) -> MappedPool:
    """draft: what names the draft model; part of the meaning of pools that hold its state. pieces: of each page, for
    other numbers of ranks. Raises Unusable."""
    slots_per_page = _positive(host_pool, "page_size")
    slots = _positive(host_pool, "size") // slots_per_page * slots_per_page
    if slots == 0:
        raise Unusable(f"it has {host_pool.size} slots, less than a page")
    reach, layout, sizes, is_flat = _find_pages(host_pool, slots_per_page, slots)
    cut = (heads.Piece(layout, ((0, sum(sizes)),)),) if pieces == 1 else _cut(host_pool, layout, pieces)
    sizes = [size // pieces for size in sizes]
    rule = RULES.get(name, _UNKNOWN)
    pool = larder.Pool(
        name=name,
        page_bytes=sum(sizes),
        layout=layout_text(name, host_pool, sizes, is_flat, draft, pieces),
        hit_policy=rule.policy,
        trailing_pages=1 if rule.policy is _TRAILING else 0,
        replicated=is_replicated_model and rule.follows_kv and not _has_heads(host_pool),
    )
    memory = tuple(tensors.in_cpu_memory(getattr(host_pool, "__dict__", {}).values()))
    return MappedPool(name, host_pool, reach, pool, slots_per_page, layout, is_flat, cut, memory)


def _cut(host_pool: Any, layout: Optional[larder.PageLayout], pieces: int) -> tuple[heads.Piece, ...]:
    try:
        return heads.cut(host_pool, layout, pieces)
    except ValueError as error:
        raise Unusable(error) from error


def is_split_but_stored_once(pool: MappedPool, is_replicated_model: bool) -> bool:
    """Whether ranks differ in the pool's bytes, although SGLang stores only those of the first rank."""
    return is_replicated_model and not pool.pool.replicated and pool.name != "mamba"


def _has_heads(host_pool: Any) -> bool:
    """Whether heads are split over ranks: MHA pools say head_num; QSA's indexer belongs to an MHA pool."""
    return hasattr(host_pool, "head_num") or type(host_pool).__name__.startswith("QSA")


# ---- meaning ----


def layout_text(
    name: str, host_pool: Any, sizes: list[int], is_flat: bool, draft: Optional[str], pieces: int = 1
) -> str:
    """Canonical JSON of all that gives the bytes of a page, or of one of its pieces, their meaning. sizes: of the
    segments of that. Raises Unusable if too little is known."""
    kind = type(host_pool)
    meaning: dict[str, Any] = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "segments": [[size, len(list(same))] for size, same in itertools.groupby(sizes)],
        "order": "flat" if is_flat else "segments",
    }
    if sizes:
        for names in _NEEDED:
            if not any(hasattr(host_pool, attribute) for attribute in names):
                raise Unusable(f"{kind.__name__} does not say {' or '.join(names)}: nobody knows what its bytes mean")
    for attribute in _MEANING:
        value = getattr(host_pool, attribute, None)
        if value is not None:
            meaning[attribute] = _plain(value // pieces if attribute in _PER_HEAD and pieces > 1 else value)
    meaning.update(_element_types(host_pool))
    if layouts := device_layouts(host_pool):
        meaning["device_layouts"] = layouts
    if "indexer" in name and (orders := indexer_orders()):
        meaning["indexer_orders"] = orders
    if draft is not None and _holds_draft(name, host_pool):
        meaning["draft"] = draft
    return canonical(meaning)


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):  # torch.Size is a tuple
        return [_plain(item) for item in value]
    return str(value)  # torch.dtype


def _element_types(host_pool: Any) -> dict[str, Any]:
    """What pools of plain bytes mirror: types and shapes of the device's memory."""
    found: dict[str, Any] = {}
    buffers = getattr(host_pool, "device_buffers", None)
    if buffers:
        found["device_rows"] = sorted({canonical([str(b.dtype), _plain(tuple(b.shape[1:]))]) for b in buffers})
    states = getattr(host_pool, "state_pools", None)
    if states:
        found["state_types"] = sorted({str(_path(state, "kv_score_buffer.kv_score.dtype")) for state in states})
    side_states = getattr(host_pool, "slot_state_device_tensors", None)
    if side_states:
        found["side_states"] = [[str(s.dtype), _plain(tuple(s.shape[1:]))] for s in side_states]
    for attribute in ("dtype", "store_dtype", "qsa_compress_ratio"):
        value = _path(host_pool, f"device_pool.{attribute}")
        if value is not None:
            found[f"device_{attribute}"] = _plain(value)
    return found


def _path(value: Any, path: str) -> Any:
    for attribute in path.split("."):
        value = getattr(value, attribute, None)
    return value


def _holds_draft(name: str, host_pool: Any) -> bool:
    """Whether layers of the draft model are in the pool, alone or packed behind the target's."""
    if name.startswith("draft"):
        return True
    packed = getattr(host_pool, "mtp_draft_buffer_infos", ()) or getattr(host_pool, "mtp_draft_device_pools", ())
    layers: Any = getattr(host_pool, "layer_num", None)
    target: Any = getattr(host_pool, "target_layer_num", layers)
    return bool(packed) or bool(target != layers)


# ---- where pages lie ----


def memory_of(layout: larder.PageLayout) -> list[tuple[int, int]]:
    """(address, size) of the memory that the pages lie in, without overlaps; empty for markers."""
    first, last = layout.addresses(0), layout.addresses(layout.slots - layout.slots_per_page)
    regions: list[tuple[int, int]] = []
    for begin, end in sorted((at, after + size) for (at, size), (after, _) in zip(first, last)):
        if regions and begin <= regions[-1][1]:
            regions[-1] = (regions[-1][0], max(regions[-1][1], end))
        else:
            regions.append((begin, end))
    return [(begin, end - begin) for begin, end in regions]


_Locate = Callable[[int], list[tuple[int, int]]]
_Found = tuple[Reach, Optional[larder.PageLayout], list[int], bool]


def _find_pages(host_pool: Any, slots_per_page: int, slots: int) -> _Found:
    """-> how pages are reached, their layout, the sizes of a page's segments, and whether they are in flat order."""
    if _moves_its_pages(host_pool):
        return _found_copied(host_pool)
    by_list, list_error = _attempt(lambda: _listed(host_pool, 0, slots_per_page))
    if by_list is None and list_error is None:
        if getattr(host_pool, "kv_buffer", None) is not None or getattr(host_pool, "size_per_token", 0) != 0:
            raise Unusable("get_page_buffer_meta() is None, but the pool has bytes")
        return Reach.MARKER, larder.PageLayout([], slots_per_page, slots), [], True
    by_view, _ = _attempt(lambda: _viewed(host_pool, 0, slots_per_page, slots))
    if by_view is not None and (by_list is None or tensors.merged(by_view) == tensors.merged(by_list)):
        layout = _map(lambda slot: _viewed(host_pool, slot, slots_per_page, slots), slots_per_page, slots)
        if layout is not None:
            return Reach.MAPPED, layout, [size for _, size in by_view], True
    if by_list is not None:
        sizes = [size for _, size in by_list]
        layout = _map(lambda slot: _listed(host_pool, slot, slots_per_page) or [], slots_per_page, slots)
        return (Reach.LISTED if layout is None else Reach.MAPPED), layout, sizes, False
    try:
        return _found_copied(host_pool)
    except Exception as error:
        raise Unusable(f"get_page_buffer_meta(): {list_error}; get_dummy_flat_data_page(): {error}") from error


def _moves_its_pages(host_pool: Any) -> bool:
    """Pools of one shared arena give pages new places: only their own copy functions hold them still."""
    is_shared = getattr(host_pool, "shared_allocation_domain", None) is not None
    return is_shared or bool(getattr(host_pool, "stores_page_envelope", False))


def _found_copied(host_pool: Any) -> _Found:
    size = tensors.tensor_bytes(host_pool.get_dummy_flat_data_page())
    if size == 0:
        raise Unusable("a page has no bytes")
    host_pool.get_data_page(0, flat=True)  # may not be there at all
    return Reach.COPIED, None, [size], True


def _attempt(find: Callable[[], Any]) -> tuple[Any, Optional[Exception]]:
    try:
        return find(), None
    except Exception as error:  # which one depends on the class and its layout
        return None, error


def _listed(host_pool: Any, slot: int, slots_per_page: int) -> Optional[list[tuple[int, int]]]:
    meta = host_pool.get_page_buffer_meta(tensors.page_slots(slot, slots_per_page))
    if meta is None:
        return None
    addresses, sizes = meta
    if not addresses or len(addresses) != len(sizes):
        raise ValueError(f"{len(addresses)} addresses and {len(sizes)} sizes")
    return [(int(address), int(size)) for address, size in zip(addresses, sizes)]


def _viewed(host_pool: Any, slot: int, slots_per_page: int, slots: int) -> list[tuple[int, int]]:
    """The pieces of get_data_page(flat=False), if that is a view of the pool and no copy."""
    other = slot + slots_per_page if slot + 2 * slots_per_page <= slots else slot - slots_per_page
    if other < 0:
        raise ValueError("one page: a view cannot be told from a copy")
    view, another = host_pool.get_data_page(slot, flat=False), host_pool.get_data_page(other, flat=False)
    if not tensors.same_memory(view, another):
        raise ValueError("a copy")
    return tensors.segments_of(view)


def _map(locate: _Locate, slots_per_page: int, slots: int) -> Optional[larder.PageLayout]:
    """The affine map of page numbers to addresses; None if there is none."""
    last = slots // slots_per_page - 1
    first = locate(0)
    second = locate(slots_per_page) if last >= 1 else first
    end = locate(last * slots_per_page)
    if not first or len({len(first), len(second), len(end)}) != 1:
        return None
    segments = []
    for (base, size), (next_base, next_size), (last_base, last_size) in zip(first, second, end):
        stride = next_base - base
        if len({size, next_size, last_size}) != 1 or stride < 0 or last_base != base + last * stride:
            return None
        segments.append((base, stride, size))
    return larder.PageLayout(segments, slots_per_page, slots)


def _positive(host_pool: Any, attribute: str) -> int:
    value = getattr(host_pool, attribute, None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unusable(f"{type(host_pool).__name__}.{attribute} is {value!r}")
    return value
