#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads that eviction policies fear, through `larder replay`: a table of hit rates, and what must hold of `value`.

    adversarial.py BINARY [--all]

scan    40 % of the requests ask about 60 documents, most often about the first ones; the others about a document that
        never comes back
flood   a quarter of the requests are turns of 60 conversations of one tenant; the others are one-shot prompts of
        another
loop    200 documents in turn, which need a little more than the host has
waves   16 conversations of four turns, which take turns; then 16 new ones, and nobody comes back to the old ones
visits  200 conversations at a time, of two turns each, in any order

Checked: `value` has at least 0.95 times what the best of the classic policies has. And hints (`--hints`): right for
70 % they gain on flood, wrong for all they lose less than 3 % of the hits. And floors (`--tenant-limits`): beside the
flood, conversations with a floor of half of the host, or with a ceiling for the flood, have at least 0.95 times the
hits that they have alone on half of it.
--all does so with three sizes, not one.
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
KINDS = [  # kind of model, bytes of a state, GiB of host
    ("recurrent state", STATE_BYTES, {"scan": [16, 32, 48], "flood": [16, 32, 48], "loop": [24, 32, 36],
                                      "waves": [8, 12, 24], "visits": [6, 12, 24]}),
    ("full attention", 0, {"scan": [4, 8, 16], "flood": [4, 8, 16], "loop": [16, 20, 24], "waves": [2, 3, 4],
                           "visits": [2, 4, 8]}),
]


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
            yield documents[min(59, int(rng.paretovariate(0.9)) - 1)] + names.take(1), 300, 100, ""
        else:
            yield names.take(17), 300, 100, ""


def flood(rng, names):
    talks = [names.take(4) for _ in range(60)]
    for i in range(4000):
        if i % 4:
            yield names.take(24), PAGE, 100, "flood"
            continue
        at = rng.randrange(60)
        talks[at] = talks[at] + names.take(3) if len(talks[at]) <= 60 else names.take(7)
        yield list(talks[at]), PAGE, 400, "talks"


def talks_alone(rng, names):
    return (request for request in flood(rng, names) if request[3] == "talks")


def loop(_, names):
    documents = [names.take(16) for _ in range(200)]
    for _ in range(20):
        for document in documents:
            yield document + names.take(1), 300, 100, ""


def waves(_, names):
    for _ in range(16):
        talks = [[] for _ in range(16)]
        for _ in range(4):
            for talk in talks:
                talk += names.take(4)
                yield list(talk), PAGE, 100, ""


def visits(rng, names):
    talks = []
    for _ in range(3000):
        if len(talks) < 200:
            talks.append(names.take(1 + int(rng.expovariate(1 / 3))))
            yield list(talks[-1]), PAGE, 100, ""
        else:
            talk = talks.pop(rng.randrange(len(talks)))
            yield talk + names.take(1 + int(rng.expovariate(1 / 3))), PAGE, 100, ""


LOADS = (scan, flood, loop, waves, visits)


def write(path, load):
    write_rows(path, load(random.Random(1), Names()))


def write_rows(path, requests):
    with open(path, "w", encoding="utf-8") as out:
        for i, (blocks, last, answer, tenant) in enumerate(requests):
            length = PAGE * (len(blocks) - 1) + last
            row = {"timestamp": 300 * i, "input_length": length, "output_length": answer, "hash_ids": blocks}
            if tenant:
                row["tenant"] = tenant
            out.write(json.dumps(row) + "\n")


def replay(binary, trace, gib, policy, state_bytes, *more):
    command = [binary, "replay", trace, "--host", str(gib), "--policy", policy, "--state-bytes", str(state_bytes)]
    # A replay that never ends is a request that never gets an answer.
    run = subprocess.run([*command, "--json", *more], capture_output=True, text=True, check=False, timeout=300)
    if run.returncode:
        sys.exit(f"{' '.join(command)}: {run.stderr}")
    return json.loads(run.stdout)


def hit_rate(*arguments):
    return 100 * replay(*arguments)["hit_rate"]


# With a floor of half the host, or beside a ceiling of half of it for the flood: at least as much as alone in a half.
def check_floors(binary, folder, trace, broken):
    alone = os.path.join(folder, "alone.jsonl")
    write(alone, talks_alone)
    bounds = {
        "floor": [{"name": "talks", "salt": "talks", "host": {"floor": "50%"}}],
        "ceiling": [{"name": "flood", "salt": "flood", "host": {"ceiling": "50%"}}],
    }
    cases = [(16, "value", STATE_BYTES), (48, "lru", STATE_BYTES), (16, "lru", 0), (8, "lfu", 0)]
    for gib, policy, state_bytes in cases:
        kind = "S1" if state_bytes else "full attention"
        wanted = hit_rate(binary, alone, gib / 2, policy, state_bytes)
        shown = [f"alone {wanted:.1f}"]
        for name, tenants in [("none", []), *bounds.items()]:
            limits = os.path.join(folder, name + ".json")
            with open(limits, "w", encoding="utf-8") as out:
                json.dump({"tenants": tenants}, out)
            run = replay(binary, trace, gib, policy, state_bytes, "--tenant-limits", limits)
            rate = 100 * run["tenant_hit_rates"]["talks"]
            shown.append(f"{name} {rate:.1f}")
            if tenants and rate < 0.95 * wanted:
                broken.append(f"{name}, {kind}, {gib} GiB, {policy}: {rate:.2f}, and {wanted:.2f} alone in a half")
        with open(limits, "w", encoding="utf-8") as out:
            json.dump({"others": {"ceiling": "30%"}}, out)
        run = replay(binary, trace, gib, policy, state_bytes, "--tenant-limits", limits)
        shown.append(f"30 % for each, on the device too {100 * run['tenant_hit_rates']['talks']:.1f}")
        print(f"conversations beside a flood, {kind}, {gib} GiB, {policy}: {', '.join(shown)}", flush=True)


def check_policies(binary, traces, prints_all, broken):
    print("| model, load, host | value | " + " | ".join(CLASSIC) + " |\n|" + "---|" * (2 + len(CLASSIC)))
    for kind, state_bytes, sizes in KINDS:
        for name, trace in traces.items():
            for gib in sizes[name] if prints_all else sizes[name][:1]:
                own = hit_rate(binary, trace, gib, "value", state_bytes)
                others = [hit_rate(binary, trace, gib, policy, state_bytes) for policy in CLASSIC]
                rates = " | ".join(f"{rate:.1f}" for rate in [own, *others])
                print(f"| {kind}, {name}, {gib} GiB | {rates} |", flush=True)
                if own < 0.95 * max(others):
                    broken.append(f"{kind}, {name}, {gib} GiB: value has {own:.2f}, the best other {max(others):.2f}")


def main():
    binary, prints_all = sys.argv[1], "--all" in sys.argv[2:]
    broken = []
    with tempfile.TemporaryDirectory() as folder:
        traces = {load.__name__: os.path.join(folder, load.__name__ + ".jsonl") for load in LOADS}
        for load in LOADS:
            write(traces[load.__name__], load)
        check_policies(binary, traces, prints_all, broken)
        plain, right, wrong = (
            hit_rate(binary, traces["flood"], 16, "value", STATE_BYTES, *hints)
            for hints in ([], ["--hints", "70"], ["--hints", "0"])
        )
        print(f"hints on flood, 16 GiB: none {plain:.2f}, 70 % right {right:.2f}, all wrong {wrong:.2f}")
        check_floors(binary, folder, traces["flood"], broken)
        if right <= plain or wrong < 0.97 * plain:
            broken.append("hints do not keep their promise")
    print("\n".join(broken) or "all holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
