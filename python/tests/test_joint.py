# SPDX-License-Identifier: Apache-2.0
"""restorable_prefix_pages against the definition, on random patterns of what is stored."""

import os
import random

import fake_store
import larder
import pytest
from fake_engine import HostPool, StatePool, slots
from larder.sglang import queries

PATTERNS = int(os.environ.get("LARDER_JOINT_PATTERNS", "10000"))
SEED = int(os.environ.get("LARDER_JOINT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
MAX_PAGES = 70  # beyond a word of 64


class Pattern:
    """Which pages of a chain each pool has, and what a query needs of it."""

    def __init__(self, random_numbers):
        pick = random_numbers
        self.length = pick.choice((1, 2, 5, 12, 12, 12, MAX_PAGES))
        names = ["kv"] + [name for name in ("mamba", "swa", "indexer") if pick.random() < 0.7]
        self.keys = [pick.randbytes(32).hex() for _ in range(self.length)]
        density = {"kv": (0.9, 1.0, 1.0), "indexer": (0.95, 1.0), "swa": (0.5, 0.9, 1.0), "mamba": (0.1, 0.5, 1.0)}
        self.present = {}
        for name in names:
            chance = pick.choice(density[name])
            self.present[name] = [pick.random() < chance for _ in range(self.length)]
        self.window = pick.randint(1, 4)

    def trailing(self, name):
        return {"mamba": 1, "swa": self.window}.get(name)

    def has_all(self, name, length):
        width = self.trailing(name)
        begin = 0 if width is None else max(0, length - width)
        return all(self.present[name][begin:length])

    def restorable(self):
        return [p for p in range(1, self.length + 1) if all(self.has_all(name, p) for name in self.present)]

    def leading(self):
        return next((i for i, there in enumerate(self.present["kv"]) if not there), self.length)

    def boundary(self, name):
        return max((p for p in range(1, self.leading() + 1) if self.has_all(name, p)), default=0)


def store(storage, pattern):
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer

    for name, there in pattern.present.items():
        pages = [i for i, is_there in enumerate(there) if is_there]
        if pages:
            keys = [pattern.keys[i] for i in pages]
            indices = slots(*pages, page_size=1 if name == "mamba" else 2)
            assert storage.batch_set_v2([PoolTransfer(name=name, keys=keys, host_indices=indices)]) == {
                name: [True] * len(keys)
            }


def query(storage, pattern):
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer

    transfers = []
    for name in pattern.present:
        width = pattern.trailing(name)
        policy = PoolHitPolicy.ALL_PAGES if width is None else PoolHitPolicy.TRAILING_PAGES
        if name != "kv":
            transfers.append(PoolTransfer(name=name, keys=["_"] * width if width else None, hit_policy=policy))
    return storage.batch_exists_v2(pattern.keys, transfers, None)


@pytest.mark.parametrize("at_once", [None, 8])
def test_every_restorable_length_and_no_other(engine, make_storage, monkeypatch, at_once):
    """Also where a chain has more keys than a question may (at_once), and windows lie across its cuts."""
    if at_once is not None:
        monkeypatch.setattr(queries, "MAX_KEYS", at_once)
        monkeypatch.setattr(fake_store, "MAX_KEYS", at_once)
    pools = {
        "kv": HostPool(pages=MAX_PAGES, page_size=2, layer_num=1, width=2),
        "mamba": StatePool(pages=MAX_PAGES, width=1),
        "swa": HostPool(pages=MAX_PAGES, page_size=2, layer_num=1, width=3),
        "indexer": HostPool(pages=MAX_PAGES, page_size=2, layer_num=1, width=1),
    }
    storage = make_storage(pools)
    numbers = random.Random(SEED)
    total = PATTERNS // 20 if make_storage.is_fake or at_once else PATTERNS
    for i in range(total):
        pattern = Pattern(numbers)
        store(storage, pattern)
        found = query(storage, pattern)
        context = f"LARDER_JOINT_SEED={SEED}, pattern {i}: {pattern.present}, window {pattern.window}"
        expected = pattern.restorable()
        assert found.restorable_prefix_pages == expected, context
        assert found.kv_hit_pages == max(expected, default=0), context
        boundaries = {name: pattern.boundary(name) for name in pattern.present}
        assert found.extra_pool_hit_pages == {name: p for name, p in boundaries.items() if p}, context
        assert storage.batch_exists(pattern.keys) == pattern.leading(), context
        if i % 500 == 499:
            assert storage.clear() is True
    assert storage.troubles() == {}


def test_the_boundaries_of_windows_at_word_edges():
    for width in (1, 2, 3, 4, 7, 64):
        for pages in ([], [0], list(range(64)), list(range(63, 130)), [1, 2, 3, 65, 66, 67, 68]):
            mask = sum(1 << i for i in pages)
            windows = queries._windows(mask, width)
            for p in range(1, 131):
                assert bool(windows >> (p - 1) & 1) == all(i in pages for i in range(max(0, p - width), p)), (width, p)
            assert queries._leading(mask) == next(i for i in range(200) if i not in pages)
    assert larder.HitPolicy.ALL_PAGES == 0
