# SPDX-License-Identifier: Apache-2.0
"""SGLang's end after SIGTERM: it destroys its host pools first, and detaches the storage at exit."""

import threading

import pytest
from rig import cases, holes, pools, ranks, world

PROMPTS = 5


def prompts(w):
    return [cases.tokens_of(2, w.page_size, start=10000 * number) for number in range(1, PROMPTS + 1)]


def held_memory(pool):
    """Returns (begin, end) of the memory that Larder holds for a host pool; neighbours are one."""
    from larder.sglang.tensors import merged

    storages = {(storage.data_ptr(), storage.nbytes()) for storage in (one.untyped_storage() for one in pool.memory)}
    return [(at, at + size) for at, size in merged(list(storages))]


@pytest.mark.parametrize("kind,layout", pools.combinations())
def test_all_memory_that_pages_lie_in_is_held(tmp_path, kind, layout):
    from larder.sglang.pools import memory_of

    with world.World(holes.ours(tmp_path), kind=kind, layout=layout) as w:
        pages = [(pool, region) for pool in w.store._spaces._pools.values() for region in memory_of(pool.layout)]
        loose = [
            (pool.name, at, size)
            for pool, (at, size) in pages
            if not any(begin <= at and at + size <= end for begin, end in held_memory(pool))
        ]
        cases.expect((bool(pages), loose), (True, []), "memory that SGLang may free under a transfer")


def end_with_a_queue(rank, count, group, backend, settings):
    """A server is told to end while its backups wait for the store; returns how many pages were stored then."""
    world.quiet()
    go, w = threading.Event(), world.World(backend, **settings)
    real = w.store._spaces.enter

    def enter():
        assert go.wait(60)
        return real()

    w.store._spaces.enter = enter
    for tokens in prompts(w):
        w.insert(tokens)
    w.wait(lambda: not w.cache.ongoing_write_through, "the copies to the host")
    before = w.store.store_stats()["calls"]["pages_stored"]
    w.cache.release_host_resources()  # what SGLang's scheduler does when it ends
    go.set()
    # SGLang would drop what its thread has not begun by the detach; here all is begun, for all of it to be looked at.
    w.wait(lambda: not w.cache.ongoing_backup, "the backup")
    stored = w.store.store_stats()["calls"]["pages_stored"] - before
    w.cache.shutdown()  # at exit
    return stored


SOME = [("mha", "layer_first"), ("dsa", "page_first_direct"), ("dsv4", "page_first"), ("mamba", "page_first")]


@pytest.mark.parametrize("kind,layout", SOME)
def test_backups_that_wait_at_the_end_have_the_right_bytes(tmp_path, kind, layout):
    """The other process is there because memory that is gone would end this one."""
    backend, settings = holes.ours(tmp_path), {"kind": kind, "layout": layout}
    (stored,) = ranks.run(1, end_with_a_queue, backend, settings)
    assert stored >= 2 * PROMPTS
    with world.World(backend, **settings) as w:
        cases.expect([holes.look(w, tokens) for tokens in prompts(w)], [holes.Given(2, True)] * PROMPTS, "restored")
