#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`larder stat --watch` goes on while its server is restarted; a server that was never there ends it, and so does a
signal while a server is silent. `larder stat` shows a proxy whose llama-server is down, and a page of metrics alone.

    stat_watch.py BINARY
"""

import http.server
import json
import queue
import signal
import socket
import subprocess
import sys
import threading

INFO = {"served_model_name": "watched", "internal_states": [{"prompt_tokens": 3}]}


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(INFO if self.path == "/server_info" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class ProxyAlone(Server):
    """As `larder proxy` answers while llama-server is down, or loads."""

    def do_GET(self):
        is_own = self.path.startswith("/larder/") or self.path == "/metrics?format=json"
        body = b'{"server": "larder proxy", "model": "waiting"}' if is_own else b'{"error": "Loading model"}'
        self.send_response(200 if is_own else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class MetricsAlone(Server):
    """As a rank of SGLang answers at metrics_port; is_older: in a version that knew Prometheus' text only."""

    is_older = False

    def do_GET(self):
        is_own = self.path == "/metrics?format=json"
        families = {"larder_door_get_pages_total": {"type": "counter", "help": "", "series": [
            {"labels": {"result": "read"}, "value": 7}]}}
        body = json.dumps(families).encode() if is_own and not self.is_older else b"the metrics are at /metrics\n"
        self.send_response(200 if is_own else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class OlderMetrics(MetricsAlone):
    is_older = True


def serve(port=0, handler=Server):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def check_proxy_alone():
    server = serve(handler=ProxyAlone)
    url = f"http://127.0.0.1:{server.server_port}"
    shown = subprocess.run([sys.argv[1], "stat", "--json", "--url", url], capture_output=True, text=True, timeout=60,
                           check=False)
    assert shown.returncode == 0 and json.loads(shown.stdout)["model"] == "waiting", shown
    server.shutdown()
    server.server_close()


def check_metrics_alone():
    for handler in (MetricsAlone, OlderMetrics):
        server = serve(handler=handler)
        url = f"http://127.0.0.1:{server.server_port}"
        shown = subprocess.run([sys.argv[1], "stat", "--url", url], capture_output=True, text=True, timeout=60,
                               check=False)
        if handler is MetricsAlone:
            assert shown.returncode == 0 and "result=read" in shown.stdout, shown
        else:
            assert shown.returncode == 1 and "metrics_port" in shown.stderr, shown
        server.shutdown()
        server.server_close()


def check_silent():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        watch = subprocess.Popen([sys.argv[1], "stat", "--watch", "1", "--url", url], stderr=subprocess.DEVNULL)
        try:
            connection = silent.accept()[0]
            assert connection.recv(4096), "it has asked"
            watch.send_signal(signal.SIGINT)
            assert watch.wait(20) == 0, "interrupted is no failure"  # it would wait for 30 s
            connection.close()
        finally:
            watch.kill()


def main():
    server = serve()
    port = server.server_port
    watch = subprocess.Popen([sys.argv[1], "stat", "--watch", "0.1", "--json", "--url", f"http://127.0.0.1:{port}"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert json.loads(watch.stdout.readline())["model"] == "watched"
        server.shutdown()
        server.server_close()
        said = watch.stderr.readline()
        assert "asking again" in said, f"while the server is away: {said!r}"
        server = serve(port)
        lines = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in watch.stdout], daemon=True).start()
        threading.Thread(target=watch.stderr.read, daemon=True).start()
        for _ in range(20):  # more than it can have printed before
            assert json.loads(lines.get(timeout=30))["model"] == "watched"
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(30) == 0, "interrupted is no failure"
    finally:
        watch.kill()
    server.shutdown()
    server.server_close()
    never = subprocess.run([sys.argv[1], "stat", "--watch", "0.1", "--url", f"http://127.0.0.1:{port}"],
                           capture_output=True, text=True, timeout=60, check=False)
    assert never.returncode == 1 and "cannot connect" in never.stderr, never
    check_silent()
    check_proxy_alone()
    check_metrics_alone()
    print("watching: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
