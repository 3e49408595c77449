# SPDX-License-Identifier: Apache-2.0
"""LarderStorage on a store that is late, or fails to clear."""

import pytest
from fake_engine import slots
from fake_store import FakeSpace
from test_sglang import chain

import larder
from larder.sglang.patience import Patience


def test_a_clear_that_failed_is_owed(fake_storage, monkeypatch):
    """SGLang ignores that it failed, and says that all is cleared: so nothing is served until it is."""

    def fail(space, timeout=None):
        raise larder.Error(larder.Code.DEADLINE_EXCEEDED, "hangs")

    storage, keys, there = fake_storage, chain(2), slots(0, 1, page_size=4)
    assert storage.batch_set_v1(keys, there) == [True, True]
    with monkeypatch.context() as failing:
        failing.setattr(FakeSpace, "clear", fail)
        assert storage.clear() is False
        assert storage.batch_exists(keys) == 0 and storage.batch_get_v1(keys, there) == [False, False]
        assert storage.batch_set_v1(chain(2, "new"), there) == [False, False]
        assert storage.batch_exists_v2(keys, [], None).restorable_prefix_pages == []
        assert storage.get(keys[0]) is None and storage.troubles() == {"clear": 6}
        assert "\nlarder_sglang_clear_owed 1\n" in storage.store_metrics()
        assert len(storage._store.pages) == 2
    assert storage.batch_exists(keys) == 0 and storage._store.pages == {}
    assert storage.batch_set_v1(keys, there) == [True, True] and storage.batch_exists(keys) == 2
    assert storage.troubles() == {"clear": 6}
    assert "\nlarder_sglang_clear_owed 0\n" in storage.store_metrics()


def test_a_store_that_can_never_clear_says_what_helps(fake_storage, monkeypatch, caplog):
    """A plug-in without the entry `clear`: trying again is no way out."""

    def refuse(space, timeout=None):
        raise larder.Error(larder.Code.UNSUPPORTED, "plugin X: has no entry 'clear'")

    monkeypatch.setattr(FakeSpace, "clear", refuse)
    assert fake_storage.clear() is False and fake_storage.batch_exists(chain(1)) == 0
    assert "has no entry 'clear'. This store can never clear" in caplog.text and "weights_fingerprint" in caplog.text


class Clock:
    """Time that passes when a store works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("full", [4.0, 5.0])
def test_one_full_wait_in_half_a_minute(full):
    """A store hangs for two minutes: however many calls there are, they wait in full once in 30 s."""
    clock = Clock()
    patience = Patience(full, clock=clock)
    begins = []
    while clock.now < 120.0:
        with patience.deadline() as deadline:
            begin = clock.now
            clock.now += deadline.left()
        if clock.now - begin == full:
            begins.append(begin)
        else:
            assert clock.now - begin == pytest.approx(0.1)
    assert begins[0] == 0.0 and len(begins) == 4
    assert all(full + 30.0 <= later - sooner < full + 30.2 for sooner, later in zip(begins, begins[1:]))


def test_what_is_in_time_gets_all_time_again():
    clock = Clock()
    patience = Patience(4.0, clock=clock)

    def work(seconds):
        with patience.deadline() as deadline:
            deadline.left()
            clock.now += seconds
        return patience.seconds()

    assert [work(4.0), work(0.1), work(0.05)] == [0.1, 0.1, 4.0]
    assert [work(9.0), work(0.1)] == [0.1, 0.1]
    with patience.deadline():
        clock.now += 31.0  # nothing was asked of the store
    assert patience.seconds() == 4.0 and work(3.9) == 4.0


def test_what_is_late_but_has_brought_something_keeps_its_time():
    clock = Clock()
    patience = Patience(4.0, clock=clock)

    def read(seconds, brings):
        with patience.deadline() as deadline:
            clock.now += min(seconds, deadline.left())
            if brings:
                deadline.note_progress()
        return patience.seconds()

    assert [read(9.0, True), read(9.0, True)] == [4.0, 4.0]
    assert [read(9.0, False), read(9.0, False)] == [0.1, 0.1]
    assert [read(9.0, True), read(3.0, False)] == [4.0, 4.0]


def test_reads_from_a_slow_store_have_all_the_time(fake_storage, monkeypatch):
    """Each brings half of its pages and ends late; the next one is not cut short for it."""
    clock, storage, waited = Clock(), fake_storage, []
    storage._get_patience._clock = clock
    keys, there = chain(4), slots(0, 1, 2, 3, page_size=4)
    assert storage.batch_set_v1(keys[:2], there[:8]) == [True, True]
    real = FakeSpace.get

    def slow(space, *args, timeout, **more):
        waited.append(timeout)
        clock.now += timeout
        return real(space, *args, timeout=timeout, **more)

    monkeypatch.setattr(FakeSpace, "get", slow)
    for _ in range(3):
        assert storage.batch_get_v1(keys, there) == [True, True, False, False]
    assert waited == [4.0] * 3
    for _ in range(2):
        assert storage.batch_get_v1(keys[2:], there[:8]) == [False, False]
    assert waited[3:] == pytest.approx([4.0, 0.1])


def test_a_node_of_many_batches_ends_before_the_engine_gives_up(fake_storage, monkeypatch):
    """SGLang writes a node 128 pages at a time, all of it also at a detach, and waits 10 s for the thread. A store that
    hangs takes the bytes, so no write of the node fails."""
    clock, storage = Clock(), fake_storage
    storage._put_patience._clock = clock

    def hang(space, timeout):
        clock.now += timeout

    monkeypatch.setattr(FakeSpace, "begin", hang)
    for _ in range(250):
        assert storage.batch_set_v1(chain(1), slots(0, page_size=4)) == [True]
    assert 5.0 < clock.now < 10.0


def test_a_store_that_is_slow_but_well_gets_its_time_again(fake_storage):
    """One write is late; the ones after it have little patience, until one has all of it and is in time."""
    clock, durations = Clock(), iter([6.0] + [1.3] * 9)
    patience = fake_storage._put_patience
    patience._clock = clock

    def work():
        clock.now += min(patience.seconds(), next(durations))

    fake_storage._store.answer = work
    waited = []
    for _ in range(10):
        begin = clock.now
        fake_storage.batch_set_v1(chain(1), slots(0, page_size=4))
        waited.append(clock.now - begin)
        clock.now += 10.0
    assert waited == pytest.approx([5.0, 0.02, 0.02] + [1.3] * 7) and patience.seconds() == 5.0
