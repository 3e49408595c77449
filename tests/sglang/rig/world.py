# SPDX-License-Identifier: Apache-2.0
"""One rank of SGLang's cache with a storage backend, driven the way the scheduler drives it, without a model.

A World has the real tree, controller, host pools and storage threads.  Device memory is plain memory (see cpu).
There is one World at a time in a process: SGLang's configuration belongs to the process.
"""

import array
import atexit
import contextlib
import logging
import time
import types

import torch

from . import content, cpu, pools
from .settings import DTYPES, Settings

TIMEOUT = 60.0
HOST_MEMORY = 2 << 30  # what the host pools of one World may take


class RigError(AssertionError):
    """Something did not happen that had to, or bytes differ."""


class World:
    """A rank; every method belongs to its scheduler thread."""

    def __init__(self, backend=None, **settings):
        """Starts the cache; with a `backend` it is attached as at the start of a server."""
        self.settings = Settings(**settings)
        self.timeout = TIMEOUT
        self._exit = contextlib.ExitStack()
        self._requests = 0
        cpu.install()
        try:
            self._start(backend)
        except BaseException:
            self._exit.close()
            raise

    def _start(self, backend):
        s = self.settings
        page_size = pools.page_size_of(s.kind, s.page_size)
        server_args = self._publish(backend, page_size)
        heads = s.heads // s.tp_size if s.heads else pools.HEADS
        self.device = pools.build(s.kind, pools.Size(page_size, s.dtype, s.pages, heads))
        self.page_size = page_size
        # The type is part of the content: the same bytes read as another type would be other numbers.
        self.content = content.Content((s.seed, str(s.dtype)), s.tp_rank, page_size)
        self.cache = self._make_cache(server_args)
        self.controller = self.cache.cache_controller
        cpu.unpin(entry.host_pool for entry in self.host_entries())

    def _publish(self, backend, page_size):
        """Publishes the server's configuration and this process's place among the ranks."""
        from sglang.srt import runtime_context

        s = self.settings
        fields = {
            "page_size": page_size,
            "device": "cpu",
            "served_model_name": s.model_name,
            "dtype": DTYPES[s.dtype][0],
            "kv_cache_dtype": DTYPES[s.dtype][1],
            "tp_size": s.tp_size,
            "hicache_ratio": 2.0,
            "hicache_size": 0,
            "hicache_mem_layout": s.layout,
            "hicache_io_backend": pools.IO_BACKEND[s.layout],
            "hicache_write_policy": "write_through",
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend": backend.name if backend else None,
            "hicache_storage_backend_extra_config": backend.json() if backend else None,
            "_mamba_cache_chunk_size": page_size,
        }
        override = runtime_context.get_context().override_server_args(**(fields | s.server_args))
        server_args = override.install()
        self._exit.callback(override.restore)
        ranks = {"tp_rank": s.tp_rank, "tp_size": s.tp_size, "pp_rank": s.pp_rank, "pp_size": s.pp_size}
        ranks |= {"attn_tp_rank": s.tp_rank, "attn_tp_size": s.tp_size, "attn_dcp_rank": 0}
        self._exit.enter_context(runtime_context.get_parallel().override(**ranks))
        return server_args

    def _make_cache(self, server_args):
        """Returns the tree with its controller and host pools, made as the scheduler makes them."""
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_hicache_draft_sidecars
        from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        device = self.device
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=device.requests,
            token_to_kv_pool_allocator=device.allocator,
            page_size=self.page_size,
            tp_cache_group=self.settings.group,
            sliding_window_size=device.window,
            tree_components=device.components,
            enable_mamba_extra_buffer=device.has_mamba,
            mtp_draft_device_pools=device.packed_drafts,
            tree_core_backend=self.settings.core,
        )
        cache = UnifiedRadixCache(params)
        self._exit.callback(cache.release_host_resources)
        with host_memory_budget_scope(HOST_MEMORY):
            cache.init_hicache(server_args, params)
            # SGLang would keep the cache until the process ends.
            self._exit.callback(atexit.unregister, cache.shutdown)
            self._exit.callback(cache.shutdown)
            if device.drafts:
                specs, entries = build_hicache_draft_sidecars(draft_device_pools=device.drafts, tree_cache=cache)
                for spec, entry in zip(specs, entries, strict=True):
                    cache.register_sidecar_pool(spec, entry)
        return cache

    def host_entries(self):
        """Returns the entries (name, host_pool, device_pool, ...) of the host pools, the anchor first."""
        return self.controller.mem_pool_host.entries

    @property
    def store(self):
        """The attached backend object, or None."""
        return self.controller.storage_backend

    # -- driving ------------------------------------------------------------------------------------------------

    def step(self):
        """Does what the scheduler does once per iteration."""
        self.cache.check_hicache_events()

    def wait(self, done, what):
        """Steps until `done()` on every rank; fails with `what` after the timeout."""
        deadline = time.monotonic() + self.timeout
        while not self._agreed(done()):
            if time.monotonic() > deadline:
                raise RigError(f"rig: {what} did not end within {self.timeout} s")
            self.step()
            time.sleep(0.0005)

    def _agreed(self, flag):
        """Returns whether `flag` is set on every rank; all ranks have to step equally often."""
        if self.settings.group is None:
            return flag
        vote = torch.tensor(int(flag))
        torch.distributed.all_reduce(vote, torch.distributed.ReduceOp.MIN, group=self.settings.group)
        return bool(vote)

    def key(self, tokens, extra_key=None, cache_salt=None):
        """Returns the tree's key of the whole pages of `tokens`."""
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(array.array("q", tokens), extra_key=extra_key, cache_salt=cache_salt)
        return key.page_aligned(self.page_size)

    def match(self, tokens, extra_key=None, cache_salt=None):
        """Returns the tree's MatchResult for `tokens`."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens, extra_key, cache_salt)))

    # -- what a request does --------------------------------------------------------------------------------------

    def insert(self, tokens, extra_key=None, cache_salt=None):
        """Puts the whole pages of `tokens` into device memory and into the tree, as a finished prefill does.

        Pages that the tree has on the device are reused, those that only the host has are loaded first.  The
        backup to the host and from there to the store starts at once; see `wait_backup`.
        """
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        identity = (extra_key, cache_salt)
        if self.match(tokens, *identity).host_hit_length:
            self.load_back(tokens, *identity)
        match = self.match(tokens, *identity)
        key = self.key(tokens, *identity)
        prefix = self.cache.path_device_indices(match.last_device_node)[: match.device_prefix_len]
        slots = torch.cat([prefix.to(torch.int64), self._allocate(prefix, len(key) - len(prefix))])
        digests = self.content.chain(tokens, *identity)
        first = len(prefix) // self.page_size
        params = InsertParams(key=key, value=slots.clone(), prev_prefix_len=len(prefix))
        self._write(digests[first:], slots[len(prefix) :])
        if self.device.has_mamba:
            params.mamba_value = self._mamba_state(digests[-1])
        result = self.cache.insert(params)
        if self.device.has_mamba and result.mamba_exist:
            self.device.requests.mamba_allocator.free(params.mamba_value)
        self.cache.flush_pending_backups()

    def _allocate(self, prefix, count):
        """Returns `count` new token slots that continue `prefix`, sliding window included."""
        if not count:
            return torch.empty(0, dtype=torch.int64)
        before = torch.tensor([len(prefix)])
        after = before + count
        last = prefix[-1:].to(torch.int64) if len(prefix) else torch.tensor([-1])
        slots = self.device.allocator.alloc_extend(before, before, after, after, last, count)
        if slots is None:
            raise RigError(f"rig: the device has no room for {count} tokens")
        return slots.to(torch.int64)

    def _write(self, digests, slots):
        """Fills the token memories of the pages `digests` at `slots`."""
        for part in self.device.parts:
            if part.source != "mamba":
                self.content.write(part, digests, self._slots_of(part, slots))

    def _mamba_state(self, digest):
        """Returns a new Mamba slot with the state after the page of `digest`."""
        slot = self.device.requests.mamba_allocator.alloc(1)
        if slot is None:
            raise RigError("rig: the device has no Mamba slot left")
        for part in self.device.parts:
            if part.source == "mamba":
                self.content.write(part, [digest], slot)
        return slot

    def _slots_of(self, part, slots):
        """Returns the slots of the pool of `part` for the token slots `slots`."""
        if part.source == "swa":
            return self.device.allocator.translate_loc_from_full_to_swa(slots)
        return slots

    def wait_backup(self):
        """Waits until nothing is on its way from the device to the host and from there to the store."""
        self.wait(lambda: not self.cache.ongoing_write_through and not self.cache.ongoing_backup, "the backup")

    def flush(self):
        """Forgets the tree, the device and the host, as /flush_cache does, and poisons both memories."""
        self.wait_backup()
        self.cache.reset()
        self.device.requests.clear()
        self.device.allocator.clear()
        content.poison([layer for part in self.device.parts for layer in part.layers])
        content.poison(buffer for entry in self.host_entries() for buffer in pools.host_buffers(entry.host_pool))

    def prefetch(self, tokens, extra_key=None, cache_salt=None):
        """Fetches what the tree lacks of `tokens` from the store to the host; returns the number of pages fetched."""
        identity = (extra_key, cache_salt)
        match = self.match(tokens, *identity)
        matched = match.device_prefix_len + match.host_hit_length
        handle = self._new_request()
        node = match.last_host_node
        prefix_keys = None
        if self.cache.hicache_storage_pass_prefix_keys:
            prefix_keys = self.cache.get_prefix_hash_values(node)
        rest = array.array("q", tokens[matched : len(self.key(tokens))])
        self.cache.prefetch_from_storage(
            handle,
            node,
            rest,
            self.cache.get_last_hash_value(node),
            prefix_keys,
            matched_prefix_tokens=list(tokens[:matched]),
            extra_key=extra_key,
            cache_salt=cache_salt,
        )
        self.wait(lambda: self.cache.check_prefetch_progress(handle), "the prefetch")
        return self.cache.pop_prefetch_loaded_tokens(handle) // self.page_size

    def _new_request(self):
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        self._requests += 1
        return CacheRequestHandle(f"request-{self._requests}", 0)

    def load_back(self, tokens, extra_key=None, cache_salt=None):
        """Loads what the host has of `tokens` to the device; returns the number of pages on the device then."""
        from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

        match = self.match(tokens, extra_key, cache_salt)
        request = types.SimpleNamespace(
            rid=self._new_request().rid,
            last_node=match.last_device_node,
            swa_host_hit_length=match.swa_host_hit_length,
            mamba_host_hit_length=match.mamba_host_hit_length,
            kv=types.SimpleNamespace(holds_mamba=False, mamba_pool_idx=None),
        )
        params = InitLoadBackParams(match.best_match_node, match.host_hit_length, req=request)
        self.cache.init_load_back(params)
        self.cache.ready_to_load_host_cache()
        self.wait(lambda: not self.cache.ongoing_load_back, "the load to the device")
        if request.kv.mamba_pool_idx is not None:
            self.device.requests.mamba_allocator.free(request.kv.mamba_pool_idx.view(1))
        return self.match(tokens, extra_key, cache_salt).device_prefix_len // self.page_size

    def check(self, tokens, extra_key=None, cache_salt=None, pages=None):
        """Compares the device's bytes for `tokens` with those that `insert` put there; returns the pages compared.

        All pages of the full pools, the last ones of a sliding window and the last Mamba state are compared.  With
        `pages` the tree has to have that many pages on the device.
        """
        match = self.match(tokens, extra_key, cache_salt)
        held = match.device_prefix_len // self.page_size
        if pages is not None and held != pages:
            raise RigError(f"rig: the device has {held} pages, expected {pages}")
        slots = self.cache.path_device_indices(match.last_device_node)[: match.device_prefix_len]
        digests = self.content.chain(tokens, extra_key, cache_salt)[:held]
        found = []
        for part in self.device.parts:
            found += self._differences(part, digests, slots, match)
        if found:
            raise RigError("rig: wrong bytes on the device\n  " + "\n  ".join(found[:12]))
        return held

    def _differences(self, part, digests, slots, match):
        """Returns what is wrong with the bytes of `part`."""
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

        if not digests:
            return []
        if part.source == "mamba":
            state = self.cache.tree_core.get_component_device_value(match.best_match_node, ComponentType.MAMBA)
            if state is None:
                return [f"{part.name}: the tree has no state at page {len(digests)}"]
            return self.content.differences(part, digests[-1:], state)
        if part.source == "swa":
            window = min(-(-self.device.window // self.page_size), len(digests))
            digests, slots = digests[-window:], slots[-window * self.page_size :]
        return self.content.differences(part, digests, self._slots_of(part, slots))

    def restore(self, tokens, extra_key=None, cache_salt=None):
        """Prefetches, loads and checks `tokens`; returns the number of pages whose bytes are right on the device."""
        self.prefetch(tokens, extra_key, cache_salt)
        self.load_back(tokens, extra_key, cache_salt)
        return self.check(tokens, extra_key, cache_salt)

    # -- the life of the backend ------------------------------------------------------------------------------------

    def attach(self, backend):
        """Attaches a backend at run time, as PUT /hicache/storage-backend does; fails with SGLang's words."""
        done, words = self.cache.attach_storage_backend(
            backend.name,
            backend.json(),
            served_model_name=self.settings.model_name,
            hicache_storage_prefetch_policy="wait_complete",
        )
        if not done:
            raise RigError(words)

    def detach(self):
        """Detaches the backend, as DELETE /hicache/storage-backend does."""
        self.wait_backup()
        done, words = self.cache.detach_storage_backend()
        if not done:
            raise RigError(words)

    def clear(self):
        """Empties the store, as POST /hicache/storage-backend/clear does."""
        if not self.cache.clear_storage_backend():
            raise RigError("rig: the backend was not cleared")

    def close(self):
        """Detaches the backend and lets go of the memory and of the process's configuration."""
        self._exit.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def quiet():
    """Lets SGLang log warnings only."""
    logging.getLogger("sglang").setLevel(logging.WARNING)
