# SPDX-License-Identifier: Apache-2.0
"""Conversations of several turns with a server that speaks SGLang's /generate, and what became of each turn.

The requests are those of SGLang's benchmark/hicache/bench_multiturn.py, which is not in SGLang's wheel: streamed, with
greedy sampling; each prompt is the whole conversation so far and something new, as text or as token ids.

Only the first and the last event of an answer are parsed, and only after the first one's time was taken: parsing is
not part of a TTFT.
"""

import collections
import dataclasses
import http.client
import json
import random
import string
import threading
import time
import urllib.parse

TIMEOUT_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Load:
    """How many conversations there are, and how long they are; lengths in tokens."""

    clients: int
    rounds: int
    new_tokens: int
    output_tokens: int
    parallel: int
    is_text: bool = False
    seed: int = 1
    vocabulary: int = 256

    def prompt_tokens(self, turn):
        """Length of the prompt of this turn."""
        return turn * (self.new_tokens + self.output_tokens) + self.new_tokens

    def reusable_tokens(self, turn, page):
        """Of that prompt, what the turn before has left in the cache: whole pages; its last token was never fed."""
        return (self.prompt_tokens(turn - 1) + self.output_tokens - 1) // page * page if turn else 0

    def fresh(self, client, turn):
        """What a client adds in a turn. A character of text is one token of Larder's."""
        source = random.Random(f"{self.seed} {client} {turn}")
        if self.is_text:
            return "".join(source.choices(string.ascii_letters, k=self.new_tokens))
        return [source.randrange(self.vocabulary) for _ in range(self.new_tokens)]


@dataclasses.dataclass
class Turn:
    """One request and its answer; times in seconds.

    `ttft` is what the client saw. `server_ttft` is the share that the server's scheduler saw, from its taking the
    request to the first token; `queue` is the part of that before the request started: it waited for storage, or for
    room on the device.
    """

    client: int
    round: int
    prompt_tokens: int
    cached: int
    device: int
    host: int
    storage: int
    ttft: float
    server_ttft: float
    queue: float
    output: list | str


def _body(prompt, output_tokens):
    kind = "text" if isinstance(prompt, str) else "input_ids"
    sampling = {"temperature": 0.0, "max_new_tokens": output_tokens, "ignore_eos": True}
    return json.dumps({kind: prompt, "sampling_params": sampling, "stream": True, "lora_path": "",
                       "return_logprob": False, "logprob_start_len": -1})


def _events(reply):
    for line in reply:
        if line.startswith(b"data: "):
            yield line[len(b"data: "):]


def _last(events):
    """The event before the end of the stream."""
    last = None
    for event in events:
        if event.startswith(b"[DONE]"):
            return json.loads(last)
        last = event
    raise AssertionError(f"the stream ended without [DONE], after {last!r}")


def ask(url, prompt, output_tokens=1):
    """One request alone, over a connection of its own."""
    connection = _connect(url)
    try:
        return _ask(connection, 0, 0, prompt, output_tokens)
    finally:
        connection.close()


def _connect(url):
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)


def _ask(connection, client, number, prompt, output_tokens):
    begun = time.perf_counter()
    connection.request("POST", "/generate", _body(prompt, output_tokens), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    events = _events(reply)
    first = next(events)
    ttft = time.perf_counter() - begun
    answer = _last([first, *events])
    reply.read()
    meta = answer["meta_info"]
    details = meta["cached_tokens_details"]
    is_text = isinstance(prompt, str)
    return Turn(client, number, meta["prompt_tokens"], meta["cached_tokens"], details["device"], details["host"],
                details.get("storage", 0), ttft, meta["ttft"], meta["queue_time"],
                answer["text"] if is_text else answer["output_ids"])


class _Run:
    """The turns that may be sent, oldest first, and those that are done; any thread."""

    def __init__(self, load):
        self.load = load
        self.changed = threading.Condition()
        self.ready = collections.deque((client, 0, load.fresh(client, 0)) for client in range(load.clients))
        self.left = load.clients * load.rounds
        self.done = []
        self.failure = None

    def take(self):
        """The next turn, as (client, round, prompt); None when all are done or one has failed."""
        with self.changed:
            self.changed.wait_for(lambda: self.ready or not self.left or self.failure)
            return self.ready.popleft() if self.left and not self.failure else None

    def end(self, turn, prompt):
        with self.changed:
            self.done.append(turn)
            self.left -= 1
            if turn.round + 1 < self.load.rounds:
                following = turn.round + 1
                prompt = prompt + turn.output + self.load.fresh(turn.client, following)
                self.ready.append((turn.client, following, prompt))
            self.changed.notify_all()

    def fail(self, error):
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def work(self, url):
        connection = _connect(url)
        try:
            while (next_turn := self.take()) is not None:
                client, number, prompt = next_turn
                self.end(_ask(connection, client, number, prompt, self.load.output_tokens), prompt)
        except Exception as error:  # told by converse(), in the caller's thread
            self.fail(error)
        finally:
            connection.close()


def converse(url, load):
    """Holds all conversations and returns their turns, by (round, client). Raises what the first failed turn raised."""
    run = _Run(load)
    threads = [threading.Thread(target=run.work, args=(url,)) for _ in range(load.parallel)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if run.failure:
        raise run.failure
    return sorted(run.done, key=lambda turn: (turn.round, turn.client))
