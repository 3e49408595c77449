# SPDX-License-Identifier: Apache-2.0
"""Pages that servers with other numbers of tensor-parallel ranks find: tp_lcm_size and the host layout page_head.

What a head holds is the same on whatever rank it is (rig/content.py): a server with one rank, which has all heads,
compares every byte that four ranks have stored.
"""

import pytest
import torch
from rig import cases, larder_backend, metadata_server, ranks, world

RANKS = 4  # tp_lcm_size
HEADS = 8
PAGES = 6
KINDS = ("mha", "swa", "mha_draft", "mha_mtp")
MODEL = {"layout": "page_head", "heads": HEADS}


def backends_of(folder, kinds=KINDS, **config):
    """Returns (kind, Backend), each with a store of its own."""
    return [(kind, larder_backend.describe(folder / kind, **({"tp_lcm_size": RANKS} | config))) for kind in kinds]


def restored_by(count, backends, **model):
    """Returns how many pages new processes restore: for each kind, and the same on each of `count` ranks."""
    found = ranks.run(count, cases.ranks_restore, backends, MODEL | model)
    cases.expect(found, [found[0]] * count, "pages restored per rank")
    return found[0]


def pages_stored(directory):
    """Returns how many pages the file store in `directory` has, of all pools and ranks."""
    import larder

    with larder.Store("file", {"directory": str(directory), "staging_bytes": "1Mi"}) as store:
        return store.stats()["store"]["pages"]


@pytest.mark.parametrize("writers", [1, 2, 4])
def test_what_some_ranks_store_any_number_of_them_reads(tmp_path, writers):
    backends = backends_of(tmp_path)
    ranks.run(writers, cases.ranks_round_trip, backends, MODEL)
    for readers in (1, 2, 4):
        cases.expect(restored_by(readers, backends), [PAGES] * len(KINDS), f"pages restored by {readers}")
    cases.expect(pages_stored(tmp_path / "mha"), PAGES * RANKS, "pieces of six pages")


def test_what_is_stored_is_not_stored_again_by_another_number_of_ranks(tmp_path):
    backends = backends_of(tmp_path, ["mha"])
    for writers in (4, 2, 1):
        ranks.run(writers, cases.ranks_round_trip, backends, MODEL)
        cases.expect(pages_stored(tmp_path / "mha"), PAGES * RANKS, "pieces of six pages")


def test_as_many_ranks_as_tp_lcm_size_need_not_know_it(tmp_path):
    """Their pages are what others call pieces: a server that runs already can be joined by a smaller one."""
    ranks.run(RANKS, cases.ranks_round_trip, backends_of(tmp_path, ["mha"], tp_lcm_size=None), MODEL)
    cases.expect(restored_by(2, backends_of(tmp_path, ["mha"])), [PAGES], "pages restored")


def test_pages_through_flat_tensors_are_the_same_pages(tmp_path):
    """Without interface_v1 SGLang hands over copies of whole pages: they are taken apart, and put together."""
    flat, direct = backends_of(tmp_path, ["mha"], interface_v1=0), backends_of(tmp_path, ["mha"])
    ranks.run(2, cases.ranks_round_trip, flat, MODEL)
    cases.expect(restored_by(1, direct), [PAGES], "pages restored by one rank")
    cases.expect(restored_by(1, flat), [PAGES], "pages restored by one rank, through flat tensors")


def test_servers_with_one_and_two_ranks_at_the_same_time(tmp_path):
    """They share the store without a word about it: each reads what the other has stored meanwhile."""
    backends = backends_of(tmp_path, ["mha"])
    with world.World(backends[0][1], **MODEL) as w:
        ranks.run(2, cases.ranks_round_trip, backends, MODEL)
        tokens = cases.tokens_of(PAGES, w.page_size)
        cases.expect(w.restore(tokens), PAGES, "pages restored by one rank")
        w.clear()
        cases.expect(restored_by(2, backends), [0], "pages restored after a clear")
        w.flush()
        w.insert(tokens)
        w.wait_backup()
        cases.expect(restored_by(4, backends), [PAGES], "pages restored by four")


def test_on_3fs_with_a_metadata_server(tmp_path):
    with metadata_server.MetadataServer(tmp_path / "journal") as server:
        backend = larder_backend.describe_hf3fs(tmp_path / "mount", server.url, tp_lcm_size=RANKS)
        ranks.run(4, cases.ranks_round_trip, [("swa", backend)], MODEL)
        cases.expect(restored_by(2, [("swa", backend)]), [PAGES], "pages restored by two ranks")
        with world.World(backend, kind="swa", **MODEL) as w:
            cases.expect(w.restore(cases.tokens_of(PAGES, w.page_size)), PAGES, "pages restored by one")
            w.clear()
        cases.expect(restored_by(4, [("swa", backend)]), [0], "pages restored after a clear")


@pytest.mark.parametrize(
    "config,model",
    [
        ({"tp_lcm_size": 8}, {}),
        ({"tp_lcm_size": None}, {}),
        ({}, {"layout": "page_first"}),
        ({}, {"dtype": torch.float16}),
        ({}, {"page_size": 32}),
        ({}, {"heads": 16}),
    ],
    ids=["another tp_lcm_size", "none", "layout", "dtype", "page size", "heads"],
)
def test_pieces_of_another_meaning_are_never_met(tmp_path, config, model):
    ranks.run(4, cases.ranks_round_trip, backends_of(tmp_path, ["mha"]), MODEL)
    cases.expect(restored_by(2, backends_of(tmp_path, ["mha"], **config), **model), [0], "pages restored")


def test_other_layouts_are_as_without_tp_lcm_size(tmp_path, caplog):
    """SGLang leaves it out where heads are not apart; the log says so."""
    model = {"layout": "page_first", "heads": HEADS}
    ranks.run(2, cases.ranks_round_trip, backends_of(tmp_path, ["mha"]), model)
    cases.expect(restored_by(2, backends_of(tmp_path, ["mha"], tp_lcm_size=None), **model), [PAGES], "pages restored")
    with world.World(backends_of(tmp_path, ["mha"])[0][1], **model) as w:
        cases.expect(w.restore(cases.tokens_of(PAGES, w.page_size)), 0, "pages restored by one rank")
    assert "tp_lcm_size is 4 and has no effect: the host layout is page_first" in caplog.text


def test_latent_kv_needs_no_tp_lcm_size(tmp_path, caplog):
    """It is the same on all ranks, so that any number of them reads it, with tp_lcm_size and without."""
    ((kind, backend),) = backends_of(tmp_path, ["mla"])
    ranks.run(4, cases.ranks_round_trip, [(kind, backend)])
    with world.World(backend, kind=kind) as w:
        cases.expect(w.restore(cases.tokens_of(PAGES, w.page_size)), PAGES, "pages restored by one rank")
    assert "no effect" not in caplog.text


def test_ranks_that_do_not_divide_tp_lcm_size_are_refused(tmp_path):
    backend = larder_backend.describe(tmp_path / "store", tp_lcm_size=3)
    with world.World(tp_size=2, **MODEL) as w:
        with pytest.raises(world.RigError, match="tp_lcm_size must be divisible by tp_size"):
            w.attach(backend)


@pytest.mark.parametrize("kind", ["mamba", "mha_asymmetric", "mla"])
def test_sglang_has_heads_alone_in_page_head(kind):
    """Were that to change, it would have to be decided how a state is divided (docs/sglang.md)."""
    with pytest.raises((AssertionError, ValueError), match="Unsupported layout"):
        world.World(kind=kind, layout="page_head")


def test_heads_that_cannot_be_divided_are_refused(tmp_path, caplog):
    """Two heads in four pieces: nothing is stored, the log says why, and the cache works without storage."""
    backend = larder_backend.describe(tmp_path / "store", tp_lcm_size=4)
    with world.World(backend, layout="page_head", heads=2) as w:
        tokens = cases.tokens_of(PAGES, w.page_size)
        w.insert(tokens)
        w.wait_backup()
        w.check(tokens, pages=PAGES)
        w.flush()
        cases.expect(w.prefetch(tokens), 0, "pages fetched")
        assert w.store.troubles()["pool kv"] == 1
    assert "the 2 heads of this rank cannot be divided among 4 ranks" in caplog.text
