#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the documentation as a reader would copy them.

  tools/run_docs.py [PAGE ...]       the pages that have such commands, if none are named
  tools/run_docs.py --list

A fenced block whose first line is ```sh run is run as one script by bash (set -e), in the top folder of the clone,
and has to end with 0. ```sh run server=PORT is a server: it is started, and PORT has to be answered within five
minutes; it runs until the end of the page or the next server, and has to end with 0 after SIGTERM. What a reader has
at hand and a test has not, stands in substitutes(). llama-server comes from build/llama, or is LLAMA_SERVER; without
one, a page that names it is left out, and the status is 77.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/llama_cpp.md", "docs/metadata_server.md", "docs/security.md"]
SERVER_SECONDS, BLOCK_SECONDS, STOP_SECONDS = 300, 900, 60
SKIPPED = 77
BLOCK = re.compile(r"^```sh run([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fail(page, block, why):
    sys.exit(f"run_docs: {page}: {why}\n{block}")


def substitutes(scratch, server):
    """Text of the pages -> what this run has. The longest first."""
    return {"/var/lib/larder": f"{scratch}/state", "/var/tmp/larder": f"{scratch}/store",
            "~/larder": f"{scratch}/installed", "/dev/shm/slots": f"{scratch}/slots",
            "model.gguf": f"{scratch}/model.gguf", " llama-server ": f" {server} ",
            "\nllama-server ": f"\n{server} "}


def llama_server():
    given = os.environ.get("LLAMA_SERVER")
    built = [str(path) for path in sorted((ROOT / "build/llama").glob("**/bin/llama-server"))]
    return given or (built[0] if built else shutil.which("llama-server"))


def is_answered(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Page:
    def __init__(self, name, scratch, server):
        self.name, self.scratch, self.server = name, scratch, server
        self.servers = []
        self.environment = dict(os.environ, HOME=str(scratch), PATH=f"{ROOT / 'build/release'}:{os.environ['PATH']}")

    def text_of(self, block):
        text = "\n" + block
        for written, here in substitutes(self.scratch, self.server).items():
            text = text.replace(written, here)
        return "set -euo pipefail\n" + text

    def start(self, block, port):
        bad = self.stop()  # one server at a time
        if bad:
            fail(self.name, *bad)
        if is_answered(port):
            fail(self.name, block, f"port {port} is in use")
        log = open(self.scratch / f"server_{port}.log", "w+", encoding="utf-8")
        process = subprocess.Popen(["bash", "-c", self.text_of(block)], cwd=ROOT, env=self.environment, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        self.servers.append((process, block, log))
        end = time.monotonic() + SERVER_SECONDS
        while not is_answered(port):
            if process.poll() is not None or time.monotonic() > end:
                log.seek(0)
                fail(self.name, block, f"nothing listens on port {port}; it said:\n{log.read()[-3000:]}")
            time.sleep(0.2)

    def run(self, block):
        done = subprocess.run(["bash", "-c", self.text_of(block)], cwd=ROOT, env=self.environment,
                              timeout=BLOCK_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
        if done.returncode != 0:
            fail(self.name, block, f"ended with {done.returncode}; it said:\n{done.stdout[-3000:]}")
        last = done.stdout.strip().splitlines()[-1:] or ["(nothing)"]
        print(f"     {last[0][:110]}", flush=True)

    def stop(self):
        """The first server that did not end well, or None."""
        bad = None
        while self.servers:
            process, block, log = self.servers.pop()
            os.killpg(process.pid, signal.SIGTERM)
            try:
                status = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = "no end"
            if status not in (0, -signal.SIGTERM):  # the shell around a server that stopped well
                log.seek(0)
                bad = bad or (block, f"after SIGTERM: {status}; it said:\n{log.read()[-3000:]}")
        return bad


def run_page(name, blocks, server):
    with tempfile.TemporaryDirectory(prefix="larder_docs_") as scratch:
        page = Page(name, pathlib.Path(scratch), server)
        if any("model.gguf" in block for _, block in blocks):
            write_model = ROOT / "build/release/larder_write_model"
            subprocess.run([write_model, "qwen35", page.scratch / "model.gguf"], check=True, stdout=subprocess.DEVNULL)
        try:
            for options, block in blocks:
                print(f"{name}: {block.strip().splitlines()[0][:100]}", flush=True)
                port = re.search(r"server=(\d+)", options)
                if port:
                    page.start(block, int(port.group(1)))
                else:
                    page.run(block)
        finally:
            bad = page.stop()
        if bad:
            fail(name, *bad)


def main():
    names = [name for name in sys.argv[1:] if name != "--list"] or PAGES
    server = llama_server()
    is_skipped = False
    for name in names:
        blocks = BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))
        if not blocks:
            sys.exit(f"run_docs: {name} has no block that begins with ```sh run")
        if "--list" in sys.argv:
            for options, block in blocks:
                print(f"{name}{' (server)' if 'server' in options else ''}:\n{block}")
        elif server is None and any("llama-server" in block for _, block in blocks):
            print(f"{name}: skipped: no llama-server (tools/llama_env.sh, or the variable LLAMA_SERVER)")
            is_skipped = True
        else:
            run_page(name, blocks, server)
    return SKIPPED if is_skipped else 0


if __name__ == "__main__":
    sys.exit(main())
