# SPDX-License-Identifier: Apache-2.0
"""Larder behind the real SGLang: every case of the rig, and what other backends get wrong."""

import pytest
import torch
from rig import cases, holes, larder_backend, pools, ranks, world
from sglang.srt.mem_cache.hicache_storage import PoolTransferResult


class TestLarder(cases.CacheCases):
    """All model kinds, layouts and tree cores: backup, flush, prefetch, load-back; ranks share one store."""

    RANK_KINDS = ("mha", "mamba", "mla", "mla_mamba")

    def backend(self, name, folder):
        return larder_backend.describe(folder / str(abs(hash(name))))


@pytest.mark.parametrize("kind,layout,core", cases.COMBINATIONS)
def test_the_device_works_on_the_host_pools_themselves(tmp_path, kind, layout, core):
    cases.round_trip(larder_backend.describe(tmp_path / "store", zero_copy=True), kind=kind, layout=layout, core=core)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("core", ["rust", "python"])
def test_the_store_learns_which_page_comes_before(tmp_path, caplog, core, passes):
    """With hicache_storage_pass_prefix_keys each write names the pages before it, [] at the begin of a prompt; without
    it none does, and the log says so once."""
    backend = larder_backend.describe(tmp_path / "store", hicache_storage_pass_prefix_keys=passes)
    named = []
    with world.World(backend, core=core) as w:
        real = w.store.batch_set_v1

        def put(keys, host_indices, extra_info):
            named.append(extra_info.prefix_keys)
            return real(keys, host_indices, extra_info)

        w.store.batch_set_v1 = put
        tokens = cases.tokens_of(6, w.page_size)
        for pages in (2, 6):
            w.insert(tokens[: pages * w.page_size])
            w.wait_backup()
    cases.expect([None if keys is None else len(keys) for keys in named], [0, 2] if passes else [None] * 2, "prefixes")
    cases.expect(caplog.text.count("hicache_storage_pass_prefix_keys"), 0 if passes else 1, "warnings")


def pages_stored(directory):
    """Returns how many pages the file store in `directory` has, of all pools and ranks."""
    import larder

    with larder.Store("file", {"directory": str(directory), "staging_bytes": "1Mi"}) as store:
        return store.stats()["store"]["pages"]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "kind,shared,own",
    [
        ("mha", 0, 6),  # six pages of KV on each rank
        ("mla", 6, 0),  # six pages of KV, the same on all ranks
        ("mla_mamba", 6, 2),  # and the states of two nodes on each rank
    ],
)
def test_what_ranks_have_in_common_is_stored_once(tmp_path, kind, shared, own, count):
    backend = larder_backend.describe(tmp_path / "store")
    restored = ranks.run(count, cases.ranks_round_trip, [(kind, backend)])
    cases.expect(restored, [[6]] * count, "pages restored per rank")
    cases.expect(pages_stored(tmp_path / "store"), shared + own * count, "pages in the store")


def holes_per_rank(rank, count, group, backend):
    """A prompt of 6 pages with states after pages 2, 4 and 6; rank r then loses the state after page 2r + 2.

    Returns how many pages this rank restores: what is left on every rank.
    """
    world.quiet()
    with world.World(backend, kind="mamba", tp_rank=rank, tp_size=count, group=group) as w:
        tokens = cases.tokens_of(6, w.page_size)
        for pages in (2, 4, 6):
            w.insert(tokens[: pages * w.page_size])
        w.flush()
        real = w.store.batch_exists_v2

        def with_a_hole(keys, transfers=None, extra_info=None):
            found = real(keys, transfers, extra_info)
            lost = 6 - 2 * rank
            return PoolTransferResult(
                found.kv_hit_pages,
                found.extra_pool_hit_pages,
                [length for length in found.restorable_prefix_pages if length != lost],
            )

        w.store.batch_exists_v2 = with_a_hole
        return w.restore(tokens)


def test_ranks_agree_on_a_length_that_each_of_them_can_restore(tmp_path):
    """Rank 0 has states after 2 and 4 pages, rank 1 after 2 and 6: both restore 2, not the smaller maximum 4."""
    restored = ranks.run(2, holes_per_rank, larder_backend.describe(tmp_path / "store"))
    cases.expect(restored, [2, 2], "pages restored per rank")


def stage(first, full):
    """Returns what makes the device of a stage with 12 layers, from `first` on, of a model with recurrent states."""
    states = [layer for layer in range(first, first + 12) if layer not in full]

    def make(kind, size):
        from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

        requests = pools._mamba_requests(size, layers=states)
        pool = HybridLinearKVPool(
            **pools._common(size),
            head_num=size.heads,
            head_dim=pools.HEAD_DIM,
            full_attention_layer_ids=full,
            mamba_pool=requests.mamba_pool,
            start_layer=first,
        )
        parts = [*pools._kv_parts(pool.full_kv_pool), *pools._mamba_parts(requests)]
        components = pools._components("MAMBA")
        return pools.Device(kind, size.page_size, pools._allocator(size, pool), requests, components, parts)

    return make


@pytest.mark.parametrize("layers", [48, None], ids=["layers known", "layers unknown"])
def test_stages_of_a_pipeline_with_other_layers_share_nothing(tmp_path, monkeypatch, layers):
    """The second of four stages, with as many layers of each kind, that begin one layer later: nothing in the pools
    themselves tells them apart."""
    import types

    from sglang.srt import runtime_context

    if layers:
        model = types.SimpleNamespace(num_hidden_layers=layers)
        monkeypatch.setattr(runtime_context, "process_model_config", lambda: model)
    backend, found, layouts = larder_backend.describe(tmp_path / "store", max_size="256M"), [], []
    for first, partition, seed in ((12, "12,12,12,12", 1), (13, "13,12,12,11", 2), (12, "12,12,12,12", 1)):
        monkeypatch.setattr(pools, "_mamba", stage(first, [15, 19, 23]))
        monkeypatch.setenv("SGLANG_PP_LAYER_PARTITION", partition)
        with world.World(backend, kind="mamba", seed=seed, pp_rank=1, pp_size=4) as w:
            layouts.append({name: pool.pool.layout for name, pool in w.store._spaces._pools.items()})
            tokens = holes.prompt(w)
            if not found:
                w.insert(tokens)
                w.flush()
            found.append(holes.look(w, tokens))
    cases.expect(layouts[0], layouts[1], "what the pools say")
    cases.expect(found, [holes.ALL, holes.NOTHING, holes.ALL], "restored")


def test_pages_of_another_order_on_the_device_are_not_found(tmp_path, monkeypatch):
    """HND's pages are as large as NHD's, and SGLang copies both as they are."""
    backend, found, layouts = larder_backend.describe(tmp_path / "store", max_size="256M"), [], []
    keys = [f"{number:064x}" for number in range(1, 4)]
    for is_hnd in ("0", "1", "0"):
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", is_hnd)
        with world.World(backend, kind="mha") as w:
            layouts.append(w.device.allocator.get_kvcache().kv_cache_layout)
            found.append(w.store.batch_exists(keys))
            w.store.batch_set_v1(keys, torch.arange(3 * w.page_size), None)
            found.append(w.store.batch_exists(keys))
    cases.expect(layouts, ["nhd", "hnd", "nhd"], "SGLang's layouts")
    cases.expect(found, [0, 3, 0, 3, 3, 3], "pages before and after they are stored")
