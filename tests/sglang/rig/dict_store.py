# SPDX-License-Identifier: Apache-2.0
"""A storage backend that keeps pages in a dictionary: it proves the rig, and its faulty children prove the checks.

The dictionaries belong to the process (one per "store" key of the config), so what one object has put there is
found by the next one, as with a server.  Keys carry the rank, the pool and the key of SGLang.
"""

import collections
import ctypes
import dataclasses
import threading

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolTransferResult,
)

STORES = collections.defaultdict(dict)


def as_bytes(tensor):
    """Returns a copy of `tensor` as bytes."""
    return tensor.contiguous().view(torch.uint8).clone()


class DictStorage(HiCacheStorage):
    """Keeps every page as bytes; `calls` records (thread, method, what) for every call."""

    def __init__(self, storage_config, kwargs):
        config = storage_config.extra_config or {}
        self.config = storage_config
        self.data = STORES[config.get("store", "default")]
        self.rank = 0 if storage_config.is_mla_model else storage_config.tp_rank
        self.pools = {}
        self.calls = []
        self.closed = False

    def note(self, method, **what):
        """Records a call; SGLang changes its transfers after a call, so copies are kept."""
        if "transfers" in what:
            what["transfers"] = [dataclasses.replace(transfer) for transfer in what["transfers"]]
        self.calls.append((threading.current_thread().name, method, what))

    # -- life

    def register_mem_pool_host(self, mem_pool_host):
        self.note("register_mem_pool_host", pool=type(mem_pool_host).__name__)
        self.anchor = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        self.note("register_mem_host_pool_v2", name=str(host_pool_name), pool=type(host_pool).__name__)
        self.pools[str(host_pool_name)] = host_pool

    def on_host_pools_registered(self):
        self.note("on_host_pools_registered")

    def clear(self):
        self.note("clear")
        self.data.clear()

    def get_stats(self):
        return None

    def close(self):
        self.note("close")
        self.closed = True

    # -- pages

    def name_of(self, pool, key):
        """Returns the name of a page; the state of Mamba differs between ranks even when the KV does not."""
        rank = self.config.tp_rank if pool == "mamba" else self.rank
        return (self.config.model_name, rank, pool, key)

    def put(self, pool, key, slot):
        """Stores the page of `pool` that begins at `slot`; returns whether it was stored."""
        segments = self.segments(pool, slot)
        if segments is None:
            page = bytes(as_bytes(self.pools[pool].get_data_page(slot, flat=True)).numpy())
        else:
            page = b"".join(ctypes.string_at(address, size) for address, size in segments)
        self.data[self.name_of(pool, key)] = page
        return True

    def fetch(self, pool, key, slot):
        """Reads a page into `slot`; returns whether it was there."""
        page = self.data.get(self.name_of(pool, key))
        if page is None:
            return False
        self.fill(pool, slot, page)
        return True

    def fill(self, pool, slot, page):
        """Writes the bytes `page` into the host's page at `slot`."""
        segments = self.segments(pool, slot)
        if segments is None:
            dummy = self.pools[pool].get_dummy_flat_data_page()
            flat = torch.frombuffer(bytearray(page), dtype=torch.uint8) if page else torch.empty(0)
            self.pools[pool].set_from_flat_data_page(slot, flat.view(dummy.dtype) if page else dummy)
            return
        if len(page) != sum(size for _, size in segments):
            raise ValueError(f"{pool}: a page of {len(page)} bytes was stored")
        for address, size in segments:
            ctypes.memmove(address, page[:size], size)
            page = page[size:]

    def segments(self, pool, slot):
        """Returns the (address, size) pairs of the page at `slot`; None where the pool gives no addresses."""
        host_pool = self.pools[pool]
        try:
            meta = host_pool.get_page_buffer_meta(torch.arange(slot, slot + host_pool.page_size))
        except (ValueError, NotImplementedError):
            return None
        return None if meta is None else list(zip(*meta, strict=True))

    def has(self, pool, key):
        """Tells whether a page is stored."""
        return self.name_of(pool, key) in self.data

    def move(self, action, pool, keys, host_indices):
        """Does `action` for every page; returns their results."""
        page_size = self.pools[pool].page_size
        if host_indices.numel() != len(keys) * page_size:
            raise ValueError(f"{pool}: {len(keys)} keys of {page_size} slots but {host_indices.numel()} indices")
        slots = host_indices[::page_size].tolist()
        return [action(pool, key, slot) for key, slot in zip(keys, slots, strict=True)]

    # -- v1

    def batch_exists(self, keys, extra_info=None):
        self.note("batch_exists", keys=len(keys), extra_info=extra_info)
        return next((page for page, key in enumerate(keys) if not self.has("kv", key)), len(keys))

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        self.note("batch_set_v1", keys=len(keys), indices=host_indices, extra_info=extra_info)
        return self.move(self.put, "kv", keys, host_indices)

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        self.note("batch_get_v1", keys=len(keys), indices=host_indices, extra_info=extra_info)
        return self.move(self.fetch, "kv", keys, host_indices)

    # -- v2

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        self.note("batch_exists_v2", keys=len(keys), transfers=pool_transfers or [], extra_info=extra_info)
        kv_pages = next((page for page, key in enumerate(keys) if not self.has("kv", key)), len(keys))
        restorable = [length for length in range(1, kv_pages + 1)]
        hits = {"kv": kv_pages}
        for transfer in pool_transfers or []:
            lengths = [length for length in range(1, kv_pages + 1) if self.covers(transfer, keys, length)]
            hits[transfer.name] = max(lengths, default=0)
            restorable = [length for length in restorable if length in lengths]
        return PoolTransferResult(max(restorable, default=0), hits, restorable)

    def covers(self, transfer, keys, length):
        """Tells whether the pool of `transfer` has what a prefix of `length` pages needs."""
        first = 0
        if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            first = max(0, length - max(1, len(transfer.keys or [])))
        return all(self.has(str(transfer.name), key) for key in keys[first:length])

    def batch_set_v2(self, transfers, extra_info=None):
        self.note("batch_set_v2", transfers=transfers, extra_info=extra_info)
        return {t.name: self.move(self.put, str(t.name), t.keys, t.host_indices) for t in transfers}

    def batch_get_v2(self, transfers, extra_info=None):
        self.note("batch_get_v2", transfers=transfers, extra_info=extra_info)
        return {t.name: self.move(self.fetch, str(t.name), t.keys, t.host_indices) for t in transfers}

    # -- the generic interface, used without interface_v1

    def exists(self, key):
        return self.has("kv", key)

    def get(self, key, target_location=None, target_sizes=None):
        page = self.data.get(self.name_of("kv", key))
        return None if page is None else torch.frombuffer(bytearray(page), dtype=torch.uint8).view(self.anchor.dtype)

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        self.note("batch_get", keys=len(keys))
        return [self.get(key) for key in keys]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        self.data[self.name_of("kv", key)] = bytes(as_bytes(value).numpy())
        return True

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        self.note("batch_set", keys=len(keys))
        return all(self.set(key, value) for key, value in zip(keys, values, strict=True))


class WrongBytes(DictStorage):
    """Gives back pages of one pool ("pool" of the config) with one bit changed."""

    def fetch(self, pool, key, slot):
        page = self.data.get(self.name_of(pool, key))
        if page is None or pool != self.config.extra_config.get("pool", "kv"):
            return super().fetch(pool, key, slot)
        self.fill(pool, slot, page[:-1] + bytes([page[-1] ^ 1]))
        return True


class ReadsNothing(DictStorage):
    """Says that it has read every page and reads none."""

    def fetch(self, pool, key, slot):
        return self.has(pool, key)


class SwapsPages(DictStorage):
    """Gives the page of another key: each second page is that of the key before."""

    def move(self, action, pool, keys, host_indices):
        if action == self.fetch:
            keys = [keys[number - number % 2] for number in range(len(keys))]
        return super().move(action, pool, keys, host_indices)


class Forgets(DictStorage):
    """Stores no page after the first three of the KV."""

    def put(self, pool, key, slot):
        kv_pages = sum(1 for name in self.data if name[2] == "kv")
        return super().put(pool, key, slot) if pool != "kv" or kv_pages < 3 else True


class WrongRestorable(DictStorage):
    """Answers that every length up to the KV's is restorable, whatever the other pools have."""

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        kv_pages = super().batch_exists(keys, extra_info)
        return PoolTransferResult(kv_pages, {"kv": kv_pages}, list(range(1, kv_pages + 1)))


class FindsAnything(DictStorage):
    """Has every page as soon as it has one of the pool, and gives the last one."""

    def has(self, pool, key):
        return any(name[2] == pool for name in self.data)

    def fetch(self, pool, key, slot):
        pages = [page for name, page in self.data.items() if name[2] == pool]
        self.fill(pool, slot, pages[-1])
        return True


class Raises(DictStorage):
    """Fails in the middle of every read."""

    def fetch(self, pool, key, slot):
        raise OSError("the store is broken")


def rank_that_loses_a_page(rank, count, group, losses):
    """A rank of `count`, for each (kind, pool): the last rank loses its last page of `pool`.

    Returns the numbers of pages that this rank restored then.
    """
    from . import settings, world

    world.quiet()
    restored = []
    for kind, pool in losses:
        backend = settings.dynamic("rig.dict_store", "DictStorage", store=f"{kind}-{pool}")
        with world.World(backend, kind=kind, tp_rank=rank, tp_size=count, group=group) as w:
            tokens = list(range(6 * w.page_size))
            w.insert(tokens[: 4 * w.page_size])
            w.insert(tokens)
            w.flush()
            if rank == count - 1:
                del w.store.data[[name for name in w.store.data if name[2] == pool][-1]]
            restored.append(w.restore(tokens))
    return restored
