# SPDX-License-Identifier: Apache-2.0
"""Speed of Larder's backend `mooncake` beside the package's own Python client, in turns, on one machine.

Starts a master and a process that lends memory; then, for each size of page and each SHAPE, TURNS times
`larder bench storage --backend mooncake` and bench/mooncake_client.py, one after the other. A shape is the number of
requests in flight x the number of pages in each. Prints medians in MB/s with their spread, and the median of the ratios
of the turns.

    tools/mooncake_env.sh && build/mooncake/bin/python bench/mooncake_beside.py
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OWNER = """
import signal, sys
from mooncake import store
client = store.MooncakeDistributedStore()
code = client.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 256 << 20, "tcp", "", sys.argv[1])
if code == 0:
    # So that nobody has to be the first to write to any of this memory.
    for piece in range(int(sys.argv[2]) // (16 << 20)):
        client.put(f"first-{piece}", bytes(15 << 20))
    client.remove_by_regex("^first-", True)
print("up" if code == 0 else f"setup: code {code}", flush=True)
signal.pause()
"""
SEGMENT_OF_BYTES = 4  # lent memory, in contents of one run: what was removed is free a while later


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default=str(ROOT / "build/release/larder"))
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[64 << 10, 512 << 10, 2 << 20], metavar="BYTES")
    parser.add_argument("--shapes", nargs="+", default=["1x1", "4x1", "16x1", "1x16", "4x16"], metavar="SHAPE",
                        help="requests in flight x pages in each")
    parser.add_argument("--bytes", type=int, default=256 << 20, help="of one run")
    parser.add_argument("--turns", type=int, default=5)
    o = parser.parse_args()
    try:
        o.shapes = [tuple(int(number) for number in shape.split("x", 1)) for shape in o.shapes]
    except ValueError:
        parser.error("--shapes: REQUESTSxPAGES is expected, as 4x16")
    return o


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_store(segment_bytes):
    """The processes, and the master's address."""
    scripts = pathlib.Path(sys.executable).parent
    if not (scripts / "mooncake_master").exists():
        sys.exit("run this with the interpreter that has the package: build/mooncake/bin/python; "
                 "tools/mooncake_env.sh makes it")
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    master = subprocess.Popen([scripts / "mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={port}",
                               "--metrics_host=127.0.0.1", f"--metrics_port={free_port()}"], **quiet)
    address = f"127.0.0.1:{port}"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, address, str(segment_bytes)], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
    line = owner.stdout.readline().strip()
    if line != "up":
        owner.kill()
        master.kill()
        sys.exit(f"no process can lend memory to the master at {address}: {line or 'it ended'}")
    return [owner, master], address


def run_json(command):
    environment = dict(os.environ, GLOG_minloglevel="2")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def run_larder(o, address, page, depth, pages):
    """{"set", "get": bytes per second}"""
    extra = {"master_server_address": address, "local_hostname": "127.0.0.1", "protocol": "tcp",
             "global_segment_size": "0", "python": sys.executable}
    command = [o.larder, "bench", "storage", "--backend", "mooncake", "--beside", "none", "--exists-pages", "0",
               "--repeat", "1", "--seconds", "60", "--json", "--bytes", str(o.bytes), "--depths", str(depth),
               "--page-sizes", str(page), "--pages", str(pages)]
    for key, value in extra.items():
        command += ["--extra", f"{key}={value}"]
    return {cell["operation"]: cell["own"][0]["bytes_per_second"] for cell in json.loads(run_json(command))["cells"]}


def run_client(o, address, page, depth, pages):
    out = run_json([sys.executable, str(ROOT / "bench/mooncake_client.py"), "--master", address, "--json", "--repeat",
                    "1", "--bytes", str(o.bytes), "--pages", str(pages), "--depths", str(depth), "--page-sizes",
                    str(page)])
    cell = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    return {kind: cell[kind][0] for kind in ("set", "get")}


def spread(values):
    mega = sorted(value / 1e6 for value in values)
    return f"{statistics.median(mega):.0f} [{mega[0]:.0f}..{mega[-1]:.0f}]"


def print_ratios(own, client):
    print(f"{'':4}{'page':>9}{'shape':>7}{'Larder':>18}{'client':>18}{'ratio':>19}")
    for kind in ("set", "get"):
        for cell in own:
            mine, theirs = ([turn[kind] for turn in runs[cell]] for runs in (own, client))
            ratios = sorted(m / t for m, t in zip(mine, theirs))
            ratio = f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}..{ratios[-1]:.2f}]"
            shape = f"{cell[1]}x{cell[2]}"
            print(f"{kind:4}{cell[0] >> 10:>5} KiB{shape:>7}{spread(mine):>18}{spread(theirs):>18}{ratio:>19}")


def main():
    o = arguments()
    processes, address = start_store(SEGMENT_OF_BYTES * o.bytes)
    cells = [(page, *shape) for page in o.page_sizes for shape in o.shapes]
    own, client = ({cell: [] for cell in cells} for _ in range(2))
    try:
        for turn in range(o.turns):
            for cell in cells:
                own[cell].append(run_larder(o, address, *cell))
                client[cell].append(run_client(o, address, *cell))
            print(f"turn {turn + 1} of {o.turns}", file=sys.stderr, flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print(f"MB/s, {o.bytes >> 20} MiB a run, {o.turns} turns, {os.cpu_count()} cores, {platform.machine()}, "
          f"{datetime.date.today()}")
    print_ratios(own, client)


main()
