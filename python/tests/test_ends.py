# SPDX-License-Identifier: Apache-2.0
"""The end of a store and of the interpreter, while other threads go on."""

import os
import signal
import subprocess
import sys
import threading

import pytest

import larder

KV = larder.Pool("kv", 4096, "kv layout")

_THREADS_GO_ON = """
import sys, threading, time
import larder

store = larder.Store("file", {"directory": sys.argv[1], "max_size": "64Mi", "staging_bytes": "8Mi"})
space = store.space(page_size=16, identity="model", pools=[larder.Pool("kv", 4096, "kv layout")])
pages = [larder.Page(i.to_bytes(32, "little"), bytes(4096)) for i in range(128)]
begun = threading.Barrier(5)


def work():
    begun.wait()
    while True:
        try:
            space.put_pages(pages)
            space.leading_pages([page.key for page in pages])
        except larder.Error:  # from the end on
            pass


for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.15, 0.2, 0.25])
def test_the_interpreter_ends_while_threads_go_on_calling(tmp_path, seconds):
    script = [sys.executable, "-c", _THREADS_GO_ON, str(tmp_path / "store"), str(seconds)]
    for _ in range(2):
        subprocess.run(script, check=True, timeout=60)


_HANDLERS_WAIT_FOR_A_THREAD = """
# As SGLang: its handler of atexit is there before the attach at run time imports larder, and so runs later.
import atexit, os, threading

stop, begun = threading.Event(), threading.Event()


def shut_down():
    stop.set()
    thread.join(30)
    if thread.is_alive():
        os._exit(3)


atexit.register(shut_down)
import larder

store = larder.Store("memory", {"staging_bytes": "1Mi"})
space = store.space(page_size=16, identity="model", pools=[larder.Pool("kv", 4096, "kv layout")])


def work():
    while not stop.is_set():
        try:
            space.put_pages([larder.Page(bytes(32), bytes(4096))])
        except larder.Error:
            pass
        begun.set()


thread = threading.Thread(target=work, daemon=True)
thread.start()
begun.wait()
"""

_A_DROP_UNDER_A_LOCK = """
# A collection in a thread that has a lock which a later handler of atexit takes, as that of logging does.
import atexit, gc, threading

gc.disable()
lock, begun, go_on = threading.Lock(), threading.Event(), threading.Event()


def take_the_lock():
    go_on.set()
    with lock:
        pass


atexit.register(take_the_lock)
import larder


def make_cycle():
    cycle = [larder.Store("memory", {"staging_bytes": "1Mi"})]
    cycle.append(cycle)


def work():
    with lock:
        begun.set()
        go_on.wait()
        gc.collect()


make_cycle()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("script", [_HANDLERS_WAIT_FOR_A_THREAD, _A_DROP_UNDER_A_LOCK])
def test_threads_end_and_give_up_their_locks_before_later_handlers_of_the_end(script):
    ended = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stderr=subprocess.PIPE)
    assert ended.stderr == b""


_OPENS_FAIL = """
import sys, larder
from larder import _native

for _ in range(5):
    try:
        larder.Store("memory", {"what": 1}, log=print if sys.argv[1] == "log" else None)
    except larder.Error:
        pass
for _ in range(60):  # each waits 2 s for a frame that nobody has
    _native.stop_log()
"""


@pytest.mark.parametrize("log", ["log", "silent"])
def test_opens_that_fail_leave_no_frame_behind(log):
    subprocess.run([sys.executable, "-c", _OPENS_FAIL, log], check=True, timeout=60)


def test_a_close_waits_for_namespaces_that_others_drop():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(100):
            store = larder.Store("memory", {"staging_bytes": "1Mi"})
            spaces = [store.space(page_size=16, identity=f"model {i}", pools=[KV]) for i in range(40)]
            begun = threading.Barrier(2)

            def drop(spaces=spaces, begun=begun):
                begun.wait()
                while spaces:
                    spaces.pop()

            thread = threading.Thread(target=drop)
            thread.start()
            begun.wait()
            store.close()
            thread.join()
    finally:
        sys.setswitchinterval(interval)


_HOST = """
import sys, time, larder

store = larder.Store("file", {"directory": sys.argv[1], "share_directory": sys.argv[1] + ".share", "max_size": "64M"})
print("open", flush=True)
sys.stdin.read()
"""

_CLIENT = """
import os, signal, sys
import larder
import larder.store

larder.store._CLOSE_AT_EXIT_SECONDS = 1.0
config = {"directory": sys.argv[1], "share_directory": sys.argv[1] + ".share", "max_size": "64M"}
config["timeout_seconds"] = 600
stores = [larder.Store("file", config) for _ in range(3)]
spaces = [s.space(page_size=16, identity="model", pools=[larder.Pool("kv", 4096, "kv layout")]) for s in stores]
os.kill(int(sys.argv[2]), signal.SIGSTOP)
for space in spaces:
    space.put_pages([larder.Page(bytes(32), bytes(4096))], timeout=0.2)
"""


@pytest.fixture
def host(tmp_path):
    """A process that has a shared store at tmp_path / "store"."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOST, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"open\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_second_close_has_its_own_limit(tmp_path, host):
    folder = str(tmp_path / "store")
    store = larder.Store("file", {"directory": folder, "share_directory": folder + ".share", "max_size": "64M"})
    space = store.space(page_size=16, identity="model", pools=[KV])
    os.kill(host.pid, signal.SIGSTOP)
    assert space.put_pages([larder.Page(bytes(32), bytes(4096))], timeout=0.2) == [larder.Code.DEADLINE_EXCEEDED]
    first = threading.Thread(target=store.close, args=(600,))
    first.start()
    told = ""
    while "another thread is closing the store" not in told:  # the first is on its way
        with pytest.raises(larder.Error) as caught:
            store.close(0.1)
        assert caught.value.code is larder.Code.DEADLINE_EXCEEDED
        told = caught.value.message
    os.kill(host.pid, signal.SIGCONT)  # ends the first
    first.join()
    store.close()


def test_the_end_of_the_interpreter_waits_once_for_all_stores(tmp_path, host):
    """Of each store's own limit of 600 s nothing shows."""
    subprocess.run([sys.executable, "-c", _CLIENT, str(tmp_path / "store"), str(host.pid)], check=True, timeout=120)
