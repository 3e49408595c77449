# SPDX-License-Identifier: Apache-2.0
"""Speed of Mooncake's own Python client, as bench/mooncake_beside.py compares it with Larder's backend.

Pages of one size, each written once and then read once, in a random order, DEPTH calls in flight, from as many threads.
The calls are those of an engine that uses the client: batch_put_from and batch_get_into, with registered memory, of
PAGES pages each; with --sessions (one page a call) those that Larder's helper uses.
Run it with the interpreter that has the package: build/mooncake/bin/python bench/mooncake_client.py --master HOST:PORT
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import resource
import statistics
import threading
import time

from mooncake import store


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--hostname", default="127.0.0.1")
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[65536, 524288, 2097152])
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--bytes", type=int, default=128 << 20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pages", type=int, default=1, help="of one call")
    parser.add_argument("--sessions", action="store_true")
    parser.add_argument("--json", action="store_true", help="bytes per second of each run, a line for each pair")
    return parser.parse_args()


def put_in_session(client, name, address, size):
    code = client.batch_put_session_start([name], [size], store.ReplicateConfig())[0]
    if code:
        return code
    moved = client.batch_put_from_multi_buffer_ranges([name], [[address]], [[size]], [[0]])[0]
    return client.batch_put_session_end([name])[0] if moved == size else moved


def run(depth, count, batch, step):
    """Seconds for step(pages, thread) of all pages, from `depth` threads."""
    pages = list(range(count))
    random.shuffle(pages)
    order = [pages[i:i + batch] for i in range(0, count, batch)]
    lock, wrong = threading.Lock(), []

    def work(thread):
        while True:
            with lock:
                if not order:
                    return
                pages = order.pop()
            code = step(pages, thread)
            if code:
                wrong.append(code)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(depth)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise SystemExit(f"calls failed: {sorted(set(wrong))}")
    return time.perf_counter() - begin


def require_resident(faults, size):
    """Ends the program if a round of reads met as many new pages as half of the memory that it reads into."""
    if faults > size // mmap.PAGESIZE // 2 + 256:  # the client's own threads have some
        raise SystemExit(f"{faults} page faults in a round of reads: the memory was not there when the clock started")


def main():
    o = arguments()
    client = store.MooncakeDistributedStore()
    assert client.setup(o.hostname, "P2PHANDSHAKE", 0, 0, o.protocol, "", o.master) == 0
    size = o.bytes + max(o.page_sizes) * max(o.depths) * o.pages
    memory = mmap.mmap(-1, size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for offset in range(0, size, 1 << 20):  # what is read into, too: the clock measures no page faults
        piece = min(1 << 20, size - offset)
        memory[offset:offset + piece] = os.urandom(piece)
    assert client.register_buffer(base, size) == 0
    if not o.json:
        print("page_bytes depth set_MBps get_MBps (median of runs)")
    for page in o.page_sizes:
        for depth in o.depths:
            sets, gets = [], []
            for turn in range(o.repeat):
                names = [f"bench-{os.getpid()}-{page}-{depth}-{turn}-{i}" for i in range(o.bytes // page)]

                def put(pages, _):
                    if o.sessions:
                        return put_in_session(client, names[pages[0]], base + pages[0] * page, page)
                    codes = client.batch_put_from([names[i] for i in pages], [base + i * page for i in pages],
                                                  [page] * len(pages))
                    return next((code for code in codes if code), 0)

                def get(pages, thread):
                    into = base + o.bytes + thread * o.pages * page
                    codes = client.batch_get_into([names[i] for i in pages],
                                                  [into + n * page for n in range(len(pages))], [page] * len(pages))
                    return next((code or -1 for code in codes if code != page), 0)

                sets.append(o.bytes / run(depth, len(names), o.pages, put))
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                gets.append(o.bytes / run(depth, len(names), o.pages, get))
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
                require_resident(faults, depth * o.pages * page)
                client.remove_by_regex(f"^bench-{os.getpid()}-", True)
            if o.json:
                print(json.dumps({"page_bytes": page, "depth": depth, "set": sets, "get": gets}), flush=True)
            else:
                medians = [f"{statistics.median(speeds) / 1e6:.0f}" for speeds in (sets, gets)]
                print(page, depth, *medians, flush=True)
    client.close()


main()
