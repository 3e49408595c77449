# SPDX-License-Identifier: Apache-2.0
"""Makes the device pools of one model kind, small, with SGLang's own classes.

The host pools are built from them by SGLang itself (hybrid_pool_assembler) when the world starts its cache.
"""

import dataclasses

import torch

from . import content

LAYERS = 4
HEADS = 2
HEAD_DIM = 16
WINDOW_PAGES = 2
MAMBA_SLOTS = 24
REQUESTS = 4

KINDS = (
    "mha",
    "mha_asymmetric",
    "mla",
    "mamba",
    "mla_mamba",
    "swa",
    "mamba_swa",
    "dsa",
    "dsv4",
    "dsv4_low",
    "mha_draft",
    "dsa_draft",
    "mha_mtp",
)
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
IO_BACKEND = {"layer_first": "direct", "page_first": "kernel", "page_first_direct": "direct", "page_head": "kernel"}
HAS_PAGE_HEAD = ("mha", "swa", "mha_draft", "mha_mtp")  # all pools of the model are heads
NEEDS_PAGE_FIRST = ("mamba", "mla_mamba", "mamba_swa", "mha_asymmetric")  # their host pools refuse layer_first
FIXED_PAGE_SIZE = {"dsa": 64, "dsa_draft": 64, "dsv4": 256, "dsv4_low": 256}  # SGLang refuses others


@dataclasses.dataclass(frozen=True)
class Size:
    """The page size in tokens, the type of the KV cache, and the numbers of pages on the device and of heads."""

    page_size: int
    dtype: torch.dtype
    pages: int
    heads: int = HEADS

    @property
    def tokens(self):
        """The number of token slots."""
        return self.pages * self.page_size


@dataclasses.dataclass
class Device:
    """The device side of one model.

    `parts` are all memories with content.  `window` is the sliding window in tokens, or None.  `drafts` are pools of
    a draft model beside the target's (registered after the start), `packed_drafts` those that share its host pool.
    """

    kind: str
    page_size: int
    allocator: object
    requests: object
    components: tuple
    parts: list
    window: int | None = None
    drafts: tuple = ()
    packed_drafts: tuple = ()

    @property
    def has_mamba(self):
        """Tells whether a node of the tree carries a Mamba state."""
        return any(part.source == "mamba" for part in self.parts)


def combinations():
    """Returns every (kind, layout) that SGLang has."""
    return [(kind, layout) for kind in KINDS for layout in LAYOUTS if supported(kind, layout)]


def supported(kind, layout):
    """Tells whether SGLang has host pools of `layout` for models of `kind`."""
    if layout == "page_head":
        return kind in HAS_PAGE_HEAD
    return layout != "layer_first" or kind not in NEEDS_PAGE_FIRST


def page_size_of(kind, wanted):
    """Returns the page size of a model of `kind`: the `wanted` one where SGLang leaves a choice."""
    return FIXED_PAGE_SIZE.get(kind, wanted)


def build(kind, size):
    """Returns the Device of a model of `kind`."""
    builders = {
        "mha": _mha,
        "mha_asymmetric": _mha,
        "mla": _mla,
        "mamba": _mamba,
        "mla_mamba": _mamba,
        "swa": _swa,
        "mamba_swa": _mamba_swa,
        "dsa": _dsa,
        "dsv4": _dsv4,
        "dsv4_low": _dsv4,
        "mha_draft": _mha_draft,
        "dsa_draft": _dsa_draft,
        "mha_mtp": _mha_mtp,
    }
    return builders[kind](kind, size)


def _components(*names):
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    return tuple(getattr(ComponentType, name) for name in ("FULL", *names))


def _common(size):
    """Returns the arguments that every pool of tokens takes."""
    return {
        "size": size.tokens,
        "page_size": size.page_size,
        "dtype": size.dtype,
        "device": "cpu",
        "enable_memory_saver": False,
    }


def _mha_pool(size, layers=LAYERS, v_head_dim=HEAD_DIM):
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(
        **_common(size), head_num=size.heads, head_dim=HEAD_DIM, v_head_dim=v_head_dim, layer_num=layers
    )


def _mla_pool(size):
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    return MLATokenToKVPool(**_common(size), kv_lora_rank=32, qk_rope_head_dim=8, layer_num=LAYERS)


def _dsa_pool(size, layers=LAYERS):
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    return DSATokenToKVPool(
        **_common(size),
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        layer_num=layers,
        index_head_dim=128,
        kv_cache_dim=40,
    )


def _swa_pool(size):
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    return SWAKVPool(
        size=size.tokens,
        size_swa=size.tokens,
        page_size=size.page_size,
        dtype=size.dtype,
        head_num=size.heads,
        head_dim=HEAD_DIM,
        full_attention_layer_ids=[0, 2],
        swa_attention_layer_ids=[1, 3, 4],
        device="cpu",
    )


def _requests(size):
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    return ReqToTokenPool(REQUESTS, size.tokens, "cpu", False)


def _mamba_requests(size, layers):
    """Returns the request pool that holds the Mamba states."""
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=64, n_groups=1, num_heads=4, head_dim=16, state_size=16, conv_kernel=4
    )
    params = Mamba2CacheParams(
        shape=shape, dtype=Mamba2StateDType(conv=size.dtype, temporal=torch.float32), layers=list(layers)
    )
    return HybridReqToTokenPool(
        size=REQUESTS,
        mamba_size=MAMBA_SLOTS,
        mamba_spec_state_size=REQUESTS,
        max_context_len=size.tokens,
        device="cpu",
        enable_memory_saver=False,
        cache_params=params,
        mamba_layer_ids=list(layers),
        enable_mamba_extra_buffer=True,
    )


def _allocator(size, pool):
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    return PagedTokenToKVPoolAllocator(size.tokens, size.page_size, size.dtype, "cpu", pool, False)


def _swa_allocator(size, pool):
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    return SWATokenToKVPoolAllocator(size.tokens, size.tokens, size.page_size, size.dtype, "cpu", pool, False)


def _part(name, tensors, source="full", divisor=1, shared=False, heads=1):
    return content.Part(name, source, divisor, [content.as_rows(tensor) for tensor in tensors], shared, heads)


def _kv_parts(pool, name="kv", source="full"):
    """Returns the parts of a pool with one row per token."""
    if hasattr(pool, "k_buffer"):
        halves = {"k": pool.k_buffer, "v": pool.v_buffer}
        return [_part(f"{name}.{half}", memory, source, heads=pool.head_num) for half, memory in halves.items()]
    return [_part(name, pool.kv_buffer, source, shared=True)]  # MLA: no heads to divide between ranks


def _mamba_parts(requests):
    (info,) = requests.mamba_pool.get_device_pool_infos()
    states = {"mamba.temporal": info.buffer_info.temporal}
    states |= {f"mamba.conv{number}": conv for number, conv in enumerate(info.buffer_info.conv)}
    return [_part(name, list(state), "mamba") for name, state in states.items()]


def _dense(kind, size, pool, parts, **more):
    """Returns the Device of a model whose tree has the full component only."""
    allocator = _allocator(size, pool)
    return Device(kind, size.page_size, allocator, _requests(size), _components(), parts, **more)


def _mha(kind, size):
    """Plain attention; "mha_asymmetric" has values that are wider than its keys."""
    pool = _mha_pool(size, v_head_dim=24 if kind == "mha_asymmetric" else HEAD_DIM)
    return _dense(kind, size, pool, _kv_parts(pool))


def _mla(kind, size):
    pool = _mla_pool(size)
    return _dense(kind, size, pool, _kv_parts(pool))


def _indexer_part(pool, page_size, name):
    return _part(name, pool.index_k_with_scale_buffer, "full", page_size, shared=True)


def _dsa(kind, size):
    pool = _dsa_pool(size)
    return _dense(kind, size, pool, [*_kv_parts(pool), _indexer_part(pool, size.page_size, "indexer")])


def _mha_draft(kind, size):
    """A target with a draft model whose KV is kept in a host pool of its own ("draft")."""
    pool = _mha_pool(size)
    draft = _mha_pool(size, layers=1)
    return _dense(kind, size, pool, [*_kv_parts(pool), *_kv_parts(draft, "draft")], drafts=(draft,))


def _dsa_draft(kind, size):
    """A DSA target with a DSA draft model: "draft" and "draft_indexer"."""
    pool = _dsa_pool(size)
    draft = _dsa_pool(size, layers=1)
    parts = [
        *_kv_parts(pool),
        _indexer_part(pool, size.page_size, "indexer"),
        *_kv_parts(draft, "draft"),
        _indexer_part(draft, size.page_size, "draft_indexer"),
    ]
    return _dense(kind, size, pool, parts, drafts=(draft,))


def _mha_mtp(kind, size):
    """A target with a multi-token-prediction layer: its KV is one more layer in the target's host pool."""
    pool = _mha_pool(size)
    draft = _mha_pool(size, layers=1)
    parts = [*_kv_parts(pool), *_kv_parts(draft, "mtp")]
    return _dense(kind, size, pool, parts, packed_drafts=(draft,))


def _mamba(kind, size):
    """Some layers of attention, the others with a Mamba state; "mla_mamba" has latent attention (as Kimi K3)."""
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    requests = _mamba_requests(size, layers=(1, 2))
    pool = HybridLinearKVPool(
        **_common(size),
        head_num=size.heads,
        head_dim=HEAD_DIM,
        full_attention_layer_ids=[0, 3],
        mamba_pool=requests.mamba_pool,
        use_mla=kind == "mla_mamba",
        kv_lora_rank=32,
        qk_rope_head_dim=8,
    )
    parts = [*_kv_parts(pool.full_kv_pool), *_mamba_parts(requests)]
    allocator = _allocator(size, pool)
    return Device(kind, size.page_size, allocator, requests, _components("MAMBA"), parts)


def _swa(kind, size):
    pool = _swa_pool(size)
    parts = [*_kv_parts(pool.full_kv_pool), *_kv_parts(pool.swa_kv_pool, "swa", "swa")]
    allocator = _swa_allocator(size, pool)
    window = WINDOW_PAGES * size.page_size
    return Device(kind, size.page_size, allocator, _requests(size), _components("SWA"), parts, window)


def _mamba_swa(kind, size):
    pool = _swa_pool(size)
    requests = _mamba_requests(size, layers=(5, 6))
    parts = [*_kv_parts(pool.full_kv_pool), *_kv_parts(pool.swa_kv_pool, "swa", "swa"), *_mamba_parts(requests)]
    allocator = _swa_allocator(size, pool)
    window = WINDOW_PAGES * size.page_size
    return Device(kind, size.page_size, allocator, requests, _components("SWA", "MAMBA"), parts, window)


def _dsv4(kind, size):
    """A DeepSeek V4 model; "dsv4_low" has shared sources of the ratios 1 and 2 too.

    Its types are fixed: that of `size` plays no part.
    """
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    ratios, sources = ([0, 1, 2, 4, 128, 4], (1, 2)) if kind == "dsv4_low" else ([0, 4, 128, 4], ())
    page_size = size.page_size
    pool = DeepSeekV4TokenToKVPool(
        max_num_reqs=REQUESTS,
        swa_size=size.tokens,
        c4_size=size.tokens // 4,
        c128_size=size.tokens // 128,
        c4_state_pool_size=(size.pages + 1) * 8,
        c128_state_pool_size=REQUESTS * 128,
        page_size=page_size,
        swa_page_size=page_size,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=len(ratios),
        device="cpu",
        enable_memory_saver=False,
        compression_ratios=ratios,
        start_layer=0,
        end_layer=len(ratios),
        kv_source_layers=sources,
        full_size=size.tokens,
    )
    allocator = _swa_allocator(size, pool)
    parts = _dsv4_parts(pool, page_size)
    return Device(kind, size.page_size, allocator, _requests(size), _components("SWA"), parts, 128)


def _dsv4_parts(pool, page_size):
    """Returns the parts of a DeepSeek V4 pool: rows of whole pages, the states in rows of a page's ring."""
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler

    parts = [
        _part("swa", pool.swa_kv_pool.kv_buffer, "swa", page_size, True),
        _part("c4", pool.c4_kv_pool.kv_buffer, "full", page_size, True),
        _part("c128", pool.c128_kv_pool.kv_buffer, "full", page_size, True),
    ]
    for region in assembler._dsv4_indexer_regions(pool, page_size):
        parts.append(_part(str(region.name), region.device_buffers, "full", page_size, True))
    for name, _, buffers, _ in assembler._dsv4_low_ratio_regions(pool, page_size):
        parts.append(_part(str(name), buffers, "full", page_size, True))
    for name, states in (("c4_state", pool.compress_state_pools), ("index", pool.indexer_compress_state_pools)):
        rings = [_ring_rows(state) for state in states if state is not None and not state.request_scoped]
        parts.append(_part(name, rings, "swa", page_size, True))
    return parts


def _ring_rows(state):
    """Returns the memory of a compress state pool with one row per page of the sliding window."""
    memory = state.kv_score_buffer.kv_score
    rows = memory.shape[0] // state.ring_size
    return memory[: rows * state.ring_size].view(rows, -1)


def host_buffers(pool):
    """Returns the tensors in which a host pool keeps its pages; the logical anchor of DeepSeek V4 has none."""
    buffers = getattr(pool, "index_k_with_scale_buffer", None)
    if buffers is None:
        buffers = pool.kv_buffer
    if buffers is None:
        return []
    return list(buffers) if isinstance(buffers, (list, tuple)) else [buffers]
