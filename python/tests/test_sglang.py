# SPDX-License-Identifier: Apache-2.0
"""LarderStorage as SGLang calls it, on a strict store in Python and on the real one in memory."""

import hashlib
import json
import logging
import threading
import time

import fake_engine
import numpy
import pytest
from fake_engine import Config, CopiedPool, HostPool, LayerFirstPool, LogicalPool, ScatteredPool, StatePool, slots
from fake_store import FakeStore

import larder


def chain(count, name="chain"):
    return [hashlib.sha256(f"{name} {i}".encode()).hexdigest() for i in range(count)]


def transfer(name, keys=None, host_indices=None, policy="ALL_PAGES"):
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer

    return PoolTransfer(name=name, keys=keys, host_indices=host_indices, hit_policy=PoolHitPolicy[policy])


def prefix(*keys):
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

    return HiCacheStorageExtraInfo(prefix_keys=list(keys))


POOLS = {
    "view is the list": (HostPool, "mapped"),
    "layer first": (LayerFirstPool, "mapped"),
    "view only": (fake_engine.UnlistedPool, "mapped"),
    "list only": (StatePool, "mapped"),
    "no map": (ScatteredPool, "listed"),
    "copies only": (CopiedPool, "copied"),
}


@pytest.mark.parametrize("kind", POOLS)
def test_pages_come_back_from_every_kind_of_pool(make_storage, kind):
    make, reach = POOLS[kind]
    pool = make(pages=12)
    storage = make_storage({"kv": pool})
    assert storage._spaces._pools["kv"].reach.value == reach
    keys, there, back = chain(5), (3, 1, 7, 11, 0), (2, 4, 6, 8, 10)
    before = [pool.page(p) for p in there]
    untouched = pool.page(9)
    assert storage.batch_set_v1(keys, slots(*there, page_size=pool.page_size), prefix()) == [True] * 5
    pool.fill(99)
    after = [pool.page(p) for p in there]
    fresh = pool.page(9)
    assert storage.batch_exists(keys + chain(1, "other"), prefix()) == 5
    assert storage.batch_get_v1(keys, slots(*back, page_size=pool.page_size), prefix()) == [True] * 5
    assert [pool.page(p) for p in back] == before
    assert pool.page(9) == fresh != untouched
    assert [pool.page(p) for p in there if p not in back] == [a for p, a in zip(there, after) if p not in back]


@pytest.mark.parametrize("spelling", [True, "true"])
@pytest.mark.parametrize("make_pool", [HostPool, LayerFirstPool, StatePool])
def test_zero_copy_lends_the_host_pools_memory_once(make_storage, make_pool, spelling):
    if not make_storage.is_fake:
        pytest.skip("needs the fake store")
    pool = make_pool(pages=12)
    storage = make_storage({"kv": pool}, zero_copy=spelling)
    storage.register_mem_host_pool_v2(pool, "kv")
    regions = sorted(storage._store.memory)
    layout = storage._spaces._pools["kv"].layout
    pages = [piece for slot in range(0, layout.slots, layout.slots_per_page) for piece in layout.addresses(slot)]
    assert all(any(at <= a and a + n <= at + size for at, size in regions) for a, n in pages)
    assert sum(size for _, size in regions) == sum(n for _, n in pages)  # nothing twice, nothing beyond


def test_staged_transfers_need_no_memory_of_the_host_pools(fake_storage):
    assert fake_storage._store.memory == []


def test_layer_first_pages_lie_in_flat_order(make_storage):
    """So the same page can be read with and without interface_v1."""
    pool = LayerFirstPool()
    storage = make_storage({"kv": pool})
    keys = chain(2)
    assert storage.batch_set_v1(keys, slots(5, 6, page_size=4), prefix()) == [True, True]
    target = pool.get_dummy_flat_data_page()
    assert storage.get(keys[1], target) is target and target.array.tobytes() == pool.page(6)
    assert storage.set(chain(3)[2], pool.get_data_page(4 * 9)) is True
    assert storage.batch_get_v1(chain(3)[2:], slots(1, page_size=4), prefix()) == [True]
    assert pool.page(1) == pool.page(9)


def test_the_methods_without_interface_v1(make_storage):
    pool = HostPool()
    storage = make_storage({"kv": pool})
    keys = chain(3)
    assert storage.batch_set(keys, [pool.get_data_page(4 * p) for p in range(3)]) is True
    assert storage.exists(keys[2]) is True and storage.exists(chain(1, "no")[0]) is False
    assert storage.batch_exists(keys) == 3
    got = storage.batch_get([*keys[:2], chain(1, "no")[0]], [pool.get_dummy_flat_data_page() for _ in range(3)])
    assert [t is not None for t in got] == [True, True, False]
    assert got[1].array.tobytes() == pool.page(1)
    assert storage.get(keys[0]).array.tobytes() == pool.page(0)
    assert storage.set(keys[0], fake_engine.Tensor(numpy.zeros(5, "u1"))) is False
    assert storage.set(keys[0], None) is False and storage.batch_set(keys, None) is False
    assert storage.batch_get(keys, [None]) == [None] * 3
    if isinstance(pool, StatePool):
        assert storage.troubles()


def test_a_pool_whose_flat_page_is_another_order_has_no_flat_methods(make_storage):
    storage = make_storage({"kv": StatePool()})
    assert storage.set(chain(1)[0], StatePool().get_data_page(0)) is False
    assert storage.get(chain(1)[0], StatePool().get_dummy_flat_data_page()) is None
    assert storage.troubles() == {"set: ValueError": 1, "get: ValueError": 1}


def test_a_hybrid_model_is_restorable_where_all_pools_are(make_storage):
    kv, mamba, swa, indexer = HostPool(), StatePool(), HostPool(seed=3), HostPool(seed=4, layer_num=1)
    storage = make_storage({"kv": kv, "mamba": mamba, "swa": swa, "indexer": indexer})
    keys = chain(8)
    every = slots(*range(8), page_size=4)
    done = storage.batch_set_v2(
        [
            transfer("mamba", [keys[4]], slots(2, page_size=1), "TRAILING_PAGES"),
            transfer("swa", keys[2:5], slots(1, 2, 3, page_size=4), "TRAILING_PAGES"),
            transfer("indexer", keys, every),
        ],
        extra_info=prefix(),
    )
    assert done == {"mamba": [True], "swa": [True] * 3, "indexer": [True] * 8}
    wanted = [
        transfer("mamba", ["_"], policy="TRAILING_PAGES"),
        transfer("swa", ["_"] * 2, policy="TRAILING_PAGES"),
        transfer("indexer", None),
    ]
    assert storage.batch_exists_v2(keys, wanted, prefix()).restorable_prefix_pages == []
    assert storage.batch_set_v1(keys, every, prefix()) == [True] * 8
    found = storage.batch_exists_v2(keys, wanted, prefix())
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [5])
    assert found.extra_pool_hit_pages == {"kv": 8, "mamba": 5, "swa": 5, "indexer": 8}
    alone = storage.batch_exists_v2(keys, wanted[1:2], prefix())
    assert (alone.kv_hit_pages, alone.restorable_prefix_pages) == (5, [4, 5])
    for pool in (kv, mamba, swa, indexer):
        pool.fill(7)
    state = storage.batch_get_v2([transfer("mamba", [keys[4]], slots(9, page_size=1))], extra_info=prefix())
    assert state == {"mamba": [True]}
    assert mamba.page(9) == StatePool().page(2)


def test_block_groups_never_bound_a_hit(make_storage):
    storage = make_storage({"kv": HostPool(), "deepseek_v4_c128": HostPool()})
    keys = chain(3)
    storage.batch_set_v1(keys, slots(0, 1, 2, page_size=4), prefix())
    found = storage.batch_exists_v2(keys, [transfer("deepseek_v4_c128", None, policy="BLOCK_GROUPS")], prefix())
    assert found.restorable_prefix_pages == [1, 2, 3]
    assert "deepseek_v4_c128" not in found.extra_pool_hit_pages


def test_a_logical_anchor_is_a_marker(make_storage):
    storage = make_storage({"kv": LogicalPool(), "deepseek_v4_c4": HostPool()}, Config(is_mla_model=True))
    keys = chain(3)
    indices = slots(0, 1, 2, page_size=4)
    assert storage.batch_get_v1(keys, indices, prefix()) == [False] * 3
    assert storage.batch_set_v1(keys, indices, prefix()) == [True] * 3
    assert storage.batch_get_v1(keys, indices, prefix()) == [True] * 3
    assert storage.batch_set_v2([transfer("deepseek_v4_c4", keys[:2], slots(0, 1, page_size=4))]) == {
        "deepseek_v4_c4": [True, True]
    }
    assert storage.batch_exists_v2(keys, [transfer("deepseek_v4_c4")]).restorable_prefix_pages == [1, 2]
    assert storage.set(chain(1, "flat")[0], fake_engine.Tensor(numpy.zeros(0, "u1"))) is True


def test_a_pool_that_comes_late_leaves_stored_pages_as_they_are(make_storage):
    storage = make_storage({"kv": HostPool()})
    keys = chain(2)
    storage.batch_set_v1(keys, slots(0, 1, page_size=4), prefix())
    assert storage.batch_exists_v2(keys, [transfer("draft")]).restorable_prefix_pages == []
    storage.register_mem_host_pool_v2(HostPool(seed=5), "draft")
    assert storage.batch_exists(keys) == 2
    assert storage.batch_exists_v2(keys, [transfer("draft")]).restorable_prefix_pages == []
    assert storage.batch_set_v2([transfer("draft", keys, slots(4, 5, page_size=4))]) == {"draft": [True, True]}
    assert storage.batch_exists_v2(keys, [transfer("draft")]).restorable_prefix_pages == [1, 2]


def test_new_weights_have_pages_of_their_own(make_storage, engine):
    pool = HostPool()
    storage = make_storage({"kv": pool})
    keys = chain(2)
    for version in ("default", "2", "3", "4", "5", "6"):
        engine.serving.weight_version = version
        pool.clear()
        assert storage.batch_exists(keys) == 0, version
        assert storage.batch_set_v1(keys, slots(0, 1, page_size=4), prefix()) == [True, True]
    assert len(storage._spaces._open) <= 4
    engine.serving.weight_version = "default"
    assert storage.batch_exists(keys) == 2
    assert storage.clear() is True
    assert storage.batch_exists(keys) == 0


IDENTITY = {
    "dtype": lambda engine, config, pool: setattr(engine.model, "dtype", "float16"),
    "kv_cache_dtype": lambda engine, config, pool: setattr(engine.model, "kv_cache_dtype", "fp8_e5m2"),
    "model_path": lambda engine, config, pool: setattr(engine.model, "model_path", "other"),
    "overrides": lambda engine, config, pool: setattr(engine.model, "json_model_override_args", '{"rope": 1}'),
    "model_name": lambda engine, config, pool: setattr(config, "model_name", "served"),
    "tp_rank": lambda engine, config, pool: config.__dict__.update(tp_rank=1, tp_size=2),
    "pp_rank": lambda engine, config, pool: config.__dict__.update(pp_rank=1, pp_size=2),
    "cp_rank": lambda engine, config, pool: config.__dict__.update(attn_cp_rank=1, attn_cp_size=2),
    "layout": lambda engine, config, pool: setattr(pool, "layout", "page_first_direct"),
    "pool dtype": lambda engine, config, pool: setattr(pool, "dtype", "torch.float16"),
    "layers": lambda engine, config, pool: setattr(pool, "start_layer", 2),
    "heads": lambda engine, config, pool: setattr(pool, "head_num", 8),
    "engine": lambda engine, config, pool: setattr(config, "other", {"engine_version": "0.6"}),
    "weights": lambda engine, config, pool: setattr(config, "other", {"weights_fingerprint": "v"}),
    "scales": lambda engine, config, pool: setattr(engine.model, "quantization_param_path", "scales.json"),
    "quantized weights": lambda engine, config, pool: setattr(engine.model, "modelopt_checkpoint_restore_path", "q.pt"),
    "profile": lambda engine, config, pool: setattr(engine.model, "rl_quant_profile", "p.pt"),
    "description": lambda engine, config, pool: setattr(engine.model, "decrypted_config_file", "c.json"),
    "adapter in the weights": lambda engine, config, pool: setattr(
        engine.model, "model_loader_extra_config", '{"qlora_adapter_name_or_path": "a"}'
    ),
}


@pytest.mark.parametrize("change", IDENTITY)
def test_whatever_changes_the_meaning_changes_the_pages(engine, monkeypatch, change):
    """Two backends on one store: what one has stored, the other finds only if everything agrees."""
    from larder.sglang import LarderStorage

    shared = FakeStore("memory", {})
    monkeypatch.setattr(larder, "Store", lambda *args, **options: shared)

    def storage_of(config, pool):
        config.extra_config = {"weights_fingerprint": "w", "interface_v1": 1, **getattr(config, "other", {})}
        storage = LarderStorage(config, {})
        storage.register_mem_pool_host(pool)
        return storage

    keys = chain(2)
    one = storage_of(Config(), HostPool())
    assert one.batch_set_v1(keys, slots(0, 1, page_size=4), prefix()) == [True, True]
    assert storage_of(Config(), HostPool(pages=20)).batch_exists(keys) == 2
    config, pool = Config(), HostPool()
    IDENTITY[change](engine, config, pool)
    assert storage_of(config, pool).batch_exists(keys) == 0


def test_who_shares_pages_between_ranks(make_storage):
    names = {"kv": HostPool(), "mamba": StatePool(), "swa": HostPool(), "indexer": HostPool(), "new": HostPool()}
    for name, shared in (("draft", True), ("draft_swa", False)):
        names[name] = HostPool() if shared else HostPool(head_num=2)
    latent = make_storage(names, Config(is_mla_model=True, tp_size=2))
    assert {n: p.pool.replicated for n, p in latent._spaces._pools.items()} == {
        "kv": True, "mamba": False, "swa": True, "indexer": True, "new": False, "draft": True, "draft_swa": False,
    }  # fmt: skip
    assert latent.troubles() == {"pool draft_swa": 1, "pool new": 1}
    heads = make_storage(names, Config(tp_size=2))
    assert not any(p.pool.replicated for p in heads._spaces._pools.values()) and not heads.troubles()


def test_all_of_sglangs_names_have_a_rule():
    from larder.sglang.pools import RULES

    assert len(RULES) == 23
    if fake_engine.HAS_SGLANG:
        from sglang.srt.mem_cache.hicache_storage import PoolName

        assert {name.value for name in PoolName} == set(RULES)


def test_the_draft_model_is_part_of_what_its_pools_mean(engine, make_storage):
    engine.spec.speculative_draft_model_path = "draft-model"
    pools = {"kv": HostPool(), "draft": HostPool(), "mamba": StatePool(), "indexer": HostPool(target_layer_num=1)}
    storage = make_storage(pools, draft_weights_fingerprint="d1")
    layouts = {name: json.loads(pool.pool.layout) for name, pool in storage._spaces._pools.items()}
    assert {name for name, layout in layouts.items() if "d1" in str(layout.get("draft"))} == {"draft", "indexer"}


# ---- troubles ----


@pytest.mark.parametrize("make_pool", [HostPool, LayerFirstPool])
@pytest.mark.parametrize("at", [0, 3])
def test_slots_that_are_no_page_are_neither_stored_nor_filled(make_storage, make_pool, at):
    """A page of two halves would be stored as the page that its first slot is in: wrong bytes under a right key."""
    pool = make_pool()
    storage = make_storage({"kv": pool})
    keys = chain(4)
    mixed = slots(0, 1, 2, 3, page_size=4)
    mixed.array[at * 4 + 2 : at * 4 + 4] = [30, 31]
    assert storage.batch_set_v1(keys, mixed) == [False] * 4
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, slots(0, 1, 2, 3, page_size=4)) == [True] * 4
    before = [pool.page(number) for number in range(40)]
    pages = slots(10, 11, 12, 13, page_size=4)
    pages.array[at * 4 + 2 : at * 4 + 4] = [30, 31]
    assert storage.batch_get_v1(keys, pages) == [False] * 4
    assert [pool.page(number) for number in range(40)] == before
    assert set(storage.troubles()) == {"set: ValueError", "get: ValueError"}


def test_wrong_arguments_are_misses(make_storage):
    storage = make_storage()
    keys = chain(2)
    assert storage.batch_set_v1(keys, slots(0, page_size=4), prefix()) == [False, False]
    assert storage.batch_get_v1(keys, None, None) == [False, False]
    assert storage.batch_get_v1(keys, slots(0, 99, page_size=4)) == [False, False]
    assert storage.batch_get_v1(["xyz"], slots(0, page_size=4)) == [False]
    assert storage.batch_get_v1([], slots(page_size=4)) == []
    assert storage.batch_get_v1(None, None) == []
    assert storage.batch_get_v2(None) == {} and storage.batch_set_v2([]) == {}
    assert storage.batch_get_v2([transfer("nothing", keys, slots(0, 1, page_size=4))]) == {"nothing": [False, False]}
    assert storage.batch_get_v2([transfer("kv", None, None)]) == {"kv": []}
    assert storage.batch_exists([]) == 0 and storage.batch_exists(None) == 0
    assert storage.batch_exists(["xyz"]) == 0
    assert storage.batch_exists_v2(keys, [transfer("nothing")]).restorable_prefix_pages == []
    assert storage.batch_exists_v2(None, None).restorable_prefix_pages == []
    assert storage.troubles()


def test_pools_that_cannot_be_stored_are_misses(make_storage):
    storage = make_storage({"kv": HostPool(), "indexer": fake_engine.BrokenPool(), "mamba": HostPool(size=3)})
    keys = chain(2)
    assert storage.batch_set_v1(keys, slots(0, 1, page_size=4)) == [True, True]
    assert storage.batch_set_v2([transfer("indexer", keys, slots(0, 1, page_size=4))]) == {"indexer": [False, False]}
    assert storage.batch_exists(keys) == 2
    assert storage.batch_exists_v2(keys, [transfer("indexer")]).kv_hit_pages == 0
    assert {"pool indexer", "pool mamba"} <= set(storage.troubles())
    anchor = make_storage({"kv": fake_engine.BrokenPool()})
    assert anchor.batch_exists(keys) == 0 and anchor.batch_get_v1(keys, slots(0, 1, page_size=4)) == [False, False]
    assert anchor.get_stats() is not None and anchor.clear() is False


def test_a_pool_whose_meaning_is_unknown_is_not_stored(make_storage):
    pool = HostPool()
    del pool.layout
    storage = make_storage({"kv": pool})
    assert storage.batch_set_v1(chain(1), slots(0, page_size=4)) == [False]
    assert "pool kv" in storage.troubles()


@pytest.mark.parametrize("error", [larder.Error(8, "gone"), OSError("gone"), MemoryError()])
def test_no_exception_reaches_sglang(fake_storage, caplog, error):
    def fail():
        raise error

    storage, keys, there = fake_storage, chain(2), slots(0, 1, page_size=4)
    storage._store.answer = fail
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        for _ in range(20):
            assert storage.batch_exists(keys) == 0
            assert storage.batch_exists_v2(keys, [], None).restorable_prefix_pages == []
            assert storage.batch_set_v1(keys, there) == [False, False]
            assert storage.batch_get_v1(keys, there) == [False, False]
            assert storage.batch_get_v2([transfer("kv", keys, there)]) == {"kv": [False, False]}
            assert storage.get(keys[0]) is None and storage.set(keys[0], HostPool().get_data_page(0)) is False
        for _ in range(20):
            assert storage.clear() is False
    assert len(caplog.records) == len(storage.troubles()) == 4
    assert sum(storage.troubles().values()) == 20 * 8


@pytest.mark.parametrize("mode, is_told", [("buffer_only", True), ("cache", False)])
def test_a_query_that_failed_is_no_proof_of_absence(fake_storage, monkeypatch, mode, is_told):
    """With buffer_only SGLang writes anew what a query says is not there. Its threads catch what a query raises, its
    scheduler does not, and with other modes nothing is gained."""
    import types

    from sglang.srt import runtime_context

    memory = types.SimpleNamespace(hicache_host_memory_mode=mode, hicache_storage_backend="dynamic")
    monkeypatch.setattr(runtime_context, "get_memory", lambda: memory, raising=False)
    storage, keys = fake_storage, chain(2)
    queries = (storage.batch_exists, lambda asked: storage.batch_exists_v2(asked).kv_hit_pages)
    answers = []

    def ask():
        for query in queries:
            try:
                answers.append(query(keys))
            except Exception as error:
                answers.append(str(error))

    def ask_on_a_thread():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    def fail():
        raise larder.Error(larder.Code.DEADLINE_EXCEEDED, "late")

    ask_on_a_thread()
    assert answers == [0, 0]  # it knows
    storage._store.answer = fail
    ask()
    assert answers[2:] == [0, 0]
    ask_on_a_thread()
    told = "larder: nobody knows what the store has: DEADLINE_EXCEEDED: late"
    assert answers[4:] == ([told] * 2 if is_told else [0, 0])
    assert storage.troubles() == {"exists: deadline_exceeded": 4}
    storage.close()
    ask_on_a_thread()
    assert answers[6:] == [0, 0]


def test_what_cannot_be_identified_is_a_miss(make_storage, engine):
    """The weights change to some whose files nobody finds."""
    from larder.sglang.identity import Identity

    storage = make_storage()
    keys = chain(1)
    storage.batch_set_v1(keys, slots(0, page_size=4))
    find = Identity._fingerprint
    storage._spaces._identity = lambda: find(storage._identity, "/nowhere", None, "weights_fingerprint")
    assert storage.batch_exists(keys) == 0 and storage.troubles() == {"exists: ValueError": 1}


def test_parents_are_the_keys_before(fake_storage):
    keys = chain(4)
    fake_storage.batch_set_v1(keys[1:], slots(0, 1, 2, page_size=4), prefix(keys[0]))
    assert [fake_storage._store.parents[("kv", k)] for k in keys[1:]] == keys[:3]
    fake_storage.batch_set_v1(keys[:1], slots(0, page_size=4), prefix())
    assert fake_storage._store.parents[("kv", keys[0])] is None


@pytest.mark.parametrize("method", ["batch_set_v1", "batch_set_v2"])
def test_a_write_that_names_no_prefix_is_told_once(fake_storage, caplog, method):
    """SGLang takes hicache_storage_pass_prefix_keys out of the config: only its writes show whether it is set."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

    def write(info):
        keys, there = chain(1), slots(0, page_size=4)
        if method == "batch_set_v1":
            fake_storage.batch_set_v1(keys, there, info)
        else:
            fake_storage.batch_set_v2([transfer("kv", keys, there)], info)

    with caplog.at_level(logging.WARNING, "larder.sglang"):
        fake_storage.batch_get_v1(chain(1), slots(0, page_size=4), HiCacheStorageExtraInfo())
        for known in (prefix(), prefix("1" * 64)):
            write(known)
        assert caplog.records == []
        for _ in range(2):
            write(HiCacheStorageExtraInfo())
    assert len(caplog.records) == 1 and fake_storage.troubles() == {}
    assert '"hicache_storage_pass_prefix_keys": true' in caplog.text


def test_the_memory_of_a_pool_is_held(make_storage):
    """SGLang destroys its host pools before it detaches the storage, whose threads still copy from them."""
    import weakref

    class Pool(HostPool):
        def __init__(self):
            super().__init__()
            self.k_buffer = fake_engine.Tensor(self.kv_buffer)
            self.layers = [[fake_engine.Tensor(self.kv_buffer)]]

    pool = Pool()
    storage = make_storage({"kv": pool})
    buffers = [weakref.ref(pool.k_buffer), weakref.ref(pool.layers[0][0])]
    pool.k_buffer, pool.layers = None, []
    assert all(buffer() is not None for buffer in buffers)
    assert len(storage._spaces._pools["kv"].memory) == 2


@pytest.mark.parametrize("offloads", [True, False])
def test_a_decode_servers_offload_names_no_prefix(fake_storage, monkeypatch, caplog, offloads):
    """Whatever the extra config says: so the log does not name the key. A decode server's radix cache obeys it."""
    import types

    from sglang.srt import runtime_context
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

    disagg = types.SimpleNamespace(disaggregation_mode="decode")
    disagg.disaggregation_decode_enable_offload_kvcache = offloads
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: disagg, raising=False)
    with caplog.at_level(logging.INFO, "larder.sglang"):
        for _ in range(2):
            fake_storage.batch_set_v1(chain(1), slots(0, page_size=4), HiCacheStorageExtraInfo())
    lines = [record for record in caplog.records if "comes before" in record.message]
    assert [line.levelno for line in lines] == [logging.INFO if offloads else logging.WARNING]
    assert ("pass_prefix_keys" in caplog.text) != offloads


@pytest.mark.parametrize("page_size, warns", [(1, True), (15, True), (16, False), (64, False)])
def test_small_pages_are_told(make_storage, caplog, page_size, warns):
    """A recurrent state is a page of one slot, whatever the page size."""
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        make_storage({"kv": HostPool(pages=4, page_size=page_size), "mamba": StatePool()})
    lines = [record.message for record in caplog.records if "--page-size" in record.message]
    assert len(lines) == warns and all(f"{page_size} token" in line for line in lines)


def test_close_waits_for_calls_and_then_all_is_a_miss(fake_storage):
    begun, go = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert go.wait(10)

    storage, keys, answers = fake_storage, chain(1), []
    storage._store.answer = wait
    reader = threading.Thread(target=lambda: answers.append(storage.batch_set_v1(keys, slots(0, page_size=4))))
    reader.start()
    assert begun.wait(10)
    closer = threading.Thread(target=storage.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive() and not storage._store.is_closed
    assert storage.batch_exists(keys) == 0
    go.set()
    closer.join(10)
    reader.join(10)
    assert answers == [[True]] and storage._store.is_closed
    assert storage.batch_get_v1(keys, slots(0, page_size=4)) == [False]
    storage.close()
    storage.register_mem_host_pool_v2(HostPool(), "draft")


def test_threads_with_pools_and_weights_that_change(make_storage, engine):
    pools = {"kv": HostPool(pages=64), "mamba": StatePool(pages=64)}
    storage = make_storage(pools)
    end = time.monotonic() + 1.0
    wrong = []

    def work(number):
        keys = chain(4, f"thread {number}")
        there = [number * 8 + i for i in range(4)]
        back = [number * 8 + 4 + i for i in range(4)]
        while time.monotonic() < end:
            for name, page_size in (("kv", 4), ("mamba", 1)):
                pool = pools[name]
                storage.batch_set_v2([transfer(name, keys, slots(*there, page_size=page_size))])
                got = storage.batch_get_v2([transfer(name, keys, slots(*back, page_size=page_size))])[name]
                if any(ok and pool.page(b) != pool.page(t) for ok, t, b in zip(got, there, back)):
                    wrong.append((number, name))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for i in range(40):
        engine.serving.weight_version = str(i % 7)
        pools["kv"].clear()
        storage.register_mem_host_pool_v2(HostPool(seed=i), "draft")
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    # A write between an update and the flush is declined.
    assert wrong == [] and set(storage.troubles()) <= {"set: new weights"}


def test_statistics_are_those_of_sglang(make_storage):
    storage = make_storage()
    keys = chain(3)
    storage.batch_set_v1(keys, slots(0, 1, 2, page_size=4))
    storage.batch_get_v1(keys, slots(0, 1, 2, page_size=4))
    stats = storage.get_stats()
    assert (stats.prefetch_pgs, stats.backup_pgs) == ([3], [3])
    assert stats.prefetch_bandwidth[0] > 0 and stats.backup_bandwidth[0] > 0
    assert storage.get_stats().prefetch_pgs == []
    assert storage.store_stats() and "larder_" in storage.store_metrics()
    storage.close()
    assert storage.store_stats() == {} and storage.store_metrics() == ""
