# SPDX-License-Identifier: Apache-2.0
"""Conversations, and what the answers must be.

A script is a beginning that some scripts share, and the tokens that its user says turn by turn. The engine is
deterministic, so the answers are fixed, too: a server that keeps nothing says them once, before the soak. A script is
held again and again under new salts: the same answers, but other keys in every tier.
"""

import concurrent.futures
import random

from soak import http

BEGINNINGS = 3
BEGINNING_TOKENS = 200
ANSWER_TOKENS = 24
REFERENCE_CLIENTS = 4


class Script:
    """Of one model. answers[t] is what follows prompt(t)."""

    def __init__(self, model, number, seed, turns, vocabulary):
        draw = random.Random(f"{seed}/{model}/{number}")
        shared = random.Random(f"{seed}/{model}/beginning {number % BEGINNINGS}")
        self.model, self.number = model, number
        self._beginning = [shared.randrange(vocabulary) for _ in range(BEGINNING_TOKENS)]
        self._said = [[draw.randrange(vocabulary) for _ in range(draw.randint(40, 130))] for _ in range(turns)]
        self.answers = []
        # Half of them greedy, half sampled: a draw depends on seed and position only.
        self._sampling = {"max_new_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
        if number % 2:
            self._sampling.update(temperature=0.8, sampling_seed=number)

    @property
    def turns(self):
        return len(self._said)

    def prompt(self, turn):
        out = list(self._beginning)
        for t in range(turn + 1):
            out += self._said[t]
            if t < turn:
                out += self.answers[t]
        return out

    def body(self, turn, salt=None):
        body = {"input_ids": self.prompt(turn), "sampling_params": self._sampling}
        return body if salt is None else dict(body, cache_salt=salt)


def learn(scripts, port):
    """Asks the server at `port`, which keeps nothing, for all answers."""

    def converse(script):
        connection = http.Connection(port)
        for turn in range(script.turns):
            script.answers.append(http.generate(connection, script.body(turn))["output_ids"])
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(REFERENCE_CLIENTS) as pool:
        list(pool.map(converse, scripts))


def wrong_token(expected, tokens, is_complete):
    """None, or words about the first token that is not what it must be. Without `is_complete` a beginning will do."""
    for position, (want, got) in enumerate(zip(expected, tokens)):
        if want != got:
            return f"token {position} of the answer is {got}, and must be {want}"
    if len(tokens) > len(expected):
        return f"{len(tokens)} tokens, {len(expected)} were asked for"
    if is_complete and len(tokens) < len(expected):
        return f"only {len(tokens)} of {len(expected)} tokens"
    return None
