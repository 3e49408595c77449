# SPDX-License-Identifier: Apache-2.0
"""LarderStorage on a store that is late, or fails to clear."""

import time

import pytest
from fake_engine import slots
from fake_store import FakeSpace
from test_sglang import chain

import larder


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
        assert len(storage._store.pages) == 2
    assert storage.batch_exists(keys) == 0 and storage._store.pages == {}
    assert storage.batch_set_v1(keys, there) == [True, True] and storage.batch_exists(keys) == 2
    assert storage.troubles() == {"clear": 6}


def test_a_store_that_is_slow_but_well_gets_its_time_again(fake_storage, monkeypatch):
    """One write is late; the ones after it have little patience, and now and then one has all of it."""
    now, durations = [0.0], iter([6.0] + [1.3] * 19)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def work():
        now[0] += min(fake_storage._put_patience.seconds(), next(durations))

    fake_storage._store.answer = work
    waited = []
    for _ in range(20):
        begin = now[0]
        fake_storage.batch_set_v1(chain(1), slots(0, page_size=4))
        waited.append(now[0] - begin)
    assert waited[0] == 5.0 and waited[1] == pytest.approx(0.1)
    assert fake_storage._put_patience.seconds() == 5.0 and waited[-5:] == pytest.approx([1.3] * 5)
