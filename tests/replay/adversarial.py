#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads that eviction policies fear, through `larder replay`: a table of hit rates, and what must hold of `value`.

    adversarial.py BINARY [--all]

scan    40 % of the requests ask about 60 documents, most often about the first ones; the others about a document that
        never comes back
flood   a quarter of the requests are turns of 60 conversations; the others are one-shot prompts of one tenant
loop    200 documents in turn, which need a little more than the host has

Checked, of models with recurrent state: on scan and flood `value` has at least 0.95 times what the best of the classic
policies has; on the loop no policy has anything (states leave least recently used first under each of them), so no less
than a tenth of a point below the best. And hints (`--hints`): right for 70 % they gain on flood, wrong for all they
lose less than 3 % of the hits. --all prints three sizes, and models of full attention, of which nothing is checked.
"""

import json
import os
import random
import subprocess
import sys
import tempfile

PAGE = 512
CLASSIC = ["lru", "lfu", "slru", "fifo", "mru", "filo"]
STATE_BYTES = 64 << 20
SIZES = {"scan": [16, 32, 48], "flood": [16, 32, 48], "loop": [24, 32, 36]}  # GiB of host
DENSE_SIZES = {"scan": [4, 8, 16], "flood": [4, 8, 16], "loop": [16, 20, 24]}


class Names:
    def __init__(self):
        self.next = 0

    def take(self, count):
        self.next += count
        return list(range(self.next - count, self.next))


def scan(rng, names):
    documents = [names.take(16) for _ in range(60)]
    for _ in range(4000):
        if rng.random() < 0.4:
            yield documents[min(59, int(rng.paretovariate(0.9)) - 1)] + names.take(1), 300, 100
        else:
            yield names.take(17), 300, 100


def flood(rng, names):
    talks = [names.take(4) for _ in range(60)]
    for i in range(4000):
        if i % 4:
            yield names.take(24), PAGE, 100
            continue
        at = rng.randrange(60)
        talks[at] = talks[at] + names.take(3) if len(talks[at]) <= 60 else names.take(7)
        yield list(talks[at]), PAGE, 400


def loop(_, names):
    documents = [names.take(16) for _ in range(200)]
    for _ in range(20):
        for document in documents:
            yield document + names.take(1), 300, 100


def write(path, load):
    with open(path, "w", encoding="utf-8") as out:
        for i, (blocks, last, answer) in enumerate(load(random.Random(1), Names())):
            length = PAGE * (len(blocks) - 1) + last
            row = {"timestamp": 300 * i, "input_length": length, "output_length": answer, "hash_ids": blocks}
            out.write(json.dumps(row) + "\n")


def hit_rate(binary, trace, gib, policy, state_bytes, *more):
    command = [binary, "replay", trace, "--host", str(gib), "--policy", policy, "--state-bytes", str(state_bytes)]
    run = subprocess.run([*command, "--json", *more], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(command)}: {run.stderr}")
    return 100 * json.loads(run.stdout)["hit_rate"]


def main():
    binary, prints_all = sys.argv[1], "--all" in sys.argv[2:]
    broken = []
    with tempfile.TemporaryDirectory() as folder:
        traces = {load.__name__: os.path.join(folder, load.__name__ + ".jsonl") for load in (scan, flood, loop)}
        for load in (scan, flood, loop):
            write(traces[load.__name__], load)
        print("| load, host | value | " + " | ".join(CLASSIC) + " |\n|" + "---|" * (2 + len(CLASSIC)))
        for name, trace in traces.items():
            for gib in SIZES[name] if prints_all else SIZES[name][:1]:
                own = hit_rate(binary, trace, gib, "value", STATE_BYTES)
                others = [hit_rate(binary, trace, gib, policy, STATE_BYTES) for policy in CLASSIC]
                rates = " | ".join(f"{rate:.1f}" for rate in [own, *others])
                print(f"| {name}, {gib} GiB | {rates} |", flush=True)
                if own < 0.95 * max(others) - (0.1 if name == "loop" else 0):
                    broken.append(f"{name}, {gib} GiB: value has {own:.2f}, the best of the others {max(others):.2f}")
        for name, trace in traces.items() if prints_all else ():
            for gib in DENSE_SIZES[name]:
                rates = [hit_rate(binary, trace, gib, policy, 0) for policy in ["value", *CLASSIC]]
                print(f"| {name}, full attention, {gib} GiB | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |")
        plain, right, wrong = (
            hit_rate(binary, traces["flood"], 16, "value", STATE_BYTES, *hints)
            for hints in ([], ["--hints", "70"], ["--hints", "0"])
        )
        print(f"hints on flood, 16 GiB: none {plain:.2f}, 70 % right {right:.2f}, all wrong {wrong:.2f}")
        if right <= plain or wrong < 0.97 * plain:
            broken.append("hints do not keep their promise")
    print("\n".join(broken) or "all holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
