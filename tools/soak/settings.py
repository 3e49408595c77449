# SPDX-License-Identifier: Apache-2.0
"""What is asked for, and the servers that stand for it."""

import argparse
import json
import pathlib

from soak import frame

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARIES = ("binary", "library")
METADATA = "metadata"
METADATA_KEY = "soak-key"
MOST_TROUBLE_SECONDS = 6.0
EVENTS_OF_A_SHORT_SOAK = 60

DESCRIPTION = """\
Runs real `larder` processes for a set time and lets things happen to them, while clients hold conversations and compare
every token with what a server without a cache has said.

  gdn     gdn-tiny (recurrent states), file store
  swa     swa-tiny (sliding windows), hf3fs on the fake library
  dsv4a   dsv4-tiny (DeepSeek-V4 pools), hf3fs; shares pages with
  dsv4b   the same model on the same files
  and `larder metadata-server`, which the three on hf3fs use over HTTP, with a key.

Trouble: kill -9, SIGTERM and SIGSTOP of servers and of the metadata server; detach and attach of storage under load;
flushes; clearing of storage; requests that are abandoned half way.

Fails (1) if a token is wrong, a request fails while its server was meant to be up, a process ends by itself, does not
come back or leaves shared memory behind, memory, descriptors or threads grow, a store is damaged at the end, or nothing
came back from storage after a restart. 77: there is no binary to run. Ctrl-C ends all children, and prints what was
seen.
"""


def parse(arguments):
    build = ROOT / "build" / "release"
    parser = argparse.ArgumentParser(prog="tools/soak.py", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    frame.add_options(add, minutes=30, rate=30, conversations=12)
    add("--binary", type=pathlib.Path, default=build / "larder", help="larder (build/release/larder)")
    add("--library", type=pathlib.Path, default=None, help="the fake 3FS library (beside the binary)")
    add("--no-probe", action="store_true", help="attach storage without trying it out first")
    options = parser.parse_args(arguments)
    if options.trouble is None:
        options.trouble = min(MOST_TROUBLE_SECONDS, max(0.3, options.minutes * 60 / EVENTS_OF_A_SHORT_SOAK))
    frame.check_options(parser, options)
    if options.library is None:
        options.library = options.binary.parent / "libhf3fs_api_shared.so"
    return options


def replay(options):
    """The command that runs the same again."""
    words = frame.replay_words(options, "soak", BINARIES)
    return " ".join(words + ["--no-probe"] * options.no_probe)


class ServerPlan:
    """One `larder serve`: its model, its tiers, and the storage that it begins with."""

    def __init__(self, name, model, backend, policy, extra, arguments):
        self.name, self.model, self.backend, self.policy, self.arguments = name, model, backend, policy, arguments
        self.extra = dict(extra, prefetch_threshold=64)

    @property
    def uses_metadata(self):
        return self.backend == "hf3fs"

    def attach_body(self, with_probe):
        return {"hicache_storage_backend": self.backend, "hicache_storage_prefetch_policy": self.policy,
                "hicache_storage_probe": with_probe,
                "hicache_storage_backend_extra_config_json": json.dumps(self.extra)}

    def command(self, binary, port):
        return [str(binary), "serve", "--port", str(port), "--model", self.model, "--threads", "1",
                "--max-running-requests", "3", *self.arguments, "--hicache-storage-backend", self.backend,
                "--hicache-storage-prefetch-policy", self.policy,
                "--hicache-storage-backend-extra-config", json.dumps(self.extra)]


def plans(options, directory, metadata_port):
    """Device and host hold a few conversations, so that storage is needed; storage is small, so that it evicts."""
    files = {"directory": str(directory / "store"), "max_size": "20Mi", "segment_size": "2Mi"}
    shared = {"file_path_prefix": str(directory / "mount" / "pages"), "library": str(options.library),
              "metadata_server_url": f"http://127.0.0.1:{metadata_port}", "metadata_api_key": METADATA_KEY,
              "client_timeout": 2, "staging_size": "1Mi", "files": 2}
    small = ["--max-total-tokens", "1536", "--chunked-prefill-size", "256", "--hicache-ratio", "1.5"]
    return [
        ServerPlan("gdn", "gdn-tiny", "file", "wait_complete", files, small + ["--max-mamba-cache-size", "12"]),
        ServerPlan("swa", "swa-tiny", "hf3fs", "timeout", dict(shared, file_size="12Mi"), small),
        ServerPlan("dsv4a", "dsv4-tiny", "hf3fs", "wait_complete", dict(shared, file_size="24Mi"), small),
        ServerPlan("dsv4b", "dsv4-tiny", "hf3fs", "timeout", dict(shared, file_size="24Mi"), small),
    ]


def metadata_command(binary, port, directory):
    """After a restart every page is leased for the longest lease, and what was reserved rests for the longest time of a
    write: short ones, or an index that is restarted twice a minute has no page to give."""
    limits = []
    for name, seconds in (("max-lease", 6), ("client-lease", 6), ("max-reservation", 10), ("client-reservation", 10),
                          ("max-io-lifetime", 6)):
        limits += [f"--{name}", str(seconds)]
    return [str(binary), "metadata-server", "--port", str(port), "--api-key", METADATA_KEY,
            "--directory", str(directory / "metadata"), *limits]


def reference_command(binary, port, model):
    """Keeps nothing: every prompt is computed from its first token."""
    return [str(binary), "serve", "--port", str(port), "--model", model, "--disable-radix-cache",
            "--disable-hierarchical-cache"]
