# SPDX-License-Identifier: Apache-2.0
"""SGLang's own hf3fs clients, of its wheel, against `larder metadata-server`: every call, many threads, and kills."""

import random
import signal
import threading
import time

import pytest
from rig import cases, metadata_server, pools, world
from sglang.srt.mem_cache.hicache_storage import PoolName

THREADS = 8
KILLS = 5
SECONDS_BETWEEN_KILLS = 1.2
PAGES = 200_000
SPACES = [(0, PoolName.KV), (1, PoolName.KV), (0, PoolName.MAMBA), (3, PoolName.INDEXER)]


@pytest.fixture
def server(tmp_path):
    """A server with an empty journal."""
    with metadata_server.MetadataServer(tmp_path / "journal") as running:
        yield running


@pytest.fixture
def client(server):
    """A client of it."""
    return metadata_server.client(server.url)


def names(count, start=0):
    """Returns keys as SGLang makes them."""
    return [f"{number:064x}" for number in range(start, start + count)]


def reserve(client, rank, keys, space=PoolName.KV):
    """Reserves pages as SGLang's backend does: without parents."""
    return client.reserve_and_allocate_page_indices(rank, [(key, "") for key in keys], namespace=space)


def store(client, rank, keys, space=PoolName.KV):
    """Reserves and confirms `keys`, which are new; returns their pages."""
    answers = reserve(client, rank, keys, space)
    assert [written for written, _ in answers] == [False] * len(keys)
    found = [page for _, page in answers]
    client.confirm_write(rank, list(zip(keys, found)), [], namespace=space)
    return found


# ---- every call ----


@pytest.mark.parametrize("rank,space", SPACES)
def test_a_write_becomes_visible_with_its_confirmation(client, rank, space):
    client.initialize(rank, 8, namespace=space)
    keys = names(4)
    assert client.exists(rank, keys, namespace=space) == [False] * 4
    assert client.get_page_indices(rank, keys, namespace=space) == [None] * 4
    answers = reserve(client, rank, keys, space)
    found = [page for _, page in answers]
    assert [written for written, _ in answers] == [False] * 4
    assert len(set(found)) == 4 and set(found) <= set(range(8))
    assert client.exists(rank, keys, namespace=space) == [False] * 4
    assert client.get_page_indices(rank, keys, namespace=space) == [None] * 4
    client.confirm_write(rank, list(zip(keys, found)), [], namespace=space)
    assert client.exists(rank, [*keys, *names(1, 9)], namespace=space) == [True] * 4 + [False]
    assert client.get_page_indices(rank, [*names(1, 9), *keys], namespace=space) == [None, *found]


def test_what_is_stored_is_not_written_again(client):
    client.initialize(0, 8)
    keys = names(3)
    found = store(client, 0, keys)
    answers = reserve(client, 0, [*keys, *names(1, 9)])
    assert answers[:3] == [(True, page) for page in found]
    assert answers[3][0] is False and answers[3][1] not in found


def test_two_writers_of_one_key_never_get_a_page_each(client):
    client.initialize(0, 8)
    key = names(1)
    ((written, page),) = reserve(client, 0, key)
    assert (written, reserve(client, 0, key)) == (False, [(True, -1)])
    client.confirm_write(0, [(key[0], page)], [])
    assert reserve(client, 0, key) == [(True, page)]


def test_a_page_that_was_not_written_is_given_back_when_no_write_to_it_can_land(tmp_path):
    for lifetime, is_there in ((0, True), (600, False)):
        with metadata_server.MetadataServer(tmp_path / str(lifetime), "--max-io-lifetime", lifetime) as server:
            client = metadata_server.client(server.url)
            client.initialize(0, 2)
            one, other = names(2)
            pages = {page for _, page in reserve(client, 0, [one, other])}
            assert reserve(client, 0, names(1, 9)) == [(False, -1)]
            client.confirm_write(0, [], sorted(pages))
            assert client.exists(0, [one, other]) == [False, False]
            assert {page for _, page in reserve(client, 0, names(2, 9))} == (pages if is_there else {-1})


def test_one_call_confirms_and_releases(client):
    client.initialize(0, 4)
    keys = names(2)
    (_, kept), (_, failed) = reserve(client, 0, keys)
    client.confirm_write(0, [(keys[0], kept)], [failed])
    assert client.get_page_indices(0, keys) == [kept, None]
    client.confirm_write(0, [], [kept])  # a page of a stored key stays where it is
    assert client.get_page_indices(0, keys) == [kept, None]


def test_deleted_and_cleared_keys_are_gone(client):
    client.initialize(0, 8)
    client.initialize(0, 8, namespace=PoolName.SWA)
    keys = names(4)
    store(client, 0, keys)
    kept = store(client, 0, keys, PoolName.SWA)
    client.delete_keys(0, [*keys[1:3], *names(1, 9)])
    assert client.exists(0, keys) == [True, False, False, True]
    client.clear(0)
    assert client.exists(0, keys) == [False] * 4
    assert client.get_page_indices(0, keys, namespace=PoolName.SWA) == kept
    client.clear(0)
    assert len(set(store(client, 0, names(8, 50)))) == 8


def test_ranks_and_pools_are_apart(client):
    for rank, space in SPACES:
        client.initialize(rank, 4, namespace=space)
    key = names(1)
    for number, (rank, space) in enumerate(SPACES):
        store(client, rank, key, space)
        seen = [client.exists(other, key, namespace=pool)[0] for other, pool in SPACES]
        assert seen == [True] * (number + 1) + [False] * (len(SPACES) - number - 1)


def test_the_first_number_of_pages_counts(client):
    client.initialize(0, 2)
    client.initialize(0, 50)
    assert [page == -1 for _, page in reserve(client, 0, names(4))] == [False, False, True, True]


def test_a_full_pool_evicts_what_was_used_longest_ago(client):
    client.initialize(0, 4)
    keys = names(4)
    for key in keys:
        store(client, 0, [key])
    held = client.get_page_indices(0, keys[:2])  # leased: somebody may be reading them
    assert reserve(client, 0, names(1, 9))[0][1] not in (-1, *held)
    assert client.exists(0, keys) == [True, True, False, True]


def test_calls_before_initialize_fail_with_words(client):
    for call in (
        lambda: client.exists(7, names(1)),
        lambda: client.get_page_indices(7, names(1)),
        lambda: reserve(client, 7, names(1)),
        lambda: client.confirm_write(7, [], []),
        lambda: client.delete_keys(7, names(1)),
        lambda: client.clear(7),
    ):
        with pytest.raises(RuntimeError, match="404"):
            call()


def test_empty_lists_are_fine(client):
    client.initialize(0, 2)
    assert (client.exists(0, []), client.get_page_indices(0, []), reserve(client, 0, [])) == ([], [], [])
    client.confirm_write(0, [], [])
    client.delete_keys(0, [])


def test_a_batch_of_many_keys(client):
    client.initialize(0, 20_000)
    keys = names(10_000)
    found = store(client, 0, keys)
    assert len(set(found)) == 10_000
    assert client.get_page_indices(0, keys) == found


def test_the_key_of_a_server_goes_into_the_url(tmp_path):
    with metadata_server.MetadataServer(tmp_path, "--api-key", "se/cr@t") as running:
        with pytest.raises(RuntimeError, match="401"):
            metadata_server.client(running.url).initialize(0, 4)
        keyed = metadata_server.client(running.url.replace("//", "//larder:se%2Fcr%40t@"))
        keyed.initialize(0, 4)
        store(keyed, 0, names(2))
        assert keyed.exists(0, names(2)) == [True, True]


# ---- many threads and kills ----


class Writer:
    """One thread with a client. Writes keys of its own, and keys that all write; reads and deletes its own."""

    def __init__(self, number, server, models, done):
        self.thread = threading.Thread(target=self._run)
        self.random = random.Random(number)
        self.number = number
        self.models = models
        self.done = done
        self.client = metadata_server.client(server.url)
        self.own = {space: [] for space in models}
        self.calls = 0
        self.error = None

    def _run(self):
        try:
            while not self.done.is_set():
                self._round(*self.random.choice(list(self.models)))
        except BaseException as error:
            self.error = error

    def _round(self, rank, space):
        model = self.models[rank, space]
        own = [f"{self.number}-{self.calls}-{i}" for i in range(self.random.randint(1, 12))]
        shared = [f"all-{len(model.stored) // 40}-{i}" for i in range(4)]
        self._write(model, rank, space, own + shared, set(shared))
        self.own[rank, space] += own
        self._read(model, rank, space, self.random.sample(self.own[rank, space], min(8, len(self.own[rank, space]))))
        if self.random.random() < 0.3:
            self._delete(model, rank, space)
        self.calls += 4

    def _write(self, model, rank, space, keys, shared):
        """Reserves, then confirms most and releases some in one call, as after failed writes."""
        life = model.life
        known = [model.stored.get(key) for key in keys]
        answers = reserve(self.client, rank, keys, space)
        told = zip(keys, known, answers, strict=True)
        mine = [(key, answer[1]) for key, page, answer in told if model.reserved(key, life, page, *answer)]
        released = [(key, page) for key, page in mine if key not in shared and self.random.random() < 0.1]
        confirmed = [pair for pair in mine if pair not in released]
        for key, page in released:
            model.let_go(key, page)
        self.client.confirm_write(rank, confirmed, [page for _, page in released], namespace=space)
        for key, page in confirmed:
            model.confirmed(key, page, life)
        for key, _ in released:
            model.missing(key)

    def _read(self, model, rank, space, keys):
        """Keys of this thread: nobody else changes what is known of them."""
        known = dict(model.stored)
        gone = set(model.gone)
        there = self.client.exists(rank, keys, namespace=space)
        pages = self.client.get_page_indices(rank, keys, namespace=space)
        for key, found, page in zip(keys, there, pages, strict=True):
            assert found == (page is not None), f"{key}: {found}, {page}"
            assert key not in gone or not found, f"{key} was released or deleted, and is found"
            assert key not in known or page == known[key], f"{key} is stored in {known[key]}, not in {page}"

    def _delete(self, model, rank, space):
        key = self.own[rank, space].pop(self.random.randrange(len(self.own[rank, space])))
        model.deleting(key)
        self.client.delete_keys(rank, [key], namespace=space)
        model.missing(key)


def check_all(client, models):
    """Everything that is known to be stored is there, nothing that is known to be gone, and no page twice."""
    for (rank, space), model in models.items():
        keys = sorted(model.seen)
        pages = dict(zip(keys, client.get_page_indices(rank, keys, namespace=space), strict=True))
        lost = {key: page for key, page in model.stored.items() if pages[key] != page}
        assert not lost, f"{len(lost)} of {len(model.stored)} confirmed keys were lost or moved: {sorted(lost)[:5]}"
        assert not [key for key in model.gone if pages.get(key) is not None]
        given = [page for page in pages.values() if page is not None]
        assert len(given) == len(set(given)), "two keys have one page"


def run_writers(server, models, between):
    """Runs the writers while `between()` runs; fails with the first error of a writer. Returns their calls."""
    done = threading.Event()
    writers = [Writer(number, server, models, done) for number in range(THREADS)]
    for writer in writers:
        writer.thread.start()
    try:
        between()
    finally:
        done.set()
        for writer in writers:
            writer.thread.join(timeout=60)
    for writer in writers:
        if writer.error:
            raise AssertionError(f"thread {writer.number}: {writer.error}") from writer.error
    return sum(writer.calls for writer in writers)


def models_of(client):
    """Initializes all namespaces, with room for everything."""
    for rank, space in SPACES:
        client.initialize(rank, PAGES, namespace=space)
    return {place: metadata_server.Model() for place in SPACES}


def test_many_threads_and_kills(server, client):
    """The clients' own retries carry them over each kill: no call fails, and no confirmed key is lost."""
    models = models_of(client)

    def kill_and_start():
        for _ in range(KILLS):
            time.sleep(SECONDS_BETWEEN_KILLS)
            server.kill()
            for model in models.values():
                with model.lock:
                    model.life += 1
            server.start()
        time.sleep(SECONDS_BETWEEN_KILLS)

    calls = run_writers(server, models, kill_and_start)
    check_all(client, models)
    server.kill()
    server.start()
    check_all(client, models)
    stored = sum(len(model.stored) for model in models.values())
    assert server.keys_stored >= stored
    assert calls > 500 and stored > 500, f"{calls} calls stored {stored} keys: too few to tell"
    for life in range(KILLS + 1):
        assert any(model.confirmed_in_life.get(life) for model in models.values()), f"nothing was stored in life {life}"


def test_an_end_in_order_keeps_everything(server, client):
    client.initialize(2, 100)
    found = store(client, 2, names(50))
    server.stop()
    server.start()
    assert server.keys_stored == 50
    assert client.get_page_indices(2, names(50)) == found


# ---- SGLang's whole backend ----


@pytest.fixture
def signals():
    """Takes back the handlers that SGLang's backend installs for the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("kind", ["mha", "mla", "mamba", "dsa"])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_the_hf3fs_backend_of_sglang(server, tmp_path, monkeypatch, signals, kind, layout):
    """Backup, flush, prefetch and load-back through SGLang's hf3fs backend, and again after a kill of the server."""
    backend = metadata_server.backend(server.url, tmp_path, monkeypatch)
    cases.round_trip(backend, kind=kind, layout=layout)
    server.kill()
    server.start()
    with world.World(backend, kind=kind, layout=layout) as w:
        cases.expect_restored(w, cases.tokens_of(7, w.page_size), 7)
        tokens = cases.tokens_of(5, w.page_size, start=70_000)
        w.insert(tokens)
        w.flush()
        cases.expect_restored(w, tokens, 5)
