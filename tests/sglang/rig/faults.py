# SPDX-License-Identifier: Apache-2.0
"""What has to hold after every fault of a store: threads, host pages, memory."""

import contextlib
import gc
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import threading
import time

import pytest

from . import content, pools, world
from .moody import WAIT, until

THREADS = ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")


# -- what holds after every fault -----------------------------------------------------------------------------------


def threads(w):
    """Returns the storage threads that are alive."""
    return [name for name in THREADS if getattr(w.controller, name).is_alive()]


def host_pages(w):
    """Returns how many slots of each host pool are in use."""
    pools_of_host = [(str(entry.name), entry.host_pool) for entry in w.host_entries()]
    return {name: pool.size - pool.available_size() for name, pool in pools_of_host}


def expect_alive(w):
    """All storage threads of SGLang live."""
    if threads(w) != list(THREADS):
        raise world.RigError(f"rig: only these storage threads live: {threads(w)}")


def expect_sound(w, used):
    """All storage threads live, and the host pools have as many slots in use as `used` says, after a while."""
    expect_alive(w)
    w.wait(lambda: host_pages(w) == used, f"the return of host pages ({host_pages(w)} in use, expected {used})")


def stats(w):
    """Returns the statistics of the attached store."""
    return w.store._store.stats()


def wait_retries(w):
    """Waits until the store has written what it kept for another try."""
    until(lambda: stats(w)["retry"]["waiting"] == 0, "the second try of the writes")


def wait_breakers(w):
    """Waits until the store asks its backend again; after several failures in a row it pauses for a second or two."""

    def may_pass(breaker):
        return not breaker["is_open"] or breaker["seconds_until_probe"] <= 0

    until(lambda: all(may_pass(breaker) for breaker in stats(w)["breakers"].values()), "the pause after failures")


def retry_until(w, tokens, pages):
    """Fetches again until `pages` pages are there, as later requests do; then loads them and compares the bytes."""
    until(lambda: w.prefetch(tokens) == pages or w.flush(), f"a retry that gets {pages} pages")
    w.load_back(tokens)
    return w.check(tokens, pages=pages)


def poison_host(w):
    """Overwrites the host pools: bytes that come later show."""
    content.poison(buffer for entry in w.host_entries() for buffer in pools.host_buffers(entry.host_pool))


def host_is_poison(w):
    """Tells whether nothing has written to the host pools since `poison_host`."""
    import torch

    buffers = [buffer for entry in w.host_entries() for buffer in pools.host_buffers(entry.host_pool)]
    return all(bool((buffer.view(torch.uint8) == content.POISON).all()) for buffer in buffers)


def resident():
    """Returns this process's resident memory in KiB, garbage collected."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


# -- a server that is killed ----------------------------------------------------------------------------------------


def prompt_of(w, number):
    """Returns a prompt of six pages; each number has its own."""
    return list(range(1000000 + number * 10000, 1000000 + number * 10000 + 6 * w.page_size))


def kill_while_backing_up(backend, kind, least, delay):
    """Runs a server that stores prompt after prompt, and kills it `delay` seconds after `least` were backed up.

    Returns how many prompts the server had seen backed up.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rig.warm"])
    done = context.Value("i", 0, lock=False)
    process = context.Process(target=_store_for_ever, args=(backend, kind, done), daemon=True)
    process.start()
    try:
        until(lambda: done.value >= least or not process.is_alive(), "the backups of the other server", 60.0)
        time.sleep(delay)
    finally:
        process.kill()
        process.join(timeout=WAIT)
    if process.exitcode != -signal.SIGKILL:
        raise world.RigError(f"rig: the server to be killed ended by itself: {process.exitcode}")
    return done.value


def _store_for_ever(backend, kind, done):
    world.quiet()
    with world.World(backend, kind=kind) as w:
        for number in itertools.count():
            w.insert(prompt_of(w, number))
            w.wait_backup()
            done.value = number + 1
            w.flush()


# -- disks ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder):
    """A disk of 1 MiB; yields its folder, and a function that makes it larger.  Skips without the right to mount."""
    place = folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "larder-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False, timeout=10).returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield place, lambda: subprocess.run(
            ["mount", "-o", "remount,size=64m", str(place)], check=True, capture_output=True, timeout=10
        )
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=10)


@contextlib.contextmanager
def file_size_limit(folder):
    """No file of this process may grow beyond 1 MiB; yields `folder`, and a function that lifts the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def lift():
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # Python ignores the signal
    try:
        yield folder, lift
    finally:
        lift()


# -- load ---------------------------------------------------------------------------------------------------------


def begin_prefetch(w, tokens):
    """Begins a prefetch as `World.prefetch` does, and does not wait for it."""
    wait, w.wait = w.wait, lambda done, what: None
    try:
        w.prefetch(tokens)
    finally:
        w.wait = wait


class Load:
    """Threads that call the backend without pause, as SGLang's storage threads do, each with host pages of its own."""

    def __init__(self, w, count):
        pool = w.host_entries()[0].host_pool
        self.storage = w.store
        self.keys = [f"{number:064x}" for number in range(1, 5)]
        self.indices = [pool.alloc(len(self.keys) * pool.page_size) for _ in range(count)]
        self.calls, self.hits, self.failures = [0] * count, 0, []
        self._pool = pool
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]

    def start(self):
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Ends the threads and gives the host pages back."""
        self._end.set()
        for thread in self._threads:
            thread.join(timeout=WAIT)
        if any(thread.is_alive() for thread in self._threads):
            raise world.RigError("rig: a call of the closed backend does not return")
        for indices in self.indices:
            self._pool.free(indices)

    def _run(self, number):
        indices = self.indices[number]
        try:
            while not self._end.is_set():
                self.storage.batch_set_v1(self.keys, indices)
                found = self.storage.batch_exists(self.keys)
                read = self.storage.batch_get_v1(self.keys, indices)
                if found not in range(len(self.keys) + 1) or [type(one) for one in read] != [bool] * len(self.keys):
                    raise ValueError(f"answers {found}, {read}")
                self.hits += sum(read)
                self.calls[number] += 1
        except Exception as error:  # anything that leaves the backend would end a storage thread of SGLang
            self.failures.append(repr(error))
