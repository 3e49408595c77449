# SPDX-License-Identifier: Apache-2.0
"""A page with metrics for Prometheus, served by the process of each rank: the store's, and the plug-in's own."""

import http.server
import socket
import threading
from typing import Callable, Mapping

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Serves GET /metrics on a thread of its own until close(). Raises OSError if the address is taken.

    host, port: where it listens; port 0: any free one. `text` is called for each request, on the page's thread.
    """

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10  # seconds that a silent client may hold a thread

            def do_GET(self) -> None:
                is_found = self.path.partition("?")[0] == "/metrics"
                body = text().encode() if is_found else b"the metrics are at /metrics\n"
                self.send_response(200 if is_found else 404)
                self.send_header("Content-Type", _CONTENT_TYPE if is_found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not logged."""

        class Server(http.server.ThreadingHTTPServer):
            # The host's first address, of IPv4 or IPv6.
            address_family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that goes away early is nothing for SGLang's log."""

        self._server = Server((host, port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="larder-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def plugin_metrics(troubles: Mapping[str, int], is_clear_owed: bool) -> str:
    """What the store does not know, as Prometheus text. troubles: failures by kind."""
    lines = [
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
