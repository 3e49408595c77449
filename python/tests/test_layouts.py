# SPDX-License-Identifier: Apache-2.0
"""The order of bytes in the device's pages: SGLang has several of one size, and copies pages as they are."""

import enum
import sys
import types

import pytest
from fake_engine import Config, HeadPool, HostPool, slots
from fake_store import FakeStore
from test_sglang import chain, prefix

import larder
from larder.sglang.pools import layout_text


class Layout(enum.Enum):
    """As SGLang's KVBufferLayout."""

    NHD = "nhd"
    HND = "hnd"
    VECTORIZED_5D = "vectorized_5d"


def infos(*layouts):
    """As a host pool of SGLang has them: of the target, and of packed drafts."""
    return [types.SimpleNamespace(buffers=types.SimpleNamespace(layout=layout)) for layout in layouts]


@pytest.fixture
def found(engine, monkeypatch):
    """A function: how many of two pages that a first server has stored a second one finds, with another host pool."""
    from larder.sglang import LarderStorage

    def start(store, pool):
        monkeypatch.setattr(larder, "Store", lambda *args, **options: store)
        storage = LarderStorage(Config(extra_config={"weights_fingerprint": "w", "interface_v1": 1}), {})
        storage.register_mem_pool_host(pool)
        return storage

    def find(first, second, between=lambda: None):
        store = FakeStore("memory", {})
        assert start(store, first).batch_set_v1(chain(2), slots(0, 1, page_size=4), prefix()) == [True, True]
        between()
        return start(store, second).batch_exists(chain(2))

    return find


@pytest.mark.parametrize("first, second, pages", [
    ([], [Layout.NHD], 2), ([Layout.NHD], [Layout.NHD, Layout.NHD], 2), ([Layout.HND], [Layout.HND], 2),
    ([Layout.NHD], [Layout.HND], 0), ([], [Layout.HND], 0), ([Layout.HND], [Layout.VECTORIZED_5D], 0),
    ([Layout.NHD, Layout.NHD], [Layout.NHD, Layout.HND], 0), ([], [types.SimpleNamespace(value="paged_nhd")], 2),
])  # fmt: skip
def test_pages_of_another_order_are_other_pages(found, first, second, pages):
    assert found(HostPool(_buffer_infos=infos(*first)), HostPool(_buffer_infos=infos(*second))) == pages


@pytest.mark.parametrize("name, value", [("USE_HND_KVCACHE", "1"), ("AITER_KV_CACHE_LAYOUT", "vectorized_5d")])
def test_a_pool_with_heads_that_does_not_say_its_order_has_the_servers(found, monkeypatch, name, value):
    def switch():
        monkeypatch.setenv(f"SGLANG_{name}", value)

    assert found(HostPool(head_num=2), HostPool(head_num=2), switch) == 0
    assert found(HostPool(head_num=2), HostPool(head_num=2)) == 2
    assert found(HostPool(), HostPool(_buffer_infos=infos(Layout.NHD))) == 2  # without heads, and said


def test_pages_of_another_order_are_in_no_pieces(make_storage):
    """Their heads are elsewhere."""
    pool = HeadPool(_buffer_infos=infos(Layout.HND))
    storage = make_storage({"kv": pool}, Config(tp_lcm_size=4, should_split_heads=True))
    assert storage.batch_set_v1(chain(1), slots(0, page_size=4), prefix()) == [False]
    assert storage.troubles()["pool kv"] == 1


def test_latent_pages_of_one_size_are_told_apart_by_the_identity(make_storage, monkeypatch):
    def identity():
        return make_storage()._identity.text()

    before = identity()
    for layout in ("V4", "v41", "auto"):  # pages of other sizes
        monkeypatch.setenv("SGLANG_DSV4_KV_LAYOUT", layout)
        assert identity() == before
    monkeypatch.setenv("SGLANG_DSV4_KV_LAYOUT", "v41_new")
    assert identity() != before


def test_what_index_keys_depend_on_is_in_their_layout_alone(engine, monkeypatch):
    def texts():
        return [layout_text(name, HostPool(), [96], True, None) for name in ("indexer", "draft_indexer", "kv")]

    before = texts()
    for name in ("DISABLE_DSA_INDEXER_FUSION", "DISABLE_AITER_FUSED_FP8_DSA_INDEXER", "HIP_DSV41_INDEX_K_PAGE8"):
        name = f"SGLANG_{name}"
        monkeypatch.setenv(name, "0")
        assert texts() == before
        monkeypatch.setenv(name, "1")
        changed = texts()
        assert changed[0] != before[0] and changed[1] != before[1] and changed[2] == before[2]
        monkeypatch.delenv(name)

    def cannot():
        raise RuntimeError("no such device")

    for tiles, is_changed in ((lambda: False, False), (lambda: True, True), (cannot, False)):
        module = types.SimpleNamespace(aiter_can_use_preshuffle_paged_mqa=tiles)
        monkeypatch.setitem(sys.modules, "sglang.srt.layers.attention.dsa.utils", module)
        assert [a != b for a, b in zip(texts(), before)] == [is_changed, is_changed, False]
