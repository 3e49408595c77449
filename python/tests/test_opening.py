# SPDX-License-Identifier: Apache-2.0
"""A store whose disk hangs while it is opened: SGLang's scheduler waits for it at the start only."""

import logging
import os
import threading
import types

import pytest
from test_construction import make

import larder
from larder.sglang import opening

WAIT = 30.0  # of what ends at all


class Opened:
    """A store that knows when it is closed. late: how many closes end at their deadline."""

    def __init__(self, late=0):
        self.late = late
        self.closed = threading.Event()

    def close(self, timeout):
        if self.late:
            self.late -= 1
            raise larder.Error(larder.Code.DEADLINE_EXCEEDED, "late")
        self.closed.set()


@pytest.fixture
def disk():
    """Set: opens end. At the end of the test they do."""
    answers = threading.Event()
    yield answers
    answers.set()


def opens(disk, store):
    def open_it():
        assert disk.wait(WAIT)
        return store

    return open_it


def test_a_store_that_opens_is_given(disk, caplog):
    disk.set()
    store = Opened()
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        assert opening.open_store(opens(disk, store), "file store /d", None) is store
        assert opening.open_store(opens(disk, store), "file store /d", WAIT) is store
    assert not caplog.records and not store.closed.is_set()


@pytest.mark.parametrize("limit", [None, WAIT])
def test_what_an_open_raises_is_raised(limit):
    def fail():
        raise larder.Error(larder.Code.CONFLICT, "another has it")

    with pytest.raises(larder.Error, match="another has it"):
        opening.open_store(fail, "file store /d", limit)


def test_the_log_says_what_a_start_waits_for(disk, monkeypatch, caplog):
    monkeypatch.setattr(opening, "_TELL_SECONDS", 0.01)
    store = Opened()
    logging.getLogger("larder.sglang").addHandler(told := logging.Handler())
    told.emit = lambda record: disk.set()
    try:
        with caplog.at_level(logging.WARNING, "larder.sglang"):
            assert opening.open_store(opens(disk, store), "file store /d", None) is store
    finally:
        logging.getLogger("larder.sglang").removeHandler(told)
    assert "the file store /d has not opened in 0.01 s, and SGLang waits for it: its disk" in caplog.text


@pytest.mark.parametrize("late", [0, 2])
def test_an_attach_ends_and_the_store_is_closed_when_it_opens(disk, late):
    store = Opened(late)
    with pytest.raises(larder.Error, match="the file store /d has not opened in 0.01 s.*Attach it then") as told:
        opening.open_store(opens(disk, store), "file store /d", 0.01)
    assert told.value.code is larder.Code.DEADLINE_EXCEEDED and not store.closed.is_set()
    disk.set()
    assert store.closed.wait(WAIT)


def test_an_attach_at_run_time_to_a_disk_that_hangs(engine, tmp_path, monkeypatch):
    """Not for ever: meanwhile the server serves nothing. A start has no limit."""
    from sglang.srt import runtime_context

    memory = types.SimpleNamespace(hicache_storage_backend=None, hicache_host_memory_mode="cache")
    monkeypatch.setattr(runtime_context, "get_memory", lambda: memory, raising=False)
    monkeypatch.setattr(opening, "ATTACH_SECONDS", 0.05)
    (tmp_path / "store").mkdir()
    os.mkfifo(tmp_path / "store" / "FORMAT")  # whoever opens it to read waits for a writer
    extra = {"backend": "file", "directory": str(tmp_path / "store"), "max_size": "64M"}
    with pytest.raises(larder.Error, match="has not opened in 0.05 s"):
        make(engine, **extra)
    os.close(os.open(tmp_path / "store" / "FORMAT", os.O_WRONLY))
    os.remove(tmp_path / "store" / "FORMAT")
    memory.hicache_storage_backend = "dynamic"
    monkeypatch.setattr(opening, "ATTACH_SECONDS", 0.0)
    opener = next((t for t in threading.enumerate() if t.name == "larder-open"), None)
    if opener is not None:
        opener.join(WAIT)
    make(engine, **extra).close()
