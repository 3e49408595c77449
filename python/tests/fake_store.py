# SPDX-License-Identifier: Apache-2.0
"""A store in plain Python that is strict about what it is asked, in the place of larder.Store.

It holds each argument against what the C interface demands, and keeps pages under their whole identity, so that a page
that is found under less than that shows.
"""

import ctypes
import hashlib
import threading

import larder
from larder.store import MAX_KEYS, MAX_PAGES


class Wrong(AssertionError):
    """An argument that the C interface does not allow."""


def demand(condition, text):
    if not condition:
        raise Wrong(text)


def raw_key(key):
    demand(isinstance(key, (str, bytes)), f"a key is {key!r}")
    raw = bytes.fromhex(key) if isinstance(key, str) else key
    demand(len(raw) == 32 and (isinstance(key, bytes) or key == key.lower()), f"a key is {key!r}")
    return raw


class FakeStore:
    """Made with the arguments of larder.Store. `opened`: all of them, newest last."""

    opened = []

    def __init__(self, backend, config=None, memory=(), log=None):
        demand(isinstance(backend, str) and isinstance(config, dict), "backend and config")
        known = set(larder.option_help(backend)) | set(larder.option_help(None))
        for name in config:
            if name not in known:
                raise larder.Error(larder.Code.INVALID_ARGUMENT, f"unknown option {name}; known: {sorted(known)}")
        self.backend, self.config = backend, config
        self.memory = list(memory)
        self.pages = {}
        self.parents = {}
        self.lock = threading.Lock()
        self.spaces = []
        self.is_closed = False
        self.answer = None  # called before each call; may raise or wait
        FakeStore.opened.append(self)

    def space(self, **options):
        demand(not self.is_closed, "the store is closed")
        space = FakeSpace(self, **options)
        self.spaces.append(space)
        return space

    def stats(self):
        if self.is_closed:
            raise larder.Error(larder.Code.INVALID_ARGUMENT, "the store is closed")
        return {"pages": len(self.pages)}

    def metrics(self):
        return "larder_storage_pages 1\n" if self.stats() else ""

    def add_memory(self, regions):
        demand(not self.is_closed, "the store is closed")
        demand(all(address > 0 and size > 0 for address, size in regions), "regions")
        self.memory.extend(regions)

    def close(self, timeout=None):
        demand(all(space.is_closed for space in self.spaces), "spaces are open")
        self.is_closed = True


class FakeSpace:
    def __init__(self, store, *, page_size, identity, pools, adapter="", salt="", tp=(0, 1), pp=(0, 1), cp=(0, 1)):
        demand(page_size >= 1 and identity, "page_size and identity")
        demand(1 <= len(pools) <= 55 and len({pool.name for pool in pools}) == len(pools), "pools")
        for rank, size in (tp, pp, cp):
            demand(0 <= rank < size, "ranks")
        for pool in pools:
            demand(isinstance(pool.layout, str) and 0 <= pool.page_bytes < 1 << 32, "pool")
            demand((pool.trailing_pages >= 1) == (pool.hit_policy == larder.HitPolicy.TRAILING_PAGES), "trailing_pages")
            demand(1 <= len(pool.name) <= 63, "pool name")
        self.store, self.pools, self.identity = store, tuple(pools), identity
        self.is_closed = False
        self.users = 0
        namespace = self.namespace = (page_size, identity, adapter, salt, pp, cp)
        self.scopes = {
            pool.name: (namespace, pool.name, pool.layout, pool.page_bytes, None if pool.replicated else tp)
            for pool in pools
        }
        self.by_name = {pool.name: pool for pool in pools}

    def digest(self):
        return hashlib.sha256(repr(self.namespace).encode()).digest()

    def begin(self, timeout):
        demand(not self.is_closed, "the space is closed")
        demand(timeout is not None and timeout > 0, "a timeout")
        if self.store.answer is not None:
            self.store.answer()

    def exists(self, keys, needs=None, timeout=None, *, present=False, cancel=None):
        self.begin(timeout)
        demand(len(keys) <= MAX_KEYS and needs, "keys and needs")
        raw = [raw_key(key) for key in keys]
        masks = {}
        for need in needs:
            demand((need.trailing_pages >= 1) == (need.hit_policy == larder.HitPolicy.TRAILING_PAGES), "need")
            masks[need.pool] = [(self.scopes[need.pool], key) in self.store.pages for key in raw]
        anchor = [(self.scopes[self.pools[0].name], key) in self.store.pages for key in raw]
        lengths = [p for p in range(1, len(raw) + 1) if all(anchor[:p]) and all(_fits(masks, n, p) for n in needs)]
        words = (len(raw) + 63) // 64 * 8
        return larder.Exists(
            len(raw),
            sum(1 << (p - 1) for p in lengths).to_bytes(words, "little"),
            {name: sum(1 << i for i, b in enumerate(m) if b).to_bytes(words, "little") for name, m in masks.items()}
            if present
            else {},
        )

    def leading_pages(self, keys, timeout=None, *, cancel=None):
        return self.exists(keys, [larder.Need(self.pools[0].name)], timeout, cancel=cancel).best

    def get(self, keys, slots, layout, *, pool=None, timeout=None, cancel=None):
        return self.get_pages(self.located(keys, slots, layout, pool, None), timeout=timeout, cancel=cancel)

    def put(self, keys, slots, layout, *, pool=None, parent=None, **terms):
        return self.put_pages(self.located(keys, slots, layout, pool, parent), **terms)

    def located(self, keys, slots, layout, pool, parent):
        demand(len(keys) == len(slots) <= MAX_PAGES, "keys and slots")
        befores = [parent, *keys[:-1]]
        return [
            larder.Page(key, layout.addresses(slot) or None, pool, before)
            for key, slot, before in zip(keys, slots, befores)
        ]

    def get_pages(self, pages, *, timeout=None, cancel=None):
        self.begin(timeout)
        codes = []
        for page in pages:
            place = (self.scopes[page.pool], raw_key(page.key))
            data = self.store.pages.get(place)
            self.check_size(page)
            codes.append(larder.Code.NOT_FOUND if data is None else larder.Code.OK)
            for address, size in page.data or () if data is not None else ():
                ctypes.memmove(address, data[:size], size)
                data = data[size:]
        return codes

    def put_pages(self, pages, *, durable=False, retry=False, timeout=None, cancel=None):
        self.begin(timeout)
        demand(retry, "writes are tried again")
        for page in pages:
            self.check_size(page)
            if page.parent is not None:
                raw_key(page.parent)
            data = b"".join(ctypes.string_at(address, size) for address, size in page.data or ())
            with self.store.lock:
                self.store.pages[(self.scopes[page.pool], raw_key(page.key))] = data
                self.store.parents[(page.pool, page.key)] = page.parent
        return [larder.Code.OK] * len(pages)

    def check_size(self, page):
        size = sum(size for _, size in page.data or ())
        demand(size == self.by_name[page.pool].page_bytes, f"{page.pool}: {size} bytes")

    def clear(self, timeout=None):
        self.begin(timeout)
        with self.store.lock:
            self.store.pages = {
                place: data for place, data in self.store.pages.items() if place[0][0] != self.namespace
            }

    def close(self):
        self.is_closed = True


def _fits(masks, need, length):
    begin = max(0, length - need.trailing_pages) if need.hit_policy == larder.HitPolicy.TRAILING_PAGES else 0
    return all(masks[need.pool][begin:length])
