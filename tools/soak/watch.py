# SPDX-License-Identifier: Apache-2.0
"""Samples of memory, descriptors, threads and counters of every process, and whether they are flat.

A life is judged over its second half, if that was long enough: tiers, indexes and threads have filled in the first one.
Its first attached storage is a step up by itself (it is probed on pools and files of its own), so a life in which
storage was attached is judged from there on. Medians are compared, as a detached storage is a dip of some seconds. Over
the whole soak the peaks of the last third are compared with those of the first third.
"""

import collections
import pathlib
import statistics
import threading

from soak import http
from soak.clock import CLOCK

SAMPLE_SECONDS = 1.0
LONG_ENOUGH_SECONDS = 120
MOST_GROWTH_KIB = 4096  # over the second half of a life
MOST_GROWTH_SHARE = 0.06
MOST_PEAK_GROWTH_KIB = 8192  # from the first third of a soak to the last
MOST_PEAK_GROWTH_SHARE = 0.10
MOST_MORE_DESCRIPTORS = 8
MOST_MORE_THREADS = 4

Sample = collections.namedtuple("Sample", "seconds rss_kib descriptors threads")


def take_sample(pid, seconds):
    """None if the process is not there."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        descriptors = sum(1 for _ in pathlib.Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmRSS" not in values:
        return None  # a zombie
    return Sample(seconds, int(values["VmRSS"].split()[0]), descriptors, int(values["Threads"]))


def growth(values):
    """From the first of the values to the last: by the medians of the first and the last third."""
    third = max(1, len(values) // 3)
    return 1.5 * (statistics.median(values[-third:]) - statistics.median(values[:third]))


def second_half(samples):
    middle = (samples[0].seconds + samples[-1].seconds) / 2
    return [s for s in samples if s.seconds >= middle]


def judged_samples(life):
    """The part of a life that is judged; [] if it was too short to say anything."""
    samples = [s for s in life.samples if s.seconds >= life.judged_from]
    if len(samples) < 20 or samples[-1].seconds - samples[0].seconds < LONG_ENOUGH_SECONDS:
        return []
    return second_half(samples)


def most_memory(lives):
    """KiB; 0 if nothing was seen."""
    return max((s.rss_kib for life in lives for s in life.samples), default=0)


def why_not_flat(life, earlier_kib=0):
    """What grows, in words; [] if nothing does, or if the life was too short to say. earlier_kib: the most memory of
    earlier lives of this process. A life that grows up to that is still warming up (a file store that was cleared takes
    minutes until it cleans segments)."""
    samples = judged_samples(life)
    if not samples:
        return []
    found = []
    memory_limit = max(MOST_GROWTH_KIB, MOST_GROWTH_SHARE * samples[0].rss_kib)
    for name, words, limit in (("rss_kib", "KiB of memory", memory_limit),
                               ("descriptors", "descriptors", MOST_MORE_DESCRIPTORS),
                               ("threads", "threads", MOST_MORE_THREADS)):
        rise = growth([getattr(s, name) for s in samples])
        is_warming_up = name == "rss_kib" and samples[-1].rss_kib <= earlier_kib
        if rise > limit and not is_warming_up:
            found.append(f"{rise:.0f} more {words} in the last {samples[-1].seconds - samples[0].seconds:.0f} s of "
                         f"{life.samples[-1].seconds - life.samples[0].seconds:.0f} s; {limit:.0f} are allowed")
    return found


def why_peaks_grow(lives, begun, ended):
    """Of all lives of a process: [] or words. lives: lists of samples."""
    samples = [s for life in lives for s in life]
    if ended - begun < 5 * LONG_ENOUGH_SECONDS:
        return []
    third = (ended - begun) / 3
    early = [s.rss_kib for s in samples if s.seconds < begun + third]
    late = [s.rss_kib for s in samples if s.seconds > ended - third]
    if not early or not late:
        return []
    allowed = max(early) + max(MOST_PEAK_GROWTH_KIB, MOST_PEAK_GROWTH_SHARE * max(early))
    if max(late) <= allowed:
        return []
    return [f"memory's peak was {max(early)} KiB in the first third of the soak, and is {max(late)} KiB in the last; "
            f"{allowed:.0f} KiB are allowed"]


class Watch(threading.Thread):
    """Takes samples, asks the servers for their counters, and sees processes that end by themselves."""

    def __init__(self, ledger, children):
        super().__init__(name="watch", daemon=True)
        self._ledger, self._children = ledger, children
        self._is_over = threading.Event()

    def run(self):
        try:
            while not self._is_over.wait(SAMPLE_SECONDS):
                for child in self._children:
                    self._look_at(child)
        except Exception as error:
            self._ledger.fail(f"watch broke: {error!r}")

    def stop(self):
        self._is_over.set()
        self.join()
        for child in self._children:
            self._look_at(child)

    def _look_at(self, child):
        life = child.life
        if life is None:
            return
        if not life.is_alive():
            # meant_to_run is read after the end was seen: who ends a process takes it back before.
            if child.is_meant_to_run and life is child.life:
                child.is_meant_to_run = False
                self._ledger.fail(f"{child.name} ended by itself with {life.process.returncode}\n{child.log_tail()}")
            return
        sample = take_sample(life.pid, CLOCK.now())
        if sample:
            life.samples.append(sample)
        if child.is_meant_to_run:
            self.ask(child)

    @staticmethod
    def ask(child):
        """Keeps what the server says about itself with its life."""
        life = child.life
        try:
            if child.key:
                life.counters = http.get_json(child.port, "/v1/stats", timeout=1, key=child.key)["namespaces"]
            else:
                life.counters = http.get_json(child.port, "/server_info", timeout=1)["internal_states"][0]
        except (http.Failed, KeyError, IndexError):
            pass  # it is paused, or was just killed
