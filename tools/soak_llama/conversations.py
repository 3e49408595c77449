# SPDX-License-Identifier: Apache-2.0
"""Conversations, and what a plain llama-server answered.

A script is a system prompt that some scripts share, and what its user says turn by turn; every second one is a branch,
which leaves the script before it in the middle of a turn. Greedy tokens of one model are fixed, so a plain llama-server
says them once, before the soak, each prompt computed as a whole. A script is held again and again under new salts.
"""

import concurrent.futures
import json
import random
import threading

from soak import http
from soak_llama import asking

SYSTEMS = 2
SYSTEM_CHARACTERS = 700
ANSWER_TOKENS = 16
KEEPS_NOTHING = {"cache_prompt": False}


class Plain:
    """A llama-server without a proxy, which is asked one thing at a time."""

    def __init__(self, port):
        self._port, self._lock = port, threading.Lock()

    def _json(self, target, body):
        status, text = http.call(self._port, "POST", target, body)
        if status != 200:
            raise http.Failed(f"POST {target} of the plain llama-server: HTTP {status}: {text[:300]}")
        return json.loads(text)

    def tokens_of_chat(self, messages):
        prompt = self._json("/apply-template", {"messages": messages})["prompt"]
        return self._json("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]

    def go_on(self, prompt, count):
        """What follows these tokens: asking.Said of each."""
        with self._lock:
            connection = http.Connection(self._port)
            try:
                return asking.ask(connection, asking.completion(prompt, count, **KEEPS_NOTHING)).said
            finally:
                connection.close()


def _text(draw, length):
    return "".join(chr(draw.choice(asking.ALLOWED)) for _ in range(length))


class Script:
    """Of one model. prompts[t] are the tokens of a turn, answers[t] what a plain llama-server said to them."""

    def __init__(self, model, number, seed, turns):
        draw = random.Random(f"{seed}/{model}/{number}")
        self.model, self.number = model, number
        self.is_chat = number % 4 >= 2  # pairs of scripts, so that a branch is of the same kind
        system = random.Random(f"{seed}/{model}/system {number // 4 % SYSTEMS}")
        self._system = _text(system, SYSTEM_CHARACTERS)
        self._said = [_text(draw, draw.randint(40, 170)) for _ in range(turns)]
        if number % 2:
            self._leave(Script(model, number - 1, seed, turns), turns // 2)
        self.prompts, self.answers = [], []

    def _leave(self, other, turn):
        """The same as the other until the middle of a turn."""
        said = other._said[turn]
        self._said[:turn] = other._said[:turn]
        self._said[turn] = said[:len(said) // 2] + self._said[turn]

    @property
    def turns(self):
        return len(self._said)

    def _answer(self, turn):
        return "".join(chr(one.token) for one in self.answers[turn])

    def _messages(self, turn):
        out = [{"role": "system", "content": self._system}]
        for t in range(turn + 1):
            out.append({"role": "user", "content": self._said[t]})
            if t < turn:
                out.append({"role": "assistant", "content": self._answer(t)})
        return out

    def _tokens(self, turn):
        text = self._system
        for t in range(turn + 1):
            text += self._said[t] + (self._answer(t) if t < turn else "")
        return [ord(character) for character in text]  # the test models' tokens are bytes

    def question(self, turn, **more):
        """(path, body) of a turn."""
        if self.is_chat:
            return asking.chat(self._messages(turn), ANSWER_TOKENS, **more)
        return asking.completion(self.prompts[turn], ANSWER_TOKENS, **more)

    def learn(self, plain):
        for turn in range(self.turns):
            self.prompts.append(plain.tokens_of_chat(self._messages(turn)) if self.is_chat else self._tokens(turn))
            self.answers.append(plain.go_on(self.prompts[turn], ANSWER_TOKENS))


def scripts_of(options, name):
    return [Script(name, number, options.seed, options.turns) for number in range(options.conversations)]


def learn(groups):
    """groups: (plain, scripts) of each model, which are asked at the same time."""

    def one(group):
        plain, scripts = group
        for script in scripts:
            script.learn(plain)

    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(one, groups))
