# SPDX-License-Identifier: Apache-2.0
"""Calls of many pages are cut, each page with the slots that belong to it; and what makes bytes mean something else."""

import types

import fake_engine
import numpy
import pytest
from fake_engine import CopiedPool, HeadPool, HostPool, ScatteredPool, slots
from test_sglang import chain

from larder.sglang import pools, transfers


@pytest.mark.parametrize("make_pool", [HostPool, ScatteredPool, CopiedPool])
def test_nodes_larger_than_a_call_are_cut(make_storage, monkeypatch, make_pool):
    monkeypatch.setattr(transfers, "MAX_PAGES", 3)
    monkeypatch.setattr(transfers, "_COPIED_AT_ONCE", 4)
    pool = make_pool(pages=29)
    storage = make_storage({"kv": pool})
    keys, there, back = chain(10), (3, 1, 7, 11, 0, 28, 5, 20, 9, 13), (2, 4, 6, 8, 10, 12, 14, 16, 18, 22)
    before = [pool.page(p) for p in there]
    assert len(set(before)) == 10
    assert storage.batch_set_v1(keys, slots(*there, page_size=pool.page_size)) == [True] * 10
    pool.fill(99)
    assert storage.batch_get_v1(keys, slots(*back, page_size=pool.page_size)) == [True] * 10
    assert [pool.page(p) for p in back] == before


def test_pieces_of_nodes_larger_than_a_call_are_cut(make_storage, monkeypatch):
    monkeypatch.setattr(transfers, "MAX_PAGES", 3)
    config = fake_engine.Config(tp_size=2, tp_lcm_size=8, should_split_heads=True)
    pool = HeadPool(ranks=2, pages=29)
    storage = make_storage({"kv": pool}, config)
    assert len(storage._spaces._pools["kv"].pieces) == 4
    keys, there, back = chain(7), (3, 1, 7, 11, 0, 28, 5), (2, 4, 6, 8, 10, 12, 14)
    before = [pool.page(p) for p in there]
    assert storage.batch_set_v1(keys, slots(*there, page_size=pool.page_size)) == [True] * 7
    pool.fill(99)
    assert storage.batch_get_v1(keys, slots(*back, page_size=pool.page_size)) == [True] * 7
    assert [pool.page(p) for p in back] == before


def text_with(**attributes):
    """The layout text of a host pool that says these things of itself."""
    pool = HostPool()
    for name, value in attributes.items():
        setattr(pool, name, value)
    return pools.layout_text("kv", pool, [96], True, None)


# Named once more, so that none goes unseen.
MEANING = """
    _draft_layer_num _live_target_layers _target_layer_indices conv_dtype conv_state_shapes dcp_rank
    dcp_size dsa_kv_cache_store_fp8 dtype end_layer head_dim head_group_num head_num indexer_dtype
    indexer_page_stride_size item_bytes k_sf_page_bytes kv_cache_dim kv_lora_rank layer_num layout
    num_mamba_layers override_kv_cache_dim page_aligned_only page_size qk_rope_head_dim ring_size row_bytes
    size_per_token slot_page_size start_layer state_page_bytes storage_format_tag storage_objects_per_page
    swa_page_size target_layer_num temporal_dtype temporal_state_shape v_head_dim v_sf_page_bytes
""".split()


@pytest.mark.parametrize("attribute", MEANING)
def test_each_attribute_that_gives_bytes_their_meaning_is_in_the_layout(attribute):
    assert text_with(**{attribute: 1}) != text_with(**{attribute: 2})
    assert set(pools._MEANING) == set(MEANING)  # a new one is added there, too


def rows(dtype, *shape):
    return types.SimpleNamespace(dtype=dtype, shape=shape)


def state(dtype):
    score = types.SimpleNamespace(dtype=dtype)
    return types.SimpleNamespace(kv_score_buffer=types.SimpleNamespace(kv_score=score))


@pytest.mark.parametrize(
    ("attribute", "one", "other"),
    [
        ("device_buffers", [rows("float16", 9, 4)], [rows("bfloat16", 9, 4)]),
        ("device_buffers", [rows("float16", 9, 4, 2)], [rows("float16", 9, 2, 4)]),
        ("slot_state_device_tensors", [rows("float16", 9, 4)], [rows("bfloat16", 9, 4)]),
        ("slot_state_device_tensors", [rows("float16", 9, 4, 2)], [rows("float16", 9, 2, 4)]),
        ("state_pools", [state("float16")], [state("bfloat16")]),
        ("device_pool", types.SimpleNamespace(dtype=1), types.SimpleNamespace(dtype=2)),
        ("device_pool", types.SimpleNamespace(store_dtype=1), types.SimpleNamespace(store_dtype=2)),
        ("device_pool", types.SimpleNamespace(qsa_compress_ratio=1), types.SimpleNamespace(qsa_compress_ratio=2)),
    ],
)
def test_what_the_device_holds_is_in_the_layout(attribute, one, other):
    assert text_with(**{attribute: one}) != text_with(**{attribute: other})


def test_the_size_of_the_whole_pool_is_not_in_the_layout():
    few, many = rows("float16", 9, 4), rows("float16", 99, 4)
    assert text_with(size=40, device_buffers=[few]) == text_with(size=80, device_buffers=[many])


class MoreThanItsView(HostPool):
    """Lists a segment that get_data_page(flat=False) leaves out."""

    def __init__(self, **attributes):
        super().__init__(**attributes)
        self.scales = numpy.random.default_rng(5).integers(0, 256, (self.size // self.page_size, 8), "u1")

    def get_page_buffer_meta(self, indices):
        addresses, sizes = [], []
        for slot in indices.tolist()[:: self.page_size]:
            page = slot // self.page_size
            for address, size in [*self.pieces(self.view(page)), *self.pieces(self.scales[page : page + 1])]:
                addresses.append(address)
                sizes.append(size)
        return addresses, sizes


def test_a_page_of_which_the_view_shows_a_part_is_stored_by_its_list(make_storage):
    pool = MoreThanItsView()
    storage = make_storage({"kv": pool})
    keys = chain(3)
    assert storage.batch_set_v1(keys, slots(4, 2, 9, page_size=4)) == [True] * 3
    pages, scales = [pool.page(p) for p in (4, 2, 9)], pool.scales[[4, 2, 9]].tolist()
    pool.fill(99)
    pool.scales[...] = 0
    assert storage.batch_get_v1(keys, slots(1, 3, 5, page_size=4)) == [True] * 3
    assert [pool.page(p) for p in (1, 3, 5)] == pages
    assert pool.scales[[1, 3, 5]].tolist() == scales


def test_a_clear_drops_the_pages_of_weights_that_were_there_a_moment_ago(engine, make_storage):
    pool = HostPool()
    storage = make_storage({"kv": pool})
    keys = chain(3)

    def serve(version):
        engine.serving.weight_version = version
        pool.clear()  # SGLang's flush

    serve("1")
    assert storage.batch_set_v1(keys, slots(0, 1, 2, page_size=4)) == [True] * 3
    serve("2")
    assert storage.batch_exists(keys) == 0
    storage.clear()
    serve("1")
    assert storage.batch_exists(keys) == 0
