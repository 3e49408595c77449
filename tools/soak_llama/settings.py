# SPDX-License-Identifier: Apache-2.0
"""What is asked for, and the servers: pairs of a proxy and its llama-server, and `larder serve`, which needs none."""

import argparse
import pathlib

from soak import frame
from soak.settings import ROOT

BINARIES = ("binary", "write_model", "llama_server")
MOST_TROUBLE_SECONDS = 10.0
EVENTS_OF_A_SHORT_SOAK = 25
# Batches of 64 tokens that begin at multiples of 64, as pages do: another split of a prompt rounds otherwise.
SPLIT = ("-b", "64", "-ub", "64", "--ctx-checkpoints", "0")
SLOTS = 3
SLOT_TOKENS = 4096
STORE_MIB = 24
PAGE = 64

DESCRIPTION = """\
Runs `larder proxy` before the real llama-server for a set time and lets things happen to both, while clients hold
conversations and compare every token with what a plain llama-server has said, which computes each prompt as a whole.

  qwen35   a hybrid (recurrent states beside attention), slot files in /dev/shm, in a folder that the proxy makes
  gemma3   sliding windows, slot files in a folder of ours (--slot-dir)
  serve    `larder serve` of that hybrid: no proxy and no llama-server, the same requests and the same answers

Trouble: kill -9 of llama-server, of the proxy, of both; SIGTERM of the proxy; SIGSTOP of either; flushes of host
memory; streams that are abandoned half way.

Fails (1) if a token is wrong, a request fails while its servers were meant to be up, a slot stays busy, a process ends
by itself, does not come back, or outlives its proxy, memory, descriptors or threads grow, the store grows beyond its
size, slot files are left behind, the store is damaged at the end, or nothing came back from storage after a restart.
77: there is no binary to run. Ctrl-C ends all children, and prints what was seen.
"""


def parse(arguments):
    release = ROOT / "build" / "release"
    parser = argparse.ArgumentParser(prog="tools/soak_llama.py", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    frame.add_options(add, minutes=15, rate=12, conversations=8)
    add("--binary", type=pathlib.Path, default=release / "larder", help="larder (build/release/larder)")
    add("--write-model", type=pathlib.Path, default=None, help="larder_write_model (beside the binary)")
    add("--llama-server", type=pathlib.Path, default=ROOT / "build" / "llama" / "build" / "bin" / "llama-server",
        help="of tools/llama_env.sh (build/llama/build/bin/llama-server)")
    options = parser.parse_args(arguments)
    if options.trouble is None:
        options.trouble = min(MOST_TROUBLE_SECONDS, max(1.0, options.minutes * 60 / EVENTS_OF_A_SHORT_SOAK))
    frame.check_options(parser, options)
    if options.write_model is None:
        options.write_model = options.binary.parent / "larder_write_model"
    return options


def replay(options):
    """The command that runs the same again."""
    return " ".join(frame.replay_words(options, "soak_llama", BINARIES))


class PairPlan:
    """A model, the proxy and its llama-server, and the plain one beside them."""

    has_server, metrics = True, "larder_proxy"

    def __init__(self, name, kind, directory, host_memory, has_own_slot_folder):
        self.name, self.kind, self.host_memory = name, kind, host_memory
        self.model = directory / f"{kind}.gguf"
        self.store = directory / f"{name}-store"
        self.slots = directory / f"{name}-slots" if has_own_slot_folder else None
        self.store_bytes = STORE_MIB << 20

    def command(self, options, port):
        folder = ["--slot-dir", str(self.slots)] if self.slots else []
        return [str(options.binary), "proxy", "--port", str(port), "--host-memory", self.host_memory,
                "--page-size", str(PAGE), "--store", str(self.store), "--store-size", f"{STORE_MIB}Mi", *folder,
                "--", *self._server(options, SLOTS)]

    def plain_command(self, options, port):
        return [*self._server(options, 1), "--host", "127.0.0.1", "--port", str(port), "--cache-ram", "0"]

    def _server(self, options, slots):
        return [str(options.llama_server), "-m", str(self.model), "-c", str(slots * SLOT_TOKENS), "-np", str(slots),
                "-t", "1", "--log-disable", *SPLIT]


class ServePlan(PairPlan):
    has_server, metrics = False, "larder_serve"

    def command(self, options, port):
        return [str(options.binary), "serve", "--model", str(self.model), "--port", str(port), "-p", str(SLOTS),
                "-c", str(SLOTS * SLOT_TOKENS), "-t", "1", "-b", str(PAGE), "--host-memory", self.host_memory,
                "--page-size", str(PAGE), "--store", str(self.store), "--store-size", f"{STORE_MIB}Mi"]


def plans(directory):
    """Host memory holds two or three conversations, so that storage is needed; storage is small, so that it evicts."""
    return [PairPlan("qwen35", "qwen35", directory, "3Mi", False), PairPlan("gemma3", "gemma3", directory, "3Mi", True),
            ServePlan("serve", "qwen35", directory, "3Mi", False)]
