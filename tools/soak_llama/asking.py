# SPDX-License-Identifier: Apache-2.0
"""Requests to llama-server, or to the proxy before it. Errors: soak.http.Failed and Abandoned, with what had arrived.

All is greedy, and of the test models' 320 tokens only those that are letters, digits and signs may be answered: an
answer is text, and llama-server tells the probability of each token.
"""

import http.client
import json

from soak.http import Abandoned, Failed

ALLOWED = range(32, 127)
FORBIDDEN = [token for token in range(320) if token not in ALLOWED]
LISTED = 20  # likeliest tokens that are told with each
GREEDY = {"temperature": 0, "samplers": ["top_k"], "top_k": 1, "ignore_eos": True,
          "logit_bias": [[token, False] for token in FORBIDDEN]}


class Said:
    """One token of an answer. top: log probabilities of the likeliest ones."""

    def __init__(self, told):
        self.token, self.logprob = told["id"], told["logprob"]
        self.top = {one["id"]: one["logprob"] for one in told["top_logprobs"]}
        self.top.setdefault(self.token, self.logprob)


class Answer:
    """said: its tokens. reused: None if the proxy did not say so (it went on plainly, or there is no proxy)."""

    def __init__(self, said, head, slot=None):
        self.said, self.slot = said, slot
        reused = head.get("X-Larder-Reused-Tokens")
        self.reused = None if reused is None else int(reused)
        self.source = head.get("X-Larder-Reused-From")


def completion(prompt, count, **more):
    """(path, body) of tokens that go on."""
    return "/completion", {"prompt": prompt, "n_predict": count, "n_probs": LISTED, **GREEDY, **more}


def chat(messages, count, **more):
    return "/v1/chat/completions", {"messages": messages, "max_tokens": count, "logprobs": True,
                                    "top_logprobs": LISTED, **GREEDY, **more}


def _read(event):
    """(tokens, why it ended or None) of an event of a stream, or of a whole answer, of either route."""
    if "error" in event:
        raise Failed(f"error: {event['error']}")
    if "choices" in event:
        if not event["choices"]:
            return [], None
        choice = event["choices"][0]
        told = (choice.get("logprobs") or {}).get("content") or []
        return [Said(one) for one in told], choice.get("finish_reason")
    told = event.get("completion_probabilities") or []
    return [Said(one) for one in told], event.get("stop_type") if event.get("stop") else None


def _checked(said, ended, head, slot):
    if ended not in ("limit", "length"):
        raise Failed(f"it ended early: {ended}", said)
    return Answer(said, head, slot)


def ask(connection, question, leave_after=None, is_stream=False):
    """The Answer to a (path, body). leave_after: the connection is cut once that many tokens are there (Abandoned)."""
    path, body = question
    said = []
    try:
        text = json.dumps(dict(body, stream=is_stream))
        connection.request("POST", path, text, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise Failed(f"HTTP {reply.status}: {reply.read(300)!r}")
        if is_stream:
            return _read_stream(reply, said, leave_after)
        whole = json.loads(reply.read())
        told, ended = _read(whole)
        said += told
        return _checked(said, ended, reply.headers, whole.get("id_slot"))
    except (Abandoned, Failed):
        connection.close()
        raise
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        connection.close()
        raise Failed(repr(error), said) from error


def _read_stream(reply, said, leave_after):
    ended, slot = None, None
    while True:
        line = reply.readline()
        if not line or line.strip() == b"data: [DONE]":
            break
        if line.startswith(b"error: "):
            raise Failed(line.decode("utf-8", "replace").strip(), said)
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        told, end = _read(event)
        said += told
        ended, slot = end or ended, event.get("id_slot", slot)
        if leave_after is not None and len(said) >= leave_after:
            raise Abandoned(said)
    reply.read()
    return _checked(said, ended or "it was cut off", reply.headers, slot)
