# SPDX-License-Identifier: Apache-2.0
"""Faults of a store under the real SGLang: a hang, errors, short answers, kill -9, a full disk, detach under load.

After every fault: all of SGLang's storage threads live, the next tries give the right bytes, no host page is lost,
and memory stays flat.
"""

import contextlib
import os
import random
import threading
import time

import larder
import pytest
import torch
from rig import cases, faults, holes, larder_backend, world
from rig.holes import ALL, NOTHING
from rig.moody import TIMES, WAIT, Moody, compile_library, until
from sglang.srt.mem_cache.hicache_storage import PoolTransfer

MOODS = ("hang", "error", "silent", "wrong")
FAULTS_OF_READERS = [(call, mood) for call in ("exists", "read") for mood in MOODS] + [("read", "short")]
# Extra config and settings of the servers that meet faults; the last has each page in four pieces.
SERVERS = {
    "mha": ({}, {"kind": "mha"}),
    "mamba_swa": ({}, {"kind": "mamba_swa"}),
    "pieces": ({"tp_lcm_size": 4}, {"kind": "swa", "layout": "page_head", "heads": 4}),
}
AT_ONCE = 4.0  # seconds: SGLang waits no longer than this where a timeout of 0.25 s is set; a busy machine included


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled moody backend."""
    return compile_library(tmp_path_factory.mktemp("moody"))


@pytest.fixture
def moody(library, tmp_path):
    """A store that is fine, so far; whatever hangs in it ends with the test."""
    store = Moody(library, tmp_path)
    yield store
    store.settle()


def timed(action, *args):
    """Does `action`; returns its result and the seconds it took."""
    begin = time.monotonic()
    return action(*args), time.monotonic() - begin


def backup(w, tokens):
    """A request that computed `tokens` has ended; waits for the backup."""
    w.insert(tokens)
    w.wait_backup()


def unused(w):
    """Returns what `host_pages` says of empty pools."""
    return dict.fromkeys(faults.host_pages(w), 0)


# -- one fault at a time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("call,mood", FAULTS_OF_READERS)
def test_a_query_or_read_that_fails(moody, server, call, mood):
    """The prefetch ends as a miss, in time; then the request computes the prompt, and the next one finds it all."""
    config, settings = SERVERS[server]
    with world.World(moody.backend(**config), **settings) as w:
        tokens = holes.prompt(w)
        backup(w, tokens)
        w.flush()
        moody.mood(mood, call)
        # A store that claims to have what it has is right, so that one is asked for something else.
        asked = cases.tokens_of(6, w.page_size, start=70000) if (call, mood) == ("exists", "wrong") else tokens
        fetched, seconds = timed(w.prefetch, asked)
        assert fetched == 0 and seconds < AT_ONCE
        assert moody[f"calls_{call}"] > 0
        faults.expect_sound(w, unused(w))
        moody.settle()
        backup(w, tokens)
        w.flush()
        assert holes.look(w, tokens) == ALL
        faults.expect_alive(w)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("mood", ["hang", "error", "silent", "short"])
def test_a_write_that_fails(moody, server, mood):
    """The backup ends in time, holds nothing, and is done again without SGLang: the next prefetch hits fully."""
    config, settings = SERVERS[server]
    with world.World(moody.backend(**config), **settings) as w:
        tokens = holes.prompt(w)
        moody.mood(mood, "write")
        _, seconds = timed(backup, w, tokens)
        assert seconds < AT_ONCE
        assert moody["objects"] == 0
        used = faults.host_pages(w)
        assert used["kv"] == 6 * w.page_size
        faults.expect_sound(w, used)
        w.flush()  # the host's memory is poisoned: what is stored later has to be a copy
        moody.settle()
        faults.wait_retries(w)
        assert holes.look(w, tokens) == ALL


def test_a_read_that_hangs_never_writes_to_host_memory_that_was_given_back(moody):
    """The bytes of a read that ends late go nowhere: SGLang may have given the host's page to another prompt."""
    with world.World(moody.backend()) as w:
        tokens = holes.prompt(w)
        backup(w, tokens)
        w.flush()
        moody.mood("hang", "read")
        assert w.prefetch(tokens) == 0
        until(lambda: moody["hung"] == 1, "the begin of the hang")
        faults.poison_host(w)
        moody.settle()
        backup_of_another = cases.tokens_of(3, w.page_size, start=50000)
        assert faults.host_is_poison(w)
        backup(w, backup_of_another)
        w.check(backup_of_another, pages=3)


@pytest.mark.parametrize("kind", ["dsv4", "dsa_draft"])
def test_a_read_of_many_pools_that_hangs(moody, kind):
    """All pools of a batch share one deadline, and batches after a late one have little patience: SGLang's flush waits
    10 s for the thread, and ends the server otherwise."""
    with world.World(moody.backend(), kind=kind) as w:
        pools = dict(w.store._spaces._pools)
        keys = [f"{number:064x}" for number in range(1, 3)]
        asked = [
            PoolTransfer(name=name, keys=keys, host_indices=torch.arange(len(keys) * pool.slots_per_page))
            for name, pool in pools.items()
        ]
        moody.mood("hang", "read")
        missed = {name: [False] * len(keys) for name in pools}
        for most in (1.5 * TIMES["timeout_seconds"], 0.2):
            found, seconds = timed(w.store.batch_get_v2, asked)
            assert found == missed and len(pools) >= 4 and seconds < most
        moody.settle()


def test_queries_after_one_that_was_late(moody):
    """SGLang asks for one request after the other, on one thread: the second does not wait as long again."""
    with world.World(moody.backend()) as w:
        keys = [f"{number:064x}" for number in range(1, 3)]
        moody.mood("hang", "exists")
        for query, most in (
            (w.store.batch_exists, 1.5 * TIMES["timeout_seconds"]),
            (w.store.batch_exists, 0.2),
            (lambda asked: w.store.batch_exists_v2(asked).kv_hit_pages, 0.2),
        ):
            found, seconds = timed(query, keys)
            assert found == 0 and seconds < most
        moody.settle()


BUFFER_ONLY = {"hicache_host_memory_mode": "buffer_only"}


def backup_of_buffer(w, tokens):
    """As backup(), where SGLang's host memory is a buffer only."""
    w.insert(tokens)
    for _ in range(3):
        w.step()
    w.wait(lambda: w.cache.buffer_pipeline.is_idle(), "the backup")


@pytest.mark.parametrize("kind", ["mha", "mamba_swa"])
def test_a_late_query_does_not_let_sglang_write_anew(moody, kind):
    """With buffer_only SGLang remembers what it has stored, and a page that a query does not find it stores again."""
    with world.World(moody.backend(), kind=kind, server_args=BUFFER_ONLY) as w:
        tokens = holes.prompt(w)
        backup_of_buffer(w, tokens)
        writes = moody["calls_write"]
        w.flush()
        moody.mood("hang", "exists")
        fetched, seconds = timed(w.prefetch, tokens)
        assert fetched == 0 and seconds < AT_ONCE
        moody.settle()
        backup_of_buffer(w, tokens)
        assert moody["calls_write"] == writes > 0
        faults.expect_alive(w)


@pytest.mark.parametrize("kind", ["mha", "mamba_swa"])
def test_a_late_read_costs_copies_only(moody, kind):
    """With buffer_only and a hybrid model SGLang offers again what a read did not bring; a page is there once."""
    with world.World(moody.backend(), kind=kind, server_args=BUFFER_ONLY) as w:
        tokens = holes.prompt(w)
        backup_of_buffer(w, tokens)
        objects, writes = moody["objects"], moody["calls_write"]
        w.flush()
        moody.mood("hang", "read")
        fetched, seconds = timed(w.prefetch, tokens)
        assert fetched == 0 and seconds < AT_ONCE
        moody.settle()
        backup_of_buffer(w, tokens)
        assert moody["objects"] == objects > 0
        assert (moody["calls_write"] > writes) == (kind != "mha")
        w.flush()
        faults.wait_breakers(w)
        assert w.prefetch(tokens) == holes.PAGES
        faults.expect_alive(w)


def test_pages_that_are_offered_again_are_not_written_again(tmp_path):
    """What such a read costs the disk: nothing."""
    with world.World(larder_backend.describe(tmp_path / "store"), kind="mamba_swa", server_args=BUFFER_ONLY) as w:
        tokens = holes.prompt(w)
        backup_of_buffer(w, tokens)
        before = faults.stats(w)["store"]
        w.flush()
        w.cache.storage_existence_cache.clear()
        backup_of_buffer(w, tokens)
        after = faults.stats(w)["store"]
        assert after["duplicate_writes"] == before["pages"] == after["pages"] > 0
        assert after["written_bytes"] == before["written_bytes"]


def test_more_hanging_calls_than_the_store_has_threads(moody):
    """All threads of the store are stuck: each further prefetch and backup still ends in time; then all is well."""
    with world.World(moody.backend()) as w:
        prompts = [cases.tokens_of(2, w.page_size, start=10000 * n) for n in range(1, 8)]
        backup(w, prompts[0])
        w.flush()
        moody.mood("hang")
        for tokens in prompts:
            fetched, seconds = timed(w.prefetch, tokens)
            assert fetched == 0 and seconds < AT_ONCE
            _, seconds = timed(backup, w, tokens)
            assert seconds < AT_ONCE
        assert moody["hung"] >= 2
        faults.expect_sound(w, {"kv": len(prompts) * 2 * w.page_size})
        moody.settle()
        faults.wait_retries(w)
        w.flush()
        faults.wait_breakers(w)
        for tokens in prompts:
            faults.retry_until(w, tokens, 2)


def test_a_slow_store(moody):
    """Calls that take 20 ms each are in time: nothing is lost."""
    moody.mood("slow")
    cases.round_trip(moody.backend(timeout_seconds=5, put_timeout_seconds=5), kind="mamba_swa")


def test_an_attach_to_a_disk_that_hangs(tmp_path, monkeypatch):
    """SGLang's scheduler waits for it, and nothing is served meanwhile: it ends, and another one finds all in order."""
    monkeypatch.setattr("larder.sglang.opening.ATTACH_SECONDS", 0.1)
    hanging = tmp_path / "hanging"
    hanging.mkdir()
    os.mkfifo(hanging / "FORMAT")  # whoever opens it to read waits for a writer
    with world.World() as w:
        with pytest.raises(world.RigError, match="DEADLINE_EXCEEDED: the file store .*hanging has not opened in 0.1 s"):
            w.attach(larder_backend.describe(hanging))
        os.close(os.open(hanging / "FORMAT", os.O_WRONLY))
        monkeypatch.setattr("larder.sglang.opening.ATTACH_SECONDS", WAIT)
        w.attach(larder_backend.describe(tmp_path / "store"))
        tokens = holes.prompt(w)
        backup(w, tokens)
        w.flush()
        assert holes.look(w, tokens) == ALL
        faults.expect_alive(w)


# -- memory ------------------------------------------------------------------------------------------------------------


def fault_round(w, moody, number):
    """One request in a sick store: computed, backed up, forgotten, asked for; every second round is without fault."""
    tokens = cases.tokens_of(4, w.page_size, start=20000 * (number % 5))
    moods = ("error", "silent", "short", "wrong")
    if number % 2:
        moody.mood(moods[number // 2 % 4], ("read", "write")[number // 8 % 2])
    backup(w, tokens)
    w.flush()
    given = holes.look(w, tokens)
    assert given.is_right
    moody.mood("fine")
    if number % 20 == 19:
        w.clear()
    return given.pages


def test_memory_is_flat_over_many_faults(moody):
    """200 rounds: after the first 60 the process does not grow; both hits and misses were among them."""
    with world.World(moody.backend(), pages=12) as w:
        given, sizes = [], []
        for number in range(200):
            given.append(fault_round(w, moody, number))
            if number % 20 == 19:
                sizes.append(faults.resident())
        w.flush()
        faults.expect_sound(w, unused(w))
        print(f"KiB every 20 rounds: {sizes}")
        assert max(sizes[6:]) - max(sizes[:3]) < 2048, f"KiB every 20 rounds: {sizes}"
        assert {0, 4} <= set(given)
        assert sum(w.store.troubles().values()) >= 10


# -- kill -9 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind,seed", [("mha", 1), ("mamba_swa", 2), ("mha", 3), ("mamba_swa", 4)])
def test_kill_9_during_backup(tmp_path, kind, seed):
    """What a killed server leaves behind is opened at once, and gives right bytes; what was backed up is all there."""
    chance = random.Random(seed)
    backend = larder_backend.describe(tmp_path / "store", max_size="64M")
    done = faults.kill_while_backing_up(backend, kind, chance.randint(3, 8), chance.random() * 0.02)
    print(f"seed {seed}: killed after {done} prompts")
    with world.World(backend, kind=kind) as w:
        given = look_at_all(w, [faults.prompt_of(w, number) for number in range(done + 2)])
        assert given[:done] == [ALL] * done
        assert all(one.is_right for one in given)
        tokens = faults.prompt_of(w, 900)
        backup(w, tokens)
        w.flush()
        assert holes.look(w, tokens) == ALL


# -- a full disk -------------------------------------------------------------------------------------------------------


def fill_up(w, prompts):
    """Requests that computed `prompts` have ended, one after the other."""
    for tokens in prompts:
        backup(w, tokens)
        w.flush()


def look_at_all(w, prompts):
    """Returns what is given back of each prompt."""
    given = []
    for tokens in prompts:
        given.append(holes.look(w, tokens))
        w.flush()
    return given


@pytest.mark.parametrize(
    "disk,segment_size,serves",
    [(faults.small_disk, "256K", True), (faults.file_size_limit, "auto", False)],
    ids=["no space", "no large files"],
)
def test_a_full_disk(tmp_path, disk, segment_size, serves):
    """Backups to a full disk end as usual, what the disk holds is served, and nothing else.

    With room again the store writes what it has kept by itself: only what it had to evict is gone.
    """
    with contextlib.ExitStack() as stack:
        folder, make_room = stack.enter_context(disk(tmp_path))
        backend = larder_backend.describe(folder / "store", max_size="64M", segment_size=segment_size)
        w = stack.enter_context(world.World(backend))
        prompts = [cases.tokens_of(6, w.page_size, start=10000 * n) for n in range(1, 31)]
        fill_up(w, prompts)
        assert faults.stats(w)["retry"]["taken"] + faults.stats(w)["store"]["evicted"] > 0
        given = look_at_all(w, prompts)
        assert (ALL in given) == serves and NOTHING in given
        assert all(one.is_right for one in given)
        faults.expect_sound(w, unused(w))
        make_room()
        faults.wait_retries(w)
        given = look_at_all(w, prompts)
        assert all(one.is_right for one in given) and given[-1] == ALL
        store = faults.stats(w)["store"]
        assert store["pages"] == 6 * len(prompts) - store["evicted"]
        assert given.count(ALL) >= len(prompts) - store["evicted"]
        faults.expect_sound(w, unused(w))


def test_a_store_at_its_limit(tmp_path):
    """The store's own limit is no fault: what was used longest ago goes, the newest is there."""
    with world.World(larder_backend.describe(tmp_path / "store", max_size="4M", segment_size="512K")) as w:
        prompts = [cases.tokens_of(6, w.page_size, start=10000 * n) for n in range(1, 121)]
        fill_up(w, prompts)
        assert faults.stats(w)["store"]["evicted"] > 0
        assert faults.stats(w)["store"]["physical_bytes"] <= 4_000_000
        assert holes.look(w, prompts[-1]) == ALL
        w.flush()
        assert holes.look(w, prompts[0]).is_right
        faults.expect_alive(w)


# -- detach and attach under load --------------------------------------------------------------------------------------


def test_detach_while_operations_are_on_their_way(moody):
    """What happens when a server is told to end: SGLang's route demands an idle scheduler, its exit hook does not.

    Backups and a prefetch are queued and running in a slow store.  The detach ends them; attached again, the store
    gives what had been stored, with the right bytes, and takes the rest.
    """
    config = {"timeout_seconds": 5, "put_timeout_seconds": 5}
    with world.World(moody.backend(**config)) as w:
        tokens = holes.prompt(w)
        backup(w, tokens)
        w.flush()
        moody.mood("slow")
        others = [cases.tokens_of(2, w.page_size, start=10000 * n) for n in range(1, 6)]
        for other in others:
            w.insert(other)
        faults.begin_prefetch(w, tokens)
        until(lambda: w.step() or w.cache.ongoing_backup, "the begin of a backup")
        (done, words), seconds = timed(w.cache.detach_storage_backend)
        assert done, words
        assert seconds < WAIT and faults.threads(w) == [] and moody["open"] == 0
        assert not w.cache.ongoing_prefetch and not w.cache.ongoing_backup
        computed = 2 * len(others) * w.page_size  # stays on the host; SGLang may lose the tail of an ended prefetch
        assert computed <= faults.host_pages(w)["kv"] <= computed + len(tokens)
        moody.settle()
        w.attach(moody.backend(**config))
        w.flush()
        assert holes.look(w, tokens) == ALL
        for other in others:
            backup(w, other)
            w.flush()
            assert holes.look(w, other).pages == 2
            w.check(other, pages=2)
        faults.expect_alive(w)


def test_detach_while_the_store_hangs(moody):
    """The detach does not wait for a store that hangs, and a new one works beside it; the old one ends when it can."""
    with world.World(moody.backend()) as w:
        tokens = holes.prompt(w)
        backup(w, tokens)
        w.flush()
        moody.mood("hang", "read")
        assert w.prefetch(tokens) == 0
        assert moody["hung"] == 1
        _, seconds = timed(w.detach)
        assert seconds < 10 and faults.threads(w) == []
        moody.mood("slow", "read")  # the call that hangs ends with the mood it began with
        w.attach(moody.backend(timeout_seconds=5))
        w.flush()
        assert holes.look(w, tokens) == ALL
        moody.settle()
        faults.expect_alive(w)


def test_a_close_waits_no_longer_than_it_was_told_for_calls_of_other_threads(moody):
    """The store in Python, without SGLang: what a call that hangs still uses is closed later."""
    config = {"library": str(moody.library), "control": str(moody.path), "store": str(moody.store)}
    store = larder.Store("plugin", config)
    space = store.space(page_size=16, identity="m", pools=[larder.Pool("kv", 64, "x")])
    moody.mood("hang", "read")
    codes = []
    page = larder.Page("01" * 32, bytearray(64))
    reader = threading.Thread(target=lambda: codes.extend(space.get_pages([page], timeout=30)), daemon=True)
    reader.start()
    until(lambda: moody["hung"] == 1, "the begin of the hang")
    begin = time.monotonic()
    for _ in range(2):
        with pytest.raises(larder.Error, match="other threads") as caught:
            store.close(0.5)
        assert caught.value.code is larder.Code.DEADLINE_EXCEEDED
    assert time.monotonic() - begin < 2 and reader.is_alive()
    with pytest.raises(larder.Error, match="closed"):
        space.get_pages([page])
    moody.settle()
    store.close(10)
    reader.join(timeout=WAIT)
    assert len(codes) == 1 and moody["open"] == 0


def test_calls_of_other_threads_while_the_backend_is_closed(tmp_path):
    """Storage threads call all the time while the backend is closed and attached again, ten times, on one directory.

    Every call returns: a bool per page, nothing raised; after the close all of them are misses.
    """
    backend = larder_backend.describe(tmp_path / "store", max_size="64M")
    with world.World(backend) as w:
        tokens = holes.prompt(w)
        backup(w, tokens)
        w.flush()
        for _ in range(10):
            load = faults.Load(w, count=3)
            load.start()
            until(lambda: min(load.calls) > 20, "the load")
            storage = w.store
            w.detach()
            assert not any(storage.batch_set_v1(load.keys, load.indices[0]))
            load.stop()
            assert load.failures == []
            assert load.hits > 0
            w.attach(backend)
        assert holes.look(w, tokens) == ALL
        assert threading.active_count() < 30
        faults.expect_alive(w)


def test_inserts_and_prefetches_around_detach_and_attach(tmp_path):
    """SGLang goes on with requests while the store comes and goes; what was stored with a store is there at the end."""
    backend = larder_backend.describe(tmp_path / "store", max_size="64M")
    chance = random.Random(7)
    with world.World(backend) as w:
        stored = []
        for number in range(24):
            tokens = cases.tokens_of(2, w.page_size, start=10000 * (number + 1))
            backup(w, tokens)
            if w.store is not None:
                stored.append(tokens)
            w.flush()
            if chance.random() < 0.3:
                w.detach() if w.store is not None else w.attach(backend)
            given = holes.look(w, chance.choice(stored))
            assert given.is_right and given.pages == (2 if w.store is not None else 0)
            w.flush()
        if w.store is None:
            w.attach(backend)
        for tokens in stored:
            cases.expect_restored(w, tokens, 2)
            w.flush()
        assert 5 < len(stored) < 24
        faults.expect_sound(w, unused(w))
