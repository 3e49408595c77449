# SPDX-License-Identifier: Apache-2.0
"""The log of a store: who gets the lines, how long the function is held, and what it may do."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

import larder

_STORES_IN_CYCLES = """
import logging, os, sys, larder

logging.basicConfig(level=logging.INFO, stream=open(os.devnull, "w"))
lines = []


def log(level, where, message):
    logging.info("%s %s", where, message)
    lines.append({"level": level, "where": where, "text": message})


def use(i):
    store = larder.Store("file", {"directory": f"{sys.argv[1]}/{i}", "max_size": "1%", "staging_bytes": "1Mi"}, log=log)
    try:
        store.space(page_size=0, identity="m", pools=[])
    except larder.Error as error:
        last = error  # a cycle: error -> traceback -> frame -> error


for i in range(150):
    use(i)
"""


def test_stores_may_be_collected_while_the_log_is_written(tmp_path):
    """A collection in the function closes them there."""
    script = "import gc; gc.set_threshold(50, 2, 2)\n" + _STORES_IN_CYCLES
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)


def config(folder):
    return {"directory": str(folder), "max_size": "1%", "staging_bytes": "1Mi"}  # the size in percent is a line


class Owner:
    def __init__(self, folder):
        self.lines = []
        self.store = larder.Store("file", config(folder), log=self.log)

    def log(self, level, where, message):
        self.lines.append(message)


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_owner_whose_method_is_the_log_is_collected(tmp_path, is_closed):
    owner = Owner(tmp_path / "store")
    if is_closed:
        owner.store.close()
        assert len(owner.lines) == 1
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
    larder.Store("file", config(tmp_path / "store")).close()


def test_an_owner_that_has_only_a_space_is_collected():
    class SpaceOwner:
        def __init__(self):
            store = larder.Store("memory", {"staging_bytes": "1Mi"}, log=self.log)
            self.space = store.space(page_size=16, identity="m", pools=[larder.Pool("kv", 4096, "l")])

        def log(self, level, where, message):
            pass

    owner = SpaceOwner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_store_that_is_dropped_does_not_wait_for_its_log(tmp_path):
    """The function may need a lock that the dropping thread has."""
    dropped, answers, ended = threading.Event(), [], threading.Event()

    def log(level, where, message):
        answers.append(dropped.wait(4))
        ended.set()

    store = larder.Store("file", config(tmp_path / "store"), log=log)
    del store
    dropped.set()
    assert ended.wait(60) and answers == [True]  # the line is brought all the same


@pytest.mark.parametrize("make_log", [lambda owner: owner.append, lambda owner: lambda *line: owner.append(line)])
def test_a_closed_store_has_let_its_log_go(tmp_path, make_log):
    class Lines(list):
        pass

    lines = Lines()
    store = larder.Store("memory", log=make_log(lines))
    store.close()
    gone = weakref.ref(lines)
    del lines
    gc.collect()
    assert gone() is None


def test_a_store_that_cannot_be_opened_has_let_its_log_go():
    owner = type("Log", (), {"__call__": lambda self, *line: None})()
    with pytest.raises(larder.Error):
        larder.Store("memory", {"what": 1}, log=owner)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_the_lines_are_those_of_the_newest_open_store(tmp_path):
    first = Owner(tmp_path / "first")
    second = Owner(tmp_path / "second")
    second.store.close()
    larder.Store("file", config(tmp_path / "third")).close()
    first.store.close()
    assert ["third" in line for line in first.lines] == [False, True]
    assert ["second" in line for line in second.lines] == [True]


def test_the_log_may_call_larder_and_close_its_own_store(tmp_path):
    opened, answers, ended = threading.Event(), [], threading.Event()

    def log(level, where, message):
        opened.wait()
        answers.append(store.stats())
        store.close()
        ended.set()

    store = larder.Store("file", config(tmp_path / "store"), log=log)
    opened.set()
    assert ended.wait(60) and answers[0]
    store.close()


def test_a_lock_around_the_log_and_around_calls_is_no_deadlock(tmp_path):
    lock, lines = threading.Lock(), []

    def log(level, where, message):
        with lock:
            lines.append(message)

    with lock:
        store = larder.Store("file", config(tmp_path / "store"), log=log)
        larder.Store("file", config(tmp_path / "other")).close()
    store.close()
    assert len(lines) == 2


def test_a_log_that_raises_or_is_slow_harms_nobody(tmp_path, monkeypatch):
    begun, go_on, count = threading.Event(), threading.Event(), 1100
    lines, raised = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.append(str(what.exc_value)))

    def log(level, where, message):
        lines.append((where, message))
        begun.set()
        go_on.wait()
        if len(lines) == 1:
            raise RuntimeError("of the log")

    store = larder.Store("memory", log=log)
    for _ in range(count):
        larder.Store("file", config(tmp_path / "store")).close()
    assert begun.wait(60)
    go_on.set()
    store.close()
    assert raised == ["of the log"]
    told = [int(message.split()[0]) for where, message in lines if where == "log"]
    assert told and len(lines) - len(told) + sum(told) == count
