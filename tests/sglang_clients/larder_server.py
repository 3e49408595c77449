# SPDX-License-Identifier: Apache-2.0
"""`larder serve` as a process of a test. The program is named by LARDER_BINARY, else it is build/release/larder."""

import json
import os
import pathlib
import re
import subprocess
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("LARDER_BINARY", str(ROOT / "build" / "release" / "larder"))
START_SECONDS = 60
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+) ")


class LarderServer:
    """A server on a free port; a context. `url`: where it listens."""

    def __init__(self, *options):
        self.command = [BINARY, "serve", "--port", "0", "--log-level", "warning", *map(str, options)]
        self.url = ""
        self._process = None

    def __enter__(self):
        self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        watchdog = threading.Timer(START_SECONDS, self._process.kill)
        watchdog.start()
        said = []
        try:
            for line in self._process.stdout:
                said.append(line)
                if found := _LISTENING.search(line):
                    self.url = found[1]
                    break
        finally:
            watchdog.cancel()
        assert self.url, f"the server ended with {self._process.wait()}\n{''.join(said)}"
        threading.Thread(target=self._process.stdout.read, daemon=True).start()  # else a full pipe would stop it
        return self

    def __exit__(self, *_):
        self._process.terminate()
        status = self._process.wait(60)
        assert status == 0, f"the server ended with {status}"

    def ask(self, path, body=None, method=None):
        """The answer: decoded if it is JSON. An error status raises."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=120) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def metric(self, name, **labels):
        """Sum of a metric's values in all series that have these labels; a name that is not there raises."""
        found = []
        for line in self.ask("/metrics").splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{key}="{text}"' in series for key, text in labels.items()):
                found.append(float(value))
        assert found, f"the server has no metric {name} with {labels}"
        return sum(found)

    def flush(self):
        """Empties the device and the host tier, as the benchmark clients do between runs."""
        return self.ask("/flush_cache?timeout=30", method="POST")
