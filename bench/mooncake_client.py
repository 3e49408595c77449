# SPDX-License-Identifier: Apache-2.0
"""Speed of Mooncake's own Python client, for comparison with `larder bench storage --backend mooncake`.

As there: pages of one size, each written once and then read once, in a random order, DEPTH requests of one page in
flight, here from as many threads. The calls are those of an engine that uses the client: batch_put_from and
batch_get_into, with registered memory; with --sessions those that Larder's helper uses.
Run it with the interpreter that has the package: build/mooncake/bin/python bench/mooncake_client.py --master HOST:PORT
"""

import argparse
import ctypes
import mmap
import os
import random
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
    parser.add_argument("--sessions", action="store_true")
    return parser.parse_args()


def put_in_session(client, name, address, size):
    code = client.batch_put_session_start([name], [size], store.ReplicateConfig())[0]
    if code:
        return code
    moved = client.batch_put_from_multi_buffer_ranges([name], [[address]], [[size]], [[0]])[0]
    return client.batch_put_session_end([name])[0] if moved == size else moved


def run(depth, names, step):
    """Seconds for step(i, thread) of all i, from `depth` threads."""
    order = list(range(len(names)))
    random.shuffle(order)
    lock, wrong = threading.Lock(), []

    def work(thread):
        while True:
            with lock:
                if not order:
                    return
                i = order.pop()
            code = step(i, thread)
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


def main():
    o = arguments()
    client = store.MooncakeDistributedStore()
    assert client.setup(o.hostname, "P2PHANDSHAKE", 0, 0, o.protocol, "", o.master) == 0
    size = o.bytes + max(o.page_sizes) * max(o.depths)
    memory = mmap.mmap(-1, size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for offset in range(0, o.bytes, 1 << 20):
        memory[offset:offset + (1 << 20)] = os.urandom(1 << 20)
    assert client.register_buffer(base, size) == 0
    print("page_bytes depth set_MBps get_MBps (median of runs)")
    for page in o.page_sizes:
        for depth in o.depths:
            sets, gets = [], []
            for turn in range(o.repeat):
                names = [f"bench-{os.getpid()}-{page}-{depth}-{turn}-{i}" for i in range(o.bytes // page)]

                def put(i, _):
                    address = base + i * page
                    if o.sessions:
                        return put_in_session(client, names[i], address, page)
                    return client.batch_put_from([names[i]], [address], [page])[0]

                def get(i, thread):
                    code = client.batch_get_into([names[i]], [base + o.bytes + thread * page], [page])[0]
                    return 0 if code == page else code or -1

                sets.append(o.bytes / run(depth, names, put) / 1e6)
                gets.append(o.bytes / run(depth, names, get) / 1e6)
                client.remove_by_regex(f"^bench-{os.getpid()}-", True)
            print(page, depth, f"{sorted(sets)[len(sets) // 2]:.0f} {sorted(gets)[len(gets) // 2]:.0f}", flush=True)
    client.close()


main()
