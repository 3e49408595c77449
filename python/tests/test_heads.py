# SPDX-License-Identifier: Apache-2.0
"""Pages in pieces (tp_lcm_size): LarderStorage of several ranks and numbers of ranks on one store."""

import copy
import json
import random

import pytest
from fake_engine import Config, HeadPool, HostPool, StatePool, Tensor, slots
from fake_store import FakeSpace
from test_joint import MAX_PAGES, PATTERNS, SEED, Pattern, query, store
from test_sglang import chain, prefix, transfer

import larder

RANKS = 4  # tp_lcm_size
PAGES = 3
EVERY = slots(*range(PAGES), page_size=4)


def config_of(rank, ranks, lcm=RANKS, **more):
    """As SGLang makes it for the layout page_head."""
    return Config(tp_rank=rank, tp_size=ranks, tp_lcm_size=lcm, should_split_heads=bool(lcm) and lcm > ranks, **more)


@pytest.fixture
def one_store(make_storage, monkeypatch):
    """make_storage, with one store for all that it makes."""
    store = larder.Store("memory", {})
    close = store.close
    monkeypatch.setattr(larder, "Store", lambda *args, **options: store)
    monkeypatch.setattr(store, "close", lambda timeout=None: None)
    made = []

    def make(*args, **options):
        made.append(make_storage(*args, **options))
        return made[-1]

    make.is_fake = make_storage.is_fake
    yield make
    for storage in made:
        storage.close()
    close(5.0)


def rank_of(make, rank, ranks, lcm=RANKS, pools=None, **extra):
    """A storage with the anchor of this rank, and that pool."""
    pool = HeadPool(rank, ranks)
    return make({"kv": pool, **(pools or {})}, config_of(rank, ranks, lcm), **extra), pool


def store_all(make, ranks, lcm=RANKS):
    for rank in range(ranks):
        storage, _ = rank_of(make, rank, ranks, lcm)
        assert storage.batch_set_v1(chain(PAGES), EVERY, prefix()) == [True] * PAGES


@pytest.mark.parametrize("writers", [1, 2, 4])
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_each_head_comes_back_on_whatever_rank_has_it(one_store, writers, readers):
    store_all(one_store, writers)
    for rank in range(readers):
        storage, pool = rank_of(one_store, rank, readers)
        wanted = [pool.page(p) for p in range(PAGES)]
        pool.fill(99)
        fresh = pool.page(10)
        assert storage.batch_exists(chain(PAGES + 2)) == PAGES
        assert storage.batch_get_v1(chain(PAGES), slots(7, 3, 5, page_size=4), prefix()) == [True] * PAGES
        assert [pool.page(p) for p in (7, 3, 5)] == wanted
        assert pool.page(10) == fresh
        assert storage.troubles() == {}


@pytest.mark.parametrize("readers", [1, 2])
def test_a_page_is_there_when_all_its_pieces_are(one_store, readers):
    """The ranks 0, 1 and 3 of four have stored three pages, rank 2 the first of them."""
    for rank in range(RANKS):
        storage, _ = rank_of(one_store, rank, RANKS)
        count = 1 if rank == 2 else PAGES
        storage.batch_set_v1(chain(PAGES)[:count], slots(*range(count), page_size=4), prefix())
    storage, _ = rank_of(one_store, readers - 1, readers)
    assert storage.batch_exists(chain(PAGES)) == 1
    assert storage.batch_exists_v2(chain(PAGES)).restorable_prefix_pages == [1]
    assert storage.batch_get_v1(chain(PAGES), EVERY, prefix()) == [True, False, False]
    if readers == 2:
        assert rank_of(one_store, 0, 2)[0].batch_exists(chain(PAGES)) == PAGES


def test_windows_are_joined_over_the_pieces(one_store):
    """A window of two pages ends after page 3 or 4 on rank 0 of two, after 4 or 5 on rank 1: after 4 on one rank."""
    keys = chain(5)
    for rank, first in ((0, 1), (1, 2)):
        swa = HeadPool(rank, 2, layer_num=1)
        storage, _ = rank_of(one_store, rank, 2, pools={"swa": swa})
        storage.batch_set_v1(keys, slots(*range(5), page_size=4), prefix())
        window = transfer("swa", keys[first : first + 3], slots(1, 2, 3, page_size=4), "TRAILING_PAGES")
        assert storage.batch_set_v2([window]) == {"swa": [True] * 3}
    storage, _ = rank_of(one_store, 0, 1, pools={"swa": HeadPool(layer_num=1)})
    found = storage.batch_exists_v2(keys, [transfer("swa", ["_"] * 2, policy="TRAILING_PAGES")])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    assert found.extra_pool_hit_pages == {"kv": 5, "swa": 4}


def parts_of(pattern, numbers):
    """What each of four ranks has stored, so that `pattern` is what all have: pages that are missing there, too, have
    some of their pieces."""
    parts = [copy.copy(pattern) for _ in range(RANKS)]
    for part in parts:
        part.present = {name: list(there) for name, there in pattern.present.items()}
    for name, there in pattern.present.items():
        for page in (page for page, is_there in enumerate(there) if not is_there):
            for part in numbers.sample(parts, numbers.randrange(RANKS)):
                part.present[name][page] = True
    return parts


def test_every_length_that_is_restorable_from_all_pieces_and_no_other(one_store):
    def storage_of(rank, ranks):
        layers = {"kv": 2, "swa": 1, "indexer": 3}
        pools = {n: HeadPool(rank, ranks, pages=MAX_PAGES, page_size=2, layer_num=layers[n]) for n in layers}
        return one_store(pools, config_of(rank, ranks))

    writers = [storage_of(rank, RANKS) for rank in range(RANKS)]
    one, half = storage_of(0, 1), storage_of(1, 2)
    numbers = random.Random(SEED)
    for i in range(PATTERNS // (100 if one_store.is_fake else 10)):
        pattern = Pattern(numbers)
        pattern.present.pop("mamba", None)
        parts = parts_of(pattern, numbers)
        for storage, part in zip(writers, parts):
            store(storage, part)
        both = copy.copy(pattern)
        pairs = zip(pattern.present, *(part.present.values() for part in parts[2:]))
        both.present = {name: [a and b for a, b in zip(third, fourth)] for name, third, fourth in pairs}
        for storage, wanted in ((one, pattern), (half, both)):
            found = query(storage, wanted)
            context = f"LARDER_JOINT_SEED={SEED}, pattern {i}: {wanted.present}, window {wanted.window}"
            assert found.restorable_prefix_pages == wanted.restorable(), context
            boundaries = {name: wanted.boundary(name) for name in wanted.present}
            assert found.extra_pool_hit_pages == {name: p for name, p in boundaries.items() if p}, context
            if list(wanted.present) == ["kv"]:
                assert storage.batch_exists(wanted.keys) == wanted.boundary("kv"), context
    assert one.troubles() == half.troubles() == {}


def test_as_many_ranks_as_tp_lcm_size_store_what_they_store_without(one_store):
    store_all(one_store, RANKS, lcm=None)
    assert rank_of(one_store, 1, 2)[0].batch_exists(chain(PAGES)) == PAGES
    assert rank_of(one_store, 0, 1, lcm=2)[0].batch_exists(chain(PAGES)) == 0
    assert rank_of(one_store, 0, 2, lcm=None)[0].batch_exists(chain(PAGES)) == 0


def test_a_piece_has_the_layout_of_a_page_of_its_rank(one_store):
    pools = {}
    for rank, ranks in ((0, 1), (1, 2), (3, 4)):
        storage, _ = rank_of(one_store, rank, ranks)
        pools[ranks] = storage._spaces._pools["kv"]
    assert pools[1].pool == pools[2].pool == pools[4].pool
    assert json.loads(pools[1].pool.layout)["head_num"] == HeadPool.HEADS // RANKS
    assert [pools[ranks].page_bytes // pools[4].page_bytes for ranks in (1, 2, 4)] == [4, 2, 1]


def test_flat_tensors_are_taken_apart_and_joined(one_store):
    store_all(one_store, RANKS)
    storage, pool = rank_of(one_store, 1, 2)
    target = pool.get_dummy_flat_data_page()
    assert storage.get(chain(PAGES)[2], target) is target
    assert target.array.tobytes() == pool.page(2)
    other = chain(1, "other")
    assert storage.set(other[0], pool.get_data_page(4 * 9)) is True
    assert storage.set(other[0], Tensor(target.array[1:])) is False
    assert storage.batch_get_v1(other, slots(1, page_size=4), prefix()) == [True]
    assert pool.page(1) == pool.page(9)


def test_a_clear_drops_the_pieces_of_all_ranks(one_store):
    store_all(one_store, RANKS)
    assert rank_of(one_store, 0, 2)[0].clear() is True
    for rank in range(RANKS):
        assert rank_of(one_store, rank, RANKS)[0].batch_exists(chain(PAGES)) == 0


def test_all_pieces_share_the_time_of_a_call(one_store, monkeypatch):
    if not one_store.is_fake:
        pytest.skip("needs the fake store")
    from larder.sglang import patience

    clock = [100.0]
    storage, _ = rank_of(one_store, 0, 1, timeout_seconds=2.0)
    storage._query_patience._clock = lambda: clock[0]
    given = []

    def exists(space, keys, needs=None, timeout=None, **terms):
        given.append(timeout)
        clock[0] += 0.75
        return real(space, keys, needs, timeout, **terms)

    real = FakeSpace.exists
    monkeypatch.setattr(FakeSpace, "exists", exists)
    store_all(one_store, RANKS)
    assert storage.batch_exists(chain(PAGES)) == PAGES
    assert given == [2.0, 1.25, 0.5, patience.LEAST_SECONDS]


class UnevenPool(HeadPool):
    """SGLang hands its heads out in another order."""

    def get_split_heads_page_buffer_meta(self, indices, pieces):
        addresses, sizes = super().get_split_heads_page_buffer_meta(indices, pieces)
        return addresses[::-1], sizes


REFUSED = {
    "too few heads": (lambda: HeadPool(heads=2), "2 heads of this rank cannot be divided among 4 ranks"),
    "another layout": (HostPool, "no heads in layout page_head"),
    "a state": (StatePool, "no heads in layout page_head"),
    "cut otherwise": (UnevenPool, "SGLang does not divide its heads, or in another way"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_divided_is_not_stored(one_store, caplog, what):
    """The other pools are, and no prefix that needs this one is restorable."""
    make, why = REFUSED[what]
    storage, _ = rank_of(one_store, 0, 1, pools={"other": make()})
    assert storage.troubles() == {"pool other": 1} and why in caplog.text
    assert storage.batch_set_v1(chain(PAGES), EVERY, prefix()) == [True] * PAGES
    assert storage.batch_exists(chain(PAGES)) == PAGES
    assert storage.batch_exists_v2(chain(PAGES), [transfer("other")]).restorable_prefix_pages == []


@pytest.mark.parametrize("lcm,ranks", [(3, 2), (2, 4), ("4", 2), (True, 1), (4.0, 2), (-4, 2)])
def test_a_wrong_tp_lcm_size_is_refused_with_words(engine, lcm, ranks):
    from larder.sglang import LarderStorage

    config = Config(tp_size=ranks, tp_lcm_size=lcm, extra_config={"weights_fingerprint": "w", "backend": "memory"})
    with pytest.raises(ValueError, match=f"tp_lcm_size is {lcm!r}.*here {ranks}: their least common multiple"):
        LarderStorage(config, {})


def test_stores_of_their_own_for_each_rank_do_not_fit(engine):
    from larder.sglang import LarderStorage

    config = config_of(0, 2)
    config.extra_config = {"weights_fingerprint": "w", "directory": "d", "rank_directories": True}
    with pytest.raises(ValueError, match="rank_directories does not fit tp_lcm_size"):
        LarderStorage(config, {})


def test_a_server_of_one_rank_shares_its_store_with_larger_ones():
    from larder.sglang.settings import read_settings

    config = Config(extra_config={"directory": "/cache"})
    assert "share_directory" not in read_settings(config).store
    config.tp_lcm_size = 4
    assert read_settings(config).store["share_directory"] == "/cache.share"
