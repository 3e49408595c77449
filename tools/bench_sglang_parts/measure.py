# SPDX-License-Identifier: Apache-2.0
"""Turns and clocks."""

import dataclasses
import itertools
import os
import statistics
import threading
import time

from . import host as host_pages

CALLS = 16  # queries in a row, so that the start of a thread does not count


class WrongBytes(Exception):
    """A backend returned other bytes than were stored, or none."""


@dataclasses.dataclass
class Row:
    """What was measured: seconds of each repetition, per side. The first side is SGLang's, the base of all ratios."""

    operation: str
    page_bytes: int
    threads: int
    stored: int
    seconds: dict

    def median(self, name):
        """Returns the median of a side, in seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, name, base):
        """Returns how many times as fast as `base` a side is, by the medians."""
        return self.median(base) / self.median(name)

    def ratio_spread(self, name, base):
        """Returns the lowest and the highest ratio within one repetition."""
        ratios = [one / other for one, other in zip(self.seconds[base], self.seconds[name])]
        return min(ratios), max(ratios)


def timed(threads, work):
    """Calls work(thread) in as many threads at once; returns the seconds from the first begin to the last end."""
    if threads == 1:
        begin = time.perf_counter()
        work(0)
        return time.perf_counter() - begin
    barrier = threading.Barrier(threads)
    times, errors = [], []

    def run(thread):
        try:
            barrier.wait()
            begin = time.perf_counter()
            work(thread)
            times.append((begin, time.perf_counter()))
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    if errors:
        raise errors[0]
    return max(end for _, end in times) - min(begin for begin, _ in times)


class Cold:
    """Makes reads reach the disk. how: "drop_caches" (all caches of the machine; root) or "fadvise" (these files)."""

    def __init__(self, how):
        if how == "auto":
            how = "drop_caches" if os.access("/proc/sys/vm/drop_caches", os.W_OK) else "fadvise"
        self.how = how

    def __call__(self, sides, keys):
        if self.how == "fadvise":
            for side in sides:
                side.evict_from_page_cache(keys)
            return
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3\n")


def turns(sides, repetition):
    """Returns the sides in another order each time."""
    shift = repetition % len(sides)
    return sides[shift:] + sides[:shift]


def transfers(host, sides, threads, repetitions, stored, cold):
    """Measures set and get, by turns: each repetition has new keys and new bytes. Returns the rows of both."""
    times = {op: {side.name: [] for side in sides if op in side.operations} for op in ("set", "get")}
    for repetition in range(repetitions):
        host.renew()
        name = f"{host.page_bytes} {threads} {repetition}"
        keys = [host_pages.keys_of(f"{name} {thread}", 0, host_pages.BATCH) for thread in range(threads)]
        for side in turns([side for side in sides if "set" in side.operations], repetition):
            own = _keys_for(side, keys)
            indices = [host.indices(thread, False) for thread in range(threads)]
            done = [False] * threads

            def put(thread, side=side, own=own, indices=indices, done=done):
                done[thread] = side.set(own[thread], indices[thread])

            times["set"][side.name].append(timed(threads, put))
            if not all(done):
                raise WrongBytes(f"{side.name}: a set of {host.page_bytes} bytes a page failed")
        readers = [side for side in sides if "get" in side.operations]
        cold(readers, [key for some in keys for key in some])
        for side in turns(readers, repetition):
            times["get"][side.name].append(_get(host, side, keys, threads))
    return [Row(op, host.page_bytes, threads, stored, seconds) for op, seconds in times.items()]


def _keys_for(side, keys):
    """Sides that only set have keys of their own: they share a folder with another."""
    if "get" in side.operations:
        return keys
    return [[key[::-1] for key in some] for some in keys]


def _get(host, side, keys, threads):
    """Returns the seconds of a get; fails if the bytes are not those that were set."""
    host.poison()
    indices = [host.indices(thread, True) for thread in range(threads)]
    counts = [0] * threads

    def fetch(thread):
        counts[thread] = side.get(keys[thread], indices[thread])

    seconds = timed(threads, fetch)
    wrong = host.differences(threads)
    if wrong or counts != [host_pages.BATCH] * threads:
        raise WrongBytes(f"{side.name}: {counts} of {host_pages.BATCH} pages read, wrong bytes in {wrong} threads")
    return seconds


def queries(operation, host, sides, threads, repetitions, keys, cold=None):
    """Measures batch_exists of 128 stored keys per call, some calls in a row with other keys each; returns a row.

    A row's seconds are of one call of each thread. cold: called before each side's turn. None: all keys were asked for
    before the first repetition, so that the kernel's caches have them. `keys`: enough for one call of each thread.
    """
    times = {side.name: [] for side in sides}
    step = host_pages.BATCH * threads
    calls = max(1, min(CALLS, len(keys) // step))
    places = [number * 7919 * step % (len(keys) - calls * step + 1) for number in range(repetitions)]
    if cold is None:
        for first, side in itertools.product(places, sides):
            side.exists(keys[first : first + calls * step])
    for repetition, first in enumerate(places):
        asked = keys[first : first + calls * step]
        for side in turns(sides, repetition):
            parts = [_slices(asked[thread::threads]) for thread in range(threads)]
            counts = [0] * threads

            def ask(thread, side=side, parts=parts, counts=counts):
                counts[thread] = sum(side.exists(some) for some in parts[thread])

            if cold is not None:
                cold([side], asked)
            times[side.name].append(timed(threads, ask) / calls)
            if counts != [calls * host_pages.BATCH] * threads:
                raise WrongBytes(f"{side.name}: {counts} of {calls * host_pages.BATCH} stored pages found")
    return Row(operation, host.page_bytes, threads, len(keys), times)


def _slices(keys):
    return [keys[first : first + host_pages.BATCH] for first in range(0, len(keys), host_pages.BATCH)]


def overhead(host, side, calls):
    """Measures 128-page calls of Larder's `memory` backend: whole, and the part below larder.Space; in seconds."""
    keys = [host_pages.keys_of("overhead", number * host_pages.BATCH, host_pages.BATCH) for number in range(8)]
    for some in keys:
        if not side.set(some, host.indices(0, False)):
            raise WrongBytes("overhead: a set failed")
    backend = side.backend
    current = backend._spaces.enter()
    try:
        return _overhead_of(host, side, calls, keys, current)
    finally:
        backend._spaces.leave(current)


def _overhead_of(host, side, calls, keys, current):
    backend, (space,), source, target = side.backend, current.spaces, host.indices(0, False), host.indices(0, True)
    native, layout, cancel = space._native, current.anchor.layout, backend._cancel
    sources, targets = (indices[:: host.page_size].tolist() for indices in (source, target))
    works = {
        "exists": (
            lambda some: backend.batch_exists(some, side.info),
            lambda some: native.exists(some, [(0, 0, 0)], 2.0, False, cancel),
        ),
        "get": (
            lambda some: backend.batch_get_v1(some, target, side.info),
            lambda some: native.get(some, 0, targets, layout, 2.0, cancel),
        ),
        "set (stored already)": (
            lambda some: backend.batch_set_v1(some, source, side.info),
            lambda some: native.put(some, 0, sources, layout, None, 2, 10.0, cancel),
        ),
    }
    return {name: _by_turns(calls, keys, *pair) for name, pair in works.items()}


def _by_turns(calls, keys, whole, below):
    """Returns the seconds of each call of two functions of a list of keys."""
    times = ([], [])
    for number in range(2 * calls):
        begin = time.perf_counter()
        (below if number % 2 else whole)(keys[number // 2 % len(keys)])
        times[number % 2].append(time.perf_counter() - begin)
    return times
