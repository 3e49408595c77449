#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`larder replay` beside arithmetic of its own: an LRU cache in 100 lines that shares no code with Larder.

    lru_model.py BINARY [TRACE]

Without a trace of Mooncake's form it makes one, of conversations over shared documents, from a seed. Three host sizes
of full attention, and a model with recurrent state in a host that keeps everything. Token hit rates must agree to 0.1
point. What the model assumes: one request at a time, a host that is larger than the device, pages that leave one by
one, the least recently used request's first and of one request the deepest first.
"""

import heapq
import json
import os
import random
import subprocess
import sys
import tempfile

PAGE = 512  # tokens, of the trace's blocks and the cache's pages
KV_BYTES = 16384
GRID = 8192 // PAGE


def make_trace(path, requests=1500, seed=7):
    rng = random.Random(seed)
    names, conversations, now = iter(range(10**9)), [], 0
    documents = [[next(names) for _ in range(rng.randrange(4, 60))] for _ in range(40)]
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(requests):
            if conversations and rng.random() < 0.6:
                blocks, length = conversations.pop(int(len(conversations) * rng.random() ** 0.5))
            else:
                blocks = list(documents[int(40 * rng.random() ** 2)])
                length = len(blocks) * PAGE
            length += rng.randrange(20, 3000)
            blocks = blocks[: length // PAGE]  # a block that is full now, and was not, has another name
            blocks += [next(names) for _ in range(-(-length // PAGE) - len(blocks))]
            answer = rng.randrange(1, 800)
            now += rng.randrange(2000)
            line = {"timestamp": now, "input_length": length, "output_length": answer, "hash_ids": blocks}
            out.write(json.dumps(line) + "\n")
            conversations.append((blocks, length + answer))
            del conversations[:-200]


def read_trace(path):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    # The answer of a request is known where a later, longer prompt repeats it.
    waiting, after = {}, {}
    for i, row in enumerate(rows):
        whole = row["hash_ids"][: row["input_length"] // PAGE]
        for k, block in enumerate(whole):
            for earlier in list(waiting.get(block, ())):
                before = rows[earlier]
                if before["input_length"] // PAGE == k + 1 and (
                    row["input_length"] > before["input_length"] + before["output_length"]
                ):
                    after[earlier] = row["hash_ids"]
                    waiting[block].remove(earlier)
        if whole:
            waiting.setdefault(whole[-1], []).append(i)
    for i, row in enumerate(rows):
        prompt = row["hash_ids"][: row["input_length"] // PAGE]
        pages = (row["input_length"] + max(row["output_length"], 1) - 1) // PAGE
        path = prompt + (after[i][len(prompt) : pages] if i in after else [])
        path += [(i, n) for n in range(len(path), pages)]
        yield row["input_length"], len(prompt), path


class Lru:
    """Pages of a trie; a page leaves when nothing stands on it."""

    def __init__(self, capacity):
        self.capacity, self.last, self.stands, self.leaves = capacity, {}, {}, []

    def use(self, path, depth, tick):
        for k, page in enumerate(path[:depth]):
            self.last[page] = (tick, -k)

    def add(self, path, tick):
        inside = set(path)
        for k, page in enumerate(path):
            if page in self.last:
                self.last[page] = (tick, -k)
                continue
            while len(self.last) >= self.capacity:
                self.evict(inside)
            self.last[page] = (tick, -k)
            above = path[k - 1] if k else None
            self.stands[page] = [above, 0]
            if above is not None:
                self.stands[above][1] += 1
        if path:
            heapq.heappush(self.leaves, (self.last[path[-1]], repr(path[-1]), path[-1]))

    def evict(self, inside):
        kept = []
        while True:
            age, _, page = heapq.heappop(self.leaves)
            if page not in self.last or self.stands[page][1]:
                continue
            if self.last[page] != age:
                heapq.heappush(self.leaves, (self.last[page], repr(page), page))
                continue
            if page in inside:
                kept.append((age, repr(page), page))
                continue
            break
        for entry in kept:
            heapq.heappush(self.leaves, entry)
        above = self.stands.pop(page)[0]
        del self.last[page]
        if above is not None:
            self.stands[above][1] -= 1
            if not self.stands[above][1]:
                heapq.heappush(self.leaves, (self.last[above], repr(above), above))


def hit_rate(trace, capacity, has_state):
    cache, states, hit, all_tokens = Lru(capacity), set(), 0, 0
    for tick, (prompt, whole, path) in enumerate(trace):
        most = (prompt - 1) // PAGE
        known = next((k for k, page in enumerate(path[:whole]) if page not in cache.last), whole)
        resume = min(known, most)
        if has_state:
            while resume and path[resume - 1] not in states:
                resume -= 1
            places = [most, whole, len(path)] + ([known] if known < most else []) + list(range(GRID, most, GRID))
            states.update(path[p - 1] for p in places if p > resume)
        hit += resume * PAGE
        all_tokens += prompt
        cache.use(path, resume, tick)
        cache.add(path, tick)
    return 100 * hit / all_tokens


def replayed(binary, path, gib, state_bytes):
    command = [binary, "replay", path, "--policy", "lru", "--kv-bytes", str(KV_BYTES), "--host", str(gib), "--json"]
    if state_bytes:  # the grid takes free slots only, so there are always some
        command += ["--state-bytes", str(state_bytes), "--device", str(gib), "--device-states", "1000000"]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    return 100 * json.loads(output.stdout)["hit_rate"]


def main(binary, path):
    trace, failed = list(read_trace(path)), False
    print("  GiB  state  model %  larder replay %")
    for gib, state_bytes in ((8, 0), (24, 0), (64, 0), (100000, 1 << 20)):
        pages = gib * 2**30 // (KV_BYTES * PAGE)
        wanted, got = hit_rate(trace, pages, state_bytes > 0), replayed(binary, path, gib, state_bytes)
        differs = abs(wanted - got) > 0.1
        failed |= differs
        print(f"{gib:6}  {'yes' if state_bytes else 'no':5} {wanted:8.2f} {got:12.2f}{'  DIFFERS' if differs else ''}")
    sys.exit("FAILED: the hit rates differ by more than 0.1 point" if failed else 0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "trace.jsonl")
        make_trace(made)
        main(sys.argv[1], made)
