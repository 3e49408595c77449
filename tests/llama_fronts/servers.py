# SPDX-License-Identifier: Apache-2.0
"""llama-server alone, and `larder proxy` before it, as processes of a test; and what tests ask them."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
LARDER = os.environ.get("LARDER_BINARY", str(ROOT / "build/release/larder"))
WRITE_MODEL = os.environ.get("LARDER_WRITE_MODEL", str(ROOT / "build/release/larder_write_model"))
LLAMA_SERVER = os.environ.get("LARDER_LLAMA_SERVER", str(ROOT / "build/llama/build/bin/llama-server"))
START_SECONDS = 60
# Of the test models' 320 tokens: llama-server tells no probabilities of bytes that end inside of a character.
ALLOWED = range(128)
FORBIDDEN = range(128, 320)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children_of(pid):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue  # it has just ended
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


class Server:
    """A process with an HTTP port. `errors`: the path of what it wrote to standard error."""

    def __init__(self, arguments, port=None, is_session=False):
        self.is_session = is_session  # as a terminal's foreground group
        self.arguments = [str(argument) for argument in arguments]
        self.port = port
        self.process = None
        self.errors = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False).name

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def launch(self):
        with open(self.errors, "a", encoding="utf-8") as errors:
            self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, stderr=errors, text=True,
                                            start_new_session=self.is_session)

    def log(self):
        return pathlib.Path(self.errors).read_text(encoding="utf-8", errors="replace")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait() if self.process else None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def post(self, path, body, headers=None, timeout=120):
        """(status, headers, parsed body or text)"""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"Content-Type": "application/json", **(headers or {})}
        question = urllib.request.Request(self.url + path, data, head)
        return self._answer(question, timeout)

    def get(self, path, timeout=30):
        return self._answer(urllib.request.Request(self.url + path), timeout)

    @staticmethod
    def _answer(question, timeout):
        try:
            with urllib.request.urlopen(question, timeout=timeout) as reply:
                text, status, head = reply.read().decode(), reply.status, reply.headers
        except urllib.error.HTTPError as error:
            text, status, head = error.read().decode(), error.code, error.headers
        try:
            return status, head, json.loads(text)
        except json.JSONDecodeError:
            return status, head, text

    def complete(self, prompt, count=1, **more):
        """Greedy tokens that follow; of the proxy the reused tokens, too."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "samplers": ["top_k"], "top_k": 1,
                "return_tokens": True, "n_probs": 20, "logit_bias": [[token, False] for token in FORBIDDEN], **more}
        status, head, answer = self.post("/completion", body)
        assert status == 200, answer
        return Answer(answer, head)


class Answer:
    def __init__(self, body, head):
        self.body = body
        self.tokens = body["tokens"]
        self.cached = body["timings"]["cache_n"]
        self.reused = int(head["X-Larder-Reused-Tokens"]) if "X-Larder-Reused-Tokens" in head else None
        self.source = head.get("X-Larder-Reused-From")
        self.miss = head.get("X-Larder-Miss")

    def certain(self, gap=0.02):
        """How many of the tokens are likelier than the next ones by more than rounding."""
        for index, one in enumerate(self.body["completion_probabilities"]):
            listed = one["top_logprobs"]
            rivals = [other["logprob"] for other in listed if other["id"] in ALLOWED and other["id"] != one["id"]]
            if one["logprob"] - max(rivals, default=listed[-1]["logprob"]) < gap:
                return index
        return len(self.tokens)


class LlamaServer(Server):
    def __init__(self, model, *more, port=None, slots=None, binary=LLAMA_SERVER):
        port = port or free_port()
        arguments = [binary, "-m", model, "--host", "127.0.0.1", "--port", port, "-t", 1, "--log-disable", *more]
        if slots:
            arguments += ["--slot-save-path", slots]
        super().__init__(arguments, port)

    def start(self):
        self.launch()
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log()
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("llama-server did not start: " + self.log())


class Front(Server):
    """What the proxy and `larder serve` have in common."""

    saves = ""  # the metric of saves that have ended
    stored = ""

    def status(self):
        status, _, body = self.get("/larder/status")
        assert status == 200, body
        return body

    def metrics(self):
        text = self.get("/metrics")[2]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in text.splitlines() if line and not line.startswith("#")}

    def wait_until(self, what, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return
            time.sleep(0.05)
        raise AssertionError("it did not come to that: " + self.log())

    def wait_stored(self):
        """Nothing is being saved any more, and storage has it all."""
        before = None

        def is_quiet():
            nonlocal before
            metrics = self.metrics()
            saves = sum(value for name, value in metrics.items() if name.startswith(self.saves))
            now = (saves, metrics[self.stored])
            is_same, before = now == before, now
            return is_same
        self.wait_until(is_quiet)


class Proxy(Front):
    """With a llama-server of its own (model), or before one (upstream, slots)."""

    saves, stored = "larder_proxy_saves_total", "larder_proxy_stored_pages_total"

    def __init__(self, model=None, *more, upstream=None, slots=None, store=None, options=(), port=None,
                 is_session=False):
        memory = () if "--host-memory" in options else ("--host-memory", "256Mi")
        arguments = [LARDER, "proxy", "--port", port or 0, *memory, *options]
        if store:
            arguments += ["--store", store]
        if upstream:
            arguments += ["--upstream", upstream, "--slot-dir", slots]
        if model:
            arguments += ["--", LLAMA_SERVER, "-m", model, "-t", 1, "--log-disable", *more]
        super().__init__(arguments, is_session=is_session)

    def start(self):
        self.launch()
        line = self.process.stdout.readline()
        assert " proxy on http://" in line, line + self.log()
        self.port = int(line.split(" proxy on http://127.0.0.1:")[1].split()[0])
        self.summary = self.process.stdout.readline()
        return self

    def server_pid(self):
        (child,) = children_of(self.process.pid)
        return child

    def kill_both(self):
        server = self.server_pid()
        self.kill()
        try:
            os.kill(server, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Serve(Front):
    """`larder serve` of a GGUF file."""

    saves, stored = "larder_serve_saves_total", "larder_serve_stored_pages_total"

    def __init__(self, model, *more, store=None):
        memory = () if "--host-memory" in more else ("--host-memory", "256Mi")
        arguments = [LARDER, "serve", "--model", model, "--port", 0, "-t", 1, *memory, *more]
        super().__init__([*arguments, *(("--store", store) if store else ())])

    def start(self):
        self.launch()
        line = self.process.stdout.readline()
        assert " serve on http://" in line, line + self.log()
        self.port = int(line.split(" serve on http://127.0.0.1:")[1].split()[0])
        self.summary = self.process.stdout.readline()
        return self
