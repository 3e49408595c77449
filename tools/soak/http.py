# SPDX-License-Identifier: Apache-2.0
"""Requests. Standard library only; every error is Failed, with words."""

import http.client
import json
import socket

REQUEST_SECONDS = 60


class Failed(Exception):
    """A request that was not answered as it should be. `tokens`: what had arrived."""

    def __init__(self, text, tokens=()):
        super().__init__(text)
        self.tokens = list(tokens)


class Abandoned(Exception):
    """The client left, as it meant to."""

    def __init__(self, tokens):
        super().__init__("abandoned")
        self.tokens = tokens


class Connection(http.client.HTTPConnection):
    """One TCP connection to a server of this machine, without Nagle's delays."""

    def __init__(self, port, timeout=REQUEST_SECONDS):
        super().__init__("127.0.0.1", port, timeout=timeout)

    def connect(self):
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def call(port, method, target, body=None, timeout=REQUEST_SECONDS, key=None):
    """(status, text) of a request on a connection of its own."""
    connection = Connection(port, timeout)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{method} {target}: {error!r}") from error
    finally:
        connection.close()


def get_json(port, target, timeout=10, key=None):
    status, text = call(port, "GET", target, timeout=timeout, key=key)
    if status != 200:
        raise Failed(f"GET {target}: HTTP {status}: {text[:300]}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failed(f"GET {target}: no JSON: {text[:300]}") from error


def _checked(answer, tokens):
    """An answer of /generate, complete; else Failed."""
    if "error" in answer:
        raise Failed(f"error: {answer['error']}", tokens)
    finish = answer["meta_info"]["finish_reason"]
    if not finish or finish["type"] != "length":
        raise Failed(f"it ended early: {finish}", answer["output_ids"])
    return answer


def generate(connection, body):
    """The answer (dict) of one /generate."""
    try:
        connection.request("POST", "/generate", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        if answer.status != 200:
            raise Failed(f"HTTP {answer.status}: {text[:300]}")
        return _checked(json.loads(text), ())
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        connection.close()
        raise Failed(repr(error)) from error


def generate_stream(connection, body, leave_after=None):
    """The same as events; with `leave_after` the connection is cut once that many tokens are there (Abandoned)."""
    tokens, last = [], None
    try:
        connection.request("POST", "/generate", json.dumps(dict(body, stream=True)))
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(f"HTTP {answer.status}: {answer.read(300)!r}")
        while True:
            line = answer.readline()
            if not line:
                raise Failed("the stream was cut off", tokens)
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                answer.read()
                break
            last = json.loads(line[6:])
            tokens = last.get("output_ids", tokens)
            if leave_after is not None and len(tokens) >= leave_after:
                raise Abandoned(tokens)
        if last is None:
            raise Failed("a stream without events")
        return _checked(last, tokens)
    except (Abandoned, Failed):
        connection.close()
        raise
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        connection.close()
        raise Failed(repr(error), tokens) from error
