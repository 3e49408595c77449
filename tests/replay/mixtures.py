#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads that nobody has thought of, drawn from seeds, through `larder replay`: `value` beside the classic policies.

    mixtures.py BINARY [--first SEED] [--seeds N] [--keep FOLDER]

A seed draws how many conversations are alive, how many turns they have and how these grow, how much of the load is
one-shot prompts, documents by Zipf's law, system prompts that are shared, turns that branch off an earlier one, the
size of the host, and whether the model has recurrent state.

Checked of each seed: `value` has at least 0.9 times what the best of lru, slru and lfu has, less one point. A seed for
which that does not hold is printed with the command that draws it alone; --keep leaves its trace in FOLDER.
"""

import argparse
import bisect
import concurrent.futures
import itertools
import os
import random
import statistics
import sys
import tempfile

from adversarial import PAGE, STATE_BYTES, Names, hit_rate, write_rows

CLASSIC = ("lru", "slru", "lfu")
REQUESTS = 2500
LEAST_RATIO, SLACK_POINTS = 0.9, 1.0


def length(rng, mean):
    return 1 + int(rng.expovariate(1 / mean))


class Mixture:
    """Requests of one seed."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.names = Names()
        self.state_bytes = rng.choice([STATE_BYTES, STATE_BYTES, 0])
        self.alive = int(5 * 60 ** rng.random())  # conversations
        self.turns = 1.2 * 8 ** rng.random()      # mean
        self.prompt, self.growth = 2 + 10 * rng.random(), 1 + 4 * rng.random()  # mean blocks
        self.one_shots, self.documents = rng.choice([0, 0.2, 0.6]), rng.choice([0, 0, 0.2, 0.5])
        self.branches = rng.choice([0, 0, 0.1, 0.3])  # of turns
        self.answer = rng.choice([50, 200, 600])      # tokens
        self.systems = [self.names.take(length(rng, 4)) for _ in range(rng.choice([0, 1, 5, 30]))]
        self.library = [self.names.take(length(rng, 12)) for _ in range(60)]
        self.popularity = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(self.library))))
        page_bytes = 30 << 10  # of `larder replay`'s model, a token
        kept = self.alive * (self.prompt + self.turns * self.growth / 2) * PAGE * page_bytes
        if self.state_bytes:
            kept = kept / 4 + self.alive * 2 * self.state_bytes
        self.gib = max(1, round(kept * rng.choice([0.2, 0.5, 1.0]) / 2**30, 1))
        self.talks = []

    def start(self):
        system = self.rng.choice(self.systems) if self.systems else []
        return system + self.names.take(length(self.rng, self.prompt))

    def next_turn(self):
        """The blocks of a turn of some conversation; a new one takes the place of one that has ended."""
        if len(self.talks) < self.alive:
            self.talks.append([self.start()])
            return self.talks[-1][-1]
        at = self.rng.randrange(len(self.talks))
        turns = self.talks[at]
        if self.rng.random() < 1 / self.turns:
            turns = self.talks[at] = [self.start()]
            return turns[-1]
        before = self.rng.choice(turns) if self.rng.random() < self.branches else turns[-1]
        turns.append(before + self.names.take(length(self.rng, self.growth)))
        return turns[-1]

    def blocks(self):
        kind = self.rng.random()
        if kind < self.one_shots:
            return self.start()
        if kind < self.one_shots + (1 - self.one_shots) * self.documents:
            at = bisect.bisect(self.popularity, self.rng.random() * self.popularity[-1])
            return self.library[at] + self.names.take(1)
        return self.next_turn()

    def rows(self):
        for _ in range(REQUESTS):
            yield self.blocks(), PAGE, self.answer, ""


def measure(binary, seed, folder):
    """(seed, what it is, hit rate of value, best other, its name); the trace stays in `folder`."""
    mixture = Mixture(seed)
    kind = "recurrent state" if mixture.state_bytes else "full attention"
    about = f"{kind}, {mixture.alive} conversations of {mixture.turns:.1f} turns, {mixture.gib} GiB"
    trace = os.path.join(folder, f"mixture-{seed}.jsonl")
    write_rows(trace, mixture.rows())
    rates = {name: hit_rate(binary, trace, mixture.gib, name, mixture.state_bytes) for name in ("value", *CLASSIC)}
    best = max(CLASSIC, key=rates.get)
    return seed, about, rates["value"], rates[best], best


def is_broken(value, best):
    return value < LEAST_RATIO * best - SLACK_POINTS


def main():
    parser = argparse.ArgumentParser(description="Drawn loads through larder replay.")
    parser.add_argument("binary")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--keep", default="", metavar="FOLDER")
    options = parser.parse_args()
    broken, gains, ratios = [], [], []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds = range(options.first, options.first + options.seeds)
        print("| seed | load | value | best other |\n|---|---|---|---|")
        for seed, about, value, best, name in pool.map(
                lambda seed: measure(options.binary, seed, options.keep or folder), seeds):
            print(f"| {seed} | {about} | {value:.1f} | {best:.1f} ({name}) |", flush=True)
            gains.append(value - best)
            ratios.append(value / best if best > 1 else 1.0)
            if is_broken(value, best):
                broken.append(f"seed {seed}: value has {value:.2f}, {name} {best:.2f}: "
                              f"mixtures.py {options.binary} --first {seed} --seeds 1 --keep .")
    print(f"value less the best other: mean {statistics.mean(gains):+.2f} points, {min(gains):+.2f} to "
          f"{max(gains):+.2f}; worst ratio {min(ratios):.2f}")
    print("\n".join(broken) or "all holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
