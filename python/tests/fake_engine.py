# SPDX-License-Identifier: Apache-2.0
"""What LarderStorage sees of SGLang, small: host pools over numpy arrays, and stand-ins for SGLang's types."""

import dataclasses
import enum
import importlib.util
import sys
import types

import numpy

HAS_SGLANG = importlib.util.find_spec("sglang") is not None


class Tensor:
    """The part of a CPU tensor that is used, over a numpy array."""

    def __init__(self, array, owner=None):
        self.array = array
        self.owner = array if owner is None else owner
        self.device, self.dtype = "cpu", str(array.dtype)

    shape = property(lambda self: self.array.shape)

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, place):
        return Tensor(self.array[place], self.owner)

    def tolist(self):
        return self.array.tolist()

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def untyped_storage(self):
        return Tensor(self.owner)

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def contiguous(self):
        return self if self.is_contiguous() else Tensor(self.array.copy())

    def cpu(self):
        return self

    def flatten(self):
        return Tensor(self.array.reshape(-1))


def slots(*pages, page_size):
    """host_indices of pages, by page number."""
    every = [numpy.arange(p * page_size, (p + 1) * page_size) for p in pages]
    return Tensor(numpy.concatenate(every or [[]]).astype("q"))


class HostPool:
    """K and V of all layers, page first: two segments a page; get_data_page() is a view in the same order."""

    dtype = "torch.bfloat16"

    def __init__(self, pages=40, page_size=4, layer_num=2, width=6, layout="page_first", seed=1, **attributes):
        self.page_size, self.layer_num, self.layout, self.size = page_size, layer_num, layout, pages * page_size
        self.start_layer, self.end_layer = 0, layer_num
        self.kv_buffer = numpy.zeros(self.shape(pages, page_size, layer_num, width), "u1")
        self.fill(seed)
        for name, value in attributes.items():
            setattr(self, name, value)

    def shape(self, pages, page_size, layer_num, width):
        return (2, pages, page_size, layer_num, width)

    def fill(self, seed):
        self.kv_buffer[...] = numpy.random.default_rng(seed).integers(0, 256, self.kv_buffer.shape, "u1")

    def clear(self):
        """As SGLang's flush does."""

    def page(self, number):
        """A copy of a page's bytes in flat order."""
        return self.view(number).tobytes()

    def view(self, number):
        return self.kv_buffer[:, number]

    def set_page(self, number, value):
        self.view(number)[...] = value

    def get_data_page(self, index, flat=True):
        view = self.view(int(index) // self.page_size)
        return Tensor(view.reshape(-1).copy()) if flat else Tensor(view, self.kv_buffer)

    def get_dummy_flat_data_page(self):
        return Tensor(numpy.zeros(self.view(0).size, "u1"))

    def set_from_flat_data_page(self, index, data):
        view = self.view(int(index) // self.page_size)
        view[...] = data.array.reshape(view.shape)

    def get_page_buffer_meta(self, indices):
        assert len(indices) % self.page_size == 0
        pages = [slot // self.page_size for slot in indices.tolist()[:: self.page_size]]
        pieces = [piece for page in pages for piece in self.pieces(self.view(page))]
        return [address for address, _ in pieces], [size for _, size in pieces]

    def pieces(self, view):
        return [(half.__array_interface__["data"][0], half.nbytes) for half in view]


class HeadPool(HostPool):
    """Some of a model's heads, page head; what a head holds is the same whatever rank it is on."""

    HEADS, DIM = 8, 6

    def __init__(self, rank=0, ranks=1, heads=HEADS, **attributes):
        self.head_num, self.head_dim = heads // ranks, self.DIM
        self.rank, self.heads = rank, heads
        super().__init__(layout="page_head", **attributes)
        self.size_per_token = 2 * self.head_num * self.layer_num * self.DIM

    def shape(self, pages, page_size, layer_num, width):
        return (2, pages, self.head_num, page_size, layer_num, self.DIM)

    def fill(self, seed):
        shape = self.kv_buffer.shape
        whole = numpy.random.default_rng(seed).integers(0, 256, (*shape[:2], self.heads, *shape[3:]), "u1")
        first = self.rank * self.head_num
        self.kv_buffer[...] = whole[:, :, first : first + self.head_num]

    def get_split_heads_page_buffer_meta(self, indices, pieces):
        assert self.head_num % pieces == 0
        every = []
        for slot in indices.tolist()[:: self.page_size]:
            view = self.view(slot // self.page_size)
            for first in range(0, self.head_num, self.head_num // pieces):
                every += self.pieces(view[:, first : first + self.head_num // pieces])
        return [address for address, _ in every], [size for _, size in every]


class LayerFirstPool(HostPool):
    """Layer first: the engine lists k0, v0, k1, v1 ..., while the flat page is k0, k1 ..., v0, v1 ..."""

    def shape(self, pages, page_size, layer_num, width):
        return (2, layer_num, pages, page_size, width)

    def view(self, number):
        return self.kv_buffer[:, :, number]

    def pieces(self, view):
        return [(view[half, layer].__array_interface__["data"][0], view[half, layer].nbytes)
                for layer in range(view.shape[1]) for half in range(2)]  # fmt: skip


class UnlistedPool(LayerFirstPool):
    """Does not list its pieces: DSA's indexer, layer first."""

    def get_page_buffer_meta(self, indices):
        raise ValueError(f"Unsupported layout: {self.layout}")


class StatePool(HostPool):
    """Recurrent state: a page is a slot, in pieces of two sizes; get_data_page() is a copy."""

    def __init__(self, pages=12, **attributes):
        super().__init__(pages=pages, page_size=1, **attributes)
        del self.layer_num
        self.num_mamba_layers = 2

    def get_data_page(self, index, flat=True):
        return Tensor(self.view(int(index)).reshape(-1).copy())


class CopiedPool(StatePool):
    """State with side states: nothing but copies."""

    def get_page_buffer_meta(self, indices):
        raise NotImplementedError("side states")


class ScatteredPool(StatePool):
    """Page p lies at place (5 * p) % pages: no map of numbers to addresses."""

    def view(self, number):
        pages = self.kv_buffer.shape[1]
        return self.kv_buffer[:, (number * 5) % pages if pages % 5 else number]

    def get_page_buffer_meta(self, indices):
        order = [int(slot) for slot in indices.tolist()]
        pieces = [piece for slot in order for piece in self.pieces(self.view(slot))]
        return [address for address, _ in pieces], [size for _, size in pieces]


class LogicalPool:
    """The anchor of a model whose KV is in other pools."""

    dtype, layer_num, size_per_token, kv_buffer, layout = "torch.uint8", 0, 0, None, "layer_first"

    def __init__(self, pages=40, page_size=4):
        self.page_size, self.size = page_size, pages * page_size

    def get_page_buffer_meta(self, indices):
        return None

    def get_data_page(self, index, flat=True):
        return Tensor(numpy.zeros(0, "u1"))

    get_dummy_flat_data_page = get_data_page


class BrokenPool(HostPool):
    """Nothing of it works, as of pools that SGLang cannot store."""

    def get_page_buffer_meta(self, indices):
        raise NotImplementedError("no pages")

    get_data_page = get_dummy_flat_data_page = get_page_buffer_meta


@dataclasses.dataclass
class Config:
    """As HiCacheStorageConfig."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = True
    is_page_first_layout: bool = True
    model_name: str = "model"
    tp_lcm_size: int = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int = None


def install():
    """Puts stand-ins for SGLang's modules where it is not installed."""
    if HAS_SGLANG:
        return
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")

    class HiCacheStorage:
        def register_mem_pool_host(self, pool):
            self.mem_pool_host = pool

        def register_mem_host_pool_v2(self, pool, name):
            self.__dict__.setdefault("registered_pools", {})[name] = pool

        def on_host_pools_registered(self):
            pass

    class PoolHitPolicy(str, enum.Enum):
        ALL_PAGES = "all_pages"
        TRAILING_PAGES = "trailing_pages"
        BLOCK_GROUPS = "block_groups"

    transfer = [("name", str), *((name, object, None) for name in ("host_indices", "device_indices", "keys"))]
    transfer += [("hit_policy", object, PoolHitPolicy.ALL_PAGES), ("indices_from_pool", object, None)]
    result = [("kv_hit_pages", int), ("extra_pool_hit_pages", dict), ("restorable_prefix_pages", list, None)]
    extra = [("prefix_keys", list, None), ("extra_info", dict, None)]
    storage.HiCacheStorage, storage.PoolHitPolicy = HiCacheStorage, PoolHitPolicy
    storage.PoolTransfer = dataclasses.make_dataclass("PoolTransfer", transfer)
    storage.PoolTransferResult = dataclasses.make_dataclass("PoolTransferResult", result)
    storage.HiCacheStorageExtraInfo = dataclasses.make_dataclass("HiCacheStorageExtraInfo", extra)
    metrics = types.ModuleType("sglang.srt.observability.metrics_collector")
    lists = ("prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")
    metrics.StorageMetrics = dataclasses.make_dataclass(
        "StorageMetrics", [(name, list, dataclasses.field(default_factory=list)) for name in lists]
    )
    context = types.ModuleType("sglang.srt.runtime_context")
    for name in ("get_model", "get_serving", "get_spec", "get_parallel"):
        setattr(context, name, None)
    for module in (storage, metrics, context):
        parts = module.__name__.split(".")
        for i in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
        sys.modules[module.__name__] = module
        setattr(sys.modules[".".join(parts[:-1])], parts[-1], module)
