# SPDX-License-Identifier: Apache-2.0
"""Runs `larder serve` for the tests. The program is named by LARDER_BINARY, else it is build/release/larder."""

import json
import re
import threading
import urllib.request

from .metadata_server import BINARY, launch

_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+) ")


class Server:
    """A server with these options; a context."""

    def __init__(self, *options):
        self.command = [BINARY, "serve", "--port", "0", "--log-level", "warning", *map(str, options)]
        self.url = ""
        self._process = None

    def __enter__(self):
        self._process, found = launch(self.command, _LISTENING)
        self.url = found[1]
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._process.terminate()
        status = self._process.wait(60)
        assert status == 0, f"the server ended with {status}"

    def ask(self, path, body=None, method=None):
        """The answer, decoded; an error status raises."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=120) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text
