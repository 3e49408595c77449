# SPDX-License-Identifier: Apache-2.0
"""Proves the rig: with a dictionary and with SGLang's own file backend all is well, with faulty stores it is not."""

import pytest
import torch
from rig import cases, dict_store, ranks, settings, world


@pytest.fixture(autouse=True)
def empty_dictionaries():
    """Gives the memory of the dictionaries back after each test."""
    yield
    dict_store.STORES.clear()


class TestDictStore(cases.CacheCases):
    """The dictionary: zero-copy interface (v1, v2), pages taken by their addresses."""

    FORMATS_APART = False
    # The ranks do not share the dictionary: what rank 0 alone writes is not found by the others.
    RANK_KINDS = ("mha", "mamba")

    def backend(self, name, folder):
        return settings.dynamic("rig.dict_store", "DictStorage", store=name)


class TestFileStore(cases.CacheCases):
    """SGLang's file backend: generic interface for the KV, whole pages of bytes."""

    FORMATS_APART = False

    def backend(self, name, folder):
        path = folder / str(abs(hash(name)))
        path.mkdir(exist_ok=True)
        return settings.file_backend(path)

    def skip(self, kind, layout):
        return "no flat pages when K and V differ in size" if kind == "mha_asymmetric" else None


@pytest.fixture
def store(request):
    """Makes the description of a class of dict_store with a store of its own."""
    return lambda cls, **config: settings.dynamic("rig.dict_store", cls, store=request.node.nodeid, **config)


@pytest.mark.parametrize(
    "kind,pool",
    [
        ("mha", "kv"),
        ("mla", "kv"),
        ("mamba", "kv"),
        ("mamba", "mamba"),
        ("swa", "swa"),
        ("dsa", "indexer"),
        ("mha_draft", "draft"),
        ("dsa_draft", "draft_indexer"),
        ("mha_mtp", "kv"),
        ("dsv4", "swa"),
        ("dsv4", "deepseek_v4_c4"),
        ("dsv4", "deepseek_v4_c4_indexer"),
        ("dsv4", "deepseek_v4_c4_state"),
        ("dsv4", "deepseek_v4_c4_indexer_state"),
        ("dsv4", "deepseek_v4_c128"),
        ("dsv4_low", "deepseek_v4_c1"),
        ("dsv4_low", "deepseek_v4_c2_indexer"),
    ],
)
def test_one_wrong_bit_of_any_pool_is_found(store, kind, pool):
    with pytest.raises(world.RigError, match="wrong bytes"):
        cases.round_trip(store("WrongBytes", pool=pool), kind=kind)


@pytest.mark.parametrize("kind", ["mha", "mamba", "swa", "dsa"])
@pytest.mark.parametrize("cls", ["ReadsNothing", "SwapsPages"])
def test_pages_that_are_not_those_asked_for_are_found(store, cls, kind):
    with pytest.raises(world.RigError, match="wrong bytes"):
        cases.round_trip(store(cls), kind=kind)


@pytest.mark.parametrize("kind", ["mha", "mamba", "swa", "dsa"])
@pytest.mark.parametrize("cls", ["Forgets", "Raises"])
def test_missing_pages_are_found(store, cls, kind):
    with pytest.raises(world.RigError, match="pages fetched"):
        cases.round_trip(store(cls), kind=kind)


def test_a_wrong_list_of_restorable_lengths_is_found(store):
    with pytest.raises(world.RigError, match="pages fetched"):
        cases.restore_points(store("WrongRestorable"), kind="mamba")


def test_pages_of_another_identity_are_found(store):
    with pytest.raises(world.RigError, match="that only"):
        cases.identities(store("FindsAnything"), kind="mha")


@pytest.mark.parametrize("what", [{"layout": "page_first_direct"}, {"dtype": torch.float16}], ids=str)
def test_the_hole_of_the_file_backend_is_found(tmp_path, what):
    """It gives out pages of another layout, and of another type, as if they were the right ones."""
    first = {"layout": "page_first", "dtype": torch.bfloat16}
    with pytest.raises(world.RigError, match="wrong bytes"):
        cases.foreign(settings.file_backend(tmp_path), first, first | what)


def test_a_flush_leaves_nothing_behind(store):
    """Without a store nothing comes back, and what is in the memory then is poison."""
    with world.World() as w:
        tokens = cases.tokens_of(4, w.page_size)
        w.insert(tokens)
        w.flush()
        assert w.restore(tokens) == 0
        part = w.device.parts[0]
        assert (part.layers[0] == 0xA5).all()


def test_the_generic_interface(store):
    """Without interface_v1 SGLang hands over flat pages one by one."""
    backend = store("DictStorage", interface_v1=0)
    cases.round_trip(backend, kind="mla", layout="layer_first")


@pytest.mark.parametrize(
    "identity,keys",
    [
        (
            (None, None),
            [
                "0c8f462927e331f28e3f1a6d342957cd27118febc309bd3b2f646e2dfbaeec32",
                "e9c2a460fbc87d21beb32b8aba08b9a193d660e6706c659aa0d62b0af7ef6a56",
            ],
        ),
        (
            ("L1", "S"),
            [
                "bc23eb7ae9b48af6008849bd22895d4158e28bedad5bd92036df67b76eae01c8",
                "7b57de5adb5a45ee78272c5a6a598099c049c03beee1c03a779894b9cc2112ce",
            ],
        ),
    ],
    ids=["plain", "salted"],
)
def test_the_keys_are_the_hash_chain(store, identity, keys):
    """SHA-256 over the page before (at first: the identity, if any) and the tokens as 32-bit numbers."""
    with world.World(store("DictStorage"), page_size=64) as w:
        w.insert(list(range(1, 129)), *identity)
        w.wait_backup()
        assert [name[3] for name in w.store.data] == keys


def test_calls_of_a_model_with_two_side_pools(store):
    """The order of the calls, their threads and the number of indices are those that docs and backends rely on."""
    with world.World(store("DictStorage"), kind="mamba") as w:
        tokens = cases.tokens_of(4, w.page_size)
        w.insert(tokens)
        w.flush()
        cases.expect_restored(w, tokens, 4)
        calls = [(thread.split("(")[-1].strip(")"), method) for thread, method, _ in w.store.calls]
    assert calls == [
        ("MainThread", "register_mem_pool_host"),
        ("MainThread", "register_mem_host_pool_v2"),
        ("MainThread", "register_mem_host_pool_v2"),
        ("MainThread", "on_host_pools_registered"),
        ("backup_thread_func", "batch_set_v2"),
        ("backup_thread_func", "batch_set_v1"),
        ("prefetch_thread_func", "batch_exists_v2"),
        ("prefetch_io_aux_func", "batch_get_v1"),
        ("prefetch_io_aux_func", "batch_get_v2"),
    ]


def test_ranks_agree_on_what_all_have():
    """One rank lacks a page: all ranks restore the longest prefix that is a restore point on each of them."""
    losses = [("mha", "kv"), ("mamba", "mamba"), ("mamba", "kv"), ("mamba_swa", "swa")]
    assert ranks.run(2, dict_store.rank_that_loses_a_page, losses) == [[5, 4, 4, 4]] * 2
