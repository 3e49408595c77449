# SPDX-License-Identifier: Apache-2.0
"""A page with metrics for Prometheus, served by the process of each rank: the store's, and the plug-in's own."""

import http.server
import json
import socket
import threading
import urllib.parse
from typing import Callable, Mapping, Optional

from larder.sglang.metrics_json import metrics_json

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


class MetricsPage:
    """Serves GET /metrics, with ?format=json as JSON, on a thread of its own until close().

    host, port: where it listens; port 0: any free one. `text` is called for each request, on a thread of the page.
    Where it cannot listen, `trouble` says why, and it tries again every `pause` seconds; `on_open` is called, with the
    page, on the page's thread when that has succeeded.
    """

    def __init__(
        self,
        host: str,
        port: int,
        text: Callable[[], str],
        on_open: Callable[["MetricsPage"], None] = lambda page: None,
        pause: float = 10.0,
    ) -> None:
        self.host, self.port = host, port
        self.trouble: Optional[Exception] = None
        self._open: Callable[[], http.server.ThreadingHTTPServer] = lambda: _server(host, port, text)
        self._on_open = on_open
        self._pause = pause
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._server: Optional[http.server.ThreadingHTTPServer] = None
        self._try()
        self._thread = threading.Thread(target=self._run, name="larder-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed.set()
            server = self._server
        if server is None:
            return  # the thread ends by itself; it may wait for a name server yet
        server.shutdown()
        self._thread.join()
        server.server_close()

    def _try(self) -> bool:
        """Whether it listens now; not once it is closed."""
        try:
            server = self._open()
        except (OSError, OverflowError, ValueError) as error:  # also a port or a name that can be none
            self.trouble = error
            return False
        with self._lock:
            if self._is_closed.is_set():
                server.server_close()
                return False
            self.port = server.server_address[1]
            self.trouble = None
            self._server = server
            return True

    def _run(self) -> None:
        is_late = self._server is None
        while self._server is None:
            if self._is_closed.wait(self._pause):
                return
            self._try()
        try:
            if is_late:
                self._on_open(self)
        finally:
            self._server.serve_forever()  # close() waits for it


def _server(host: str, port: int, text: Callable[[], str]) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # seconds that a silent client may hold a thread

        def do_GET(self) -> None:
            status, kind, body = _answer(self.path, text)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    class Server(http.server.ThreadingHTTPServer):
        # The host's first address, of IPv4 or IPv6.
        address_family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that goes away early is nothing for SGLang's log."""

    return Server((host, port), Handler)


def _answer(target: str, text: Callable[[], str]) -> tuple[int, str, bytes]:
    """Status, type and body for what a client asks for; as other servers of Larder answer it."""
    path, _, query = target.partition("?")
    if path != "/metrics":
        return 404, "text/plain", b"the metrics are at /metrics\n"
    form = urllib.parse.parse_qs(query, keep_blank_values=True).get("format", ["text"])[0]
    if form == "text":
        return 200, _TEXT, text().encode(errors="replace")
    if form == "json":
        return 200, _JSON, metrics_json(text()).encode(errors="replace")
    message = f"format is {json.dumps(form)}; it must be text or json"
    error = {"message": message, "type": "BadRequestError", "param": "format", "code": 400}
    return 400, _JSON, json.dumps({"error": error}).encode()


def plugin_metrics(
    troubles: Mapping[str, int], is_clear_owed: bool, namespaces: Mapping[str, tuple[str, str]], rank: str
) -> str:
    """What the store does not know, as Prometheus text. troubles: failures by kind. namespaces: model and weight
    version of each that is open."""
    known = {name: [_escaped(text) for text in of] for name, of in namespaces.items()}
    lines = [
        "# HELP larder_sglang_namespace_info Always 1: which model has a namespace that `larder store ls` shows",
        "# TYPE larder_sglang_namespace_info gauge",
        *(
            f'larder_sglang_namespace_info{{namespace="{name}",model="{known[name][0]}",'
            f'weight_version="{known[name][1]}",rank="{rank}"}} 1'
            for name in sorted(known)
        ),
        "# HELP larder_sglang_troubles_total Failures, by the kind that the log names",
        "# TYPE larder_sglang_troubles_total counter",
        *(f'larder_sglang_troubles_total{{kind="{_escaped(kind)}"}} {troubles[kind]}' for kind in sorted(troubles)),
        "# HELP larder_sglang_clear_owed Whether a clear failed and is tried again: until then everything is a miss",
        "# TYPE larder_sglang_clear_owed gauge",
        f"larder_sglang_clear_owed {int(is_clear_owed)}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
