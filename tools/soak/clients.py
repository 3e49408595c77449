# SPDX-License-Identifier: Apache-2.0
"""Threads that converse, and look at every token.

A client takes a script and holds it under a salt: the current one, or one of those before, whose pages have gone to
storage by then. Turns of scripts whose servers share storage go now to the one, now to the other. Some requests are
streams; some streams are abandoned half way. What fails inside a window is asked again.
"""

import random
import threading

from soak import http, prompts
from soak.clock import CLOCK

SCRIPTS_PER_SALT = 30
OLD_SALTS = 5
RETRY_SECONDS = 0.2


class Load:
    """What all clients share. groups: the lists of children that can answer for one model, with the model's scripts."""

    def __init__(self, options, ledger, groups):
        self.ledger, self.groups, self.seed = ledger, groups, options.seed
        self.pause_seconds = options.clients / options.rate
        self._lock = threading.Lock()
        self._begun = 0

    def salt(self, draw):
        with self._lock:
            self._begun += 1
            newest = self._begun // SCRIPTS_PER_SALT
        back = 0 if draw.random() < 0.5 else draw.randint(1, OLD_SALTS)
        return f"s{max(0, newest - back)}"


class Client(threading.Thread):
    """Whoever talks to other servers has another ask() (tools/soak_llama)."""

    def __init__(self, number, load):
        super().__init__(name=f"client {number}", daemon=True)
        self._number, self.load, self.ledger = number, load, load.ledger
        self.draw = random.Random(f"{load.seed}/client {number}")
        self._connections = {}  # server -> (life number, connection)

    def run(self):
        try:
            # The first script of each client is settled: client 0 begins with script 0 (--corrupt-token).
            children, scripts = self.load.groups[self._number % len(self.load.groups)]
            self._converse(children, scripts[0])
            while not self.ledger.is_over.is_set():
                children, scripts = self.draw.choice(self.load.groups)
                self._converse(children, self.draw.choice(scripts))
        except Exception as error:  # a mistake of the soak's own must not look like a quiet client
            self.ledger.fail(f"client {self._number} broke: {error!r}")

    def _converse(self, children, script):
        salt = self.load.salt(self.draw)
        first = 0 if self.draw.random() < 0.6 else self.draw.randrange(script.turns)
        for turn in range(first, script.turns):
            child = self.draw.choice(children)
            while not self.ledger.is_over.is_set():
                pause = self.draw.expovariate(1 / self.load.pause_seconds)
                if self.ledger.is_over.wait(min(pause, 4 * self.load.pause_seconds)):
                    return
                if self.ask(child, script, turn, salt):
                    break

    def connection(self, child):
        """Kept for some requests; never longer than the process lives."""
        number = child.life.number
        known = self._connections.get(child.name)
        if known and known[0] == number and self.draw.random() < 0.9:
            return known[1]
        if known:
            known[1].close()
        connection = http.Connection(child.port)
        self._connections[child.name] = (number, connection)
        return connection

    def ask(self, child, script, turn, salt):
        """True: answered, and right (or wrong, which has been said)."""
        expected = script.answers[turn]
        leave_after = None
        is_stream = self.draw.random() < 0.5
        if is_stream and self.draw.random() < 0.2:
            leave_after = self.draw.randint(1, prompts.ANSWER_TOKENS - 1)
        begun = CLOCK.now()
        what = f"{child.name}: {script.model}, script {script.number}, turn {turn}, salt {salt}"
        try:
            connection = self.connection(child)
            body = script.body(turn, salt)
            answer = http.generate_stream(connection, body, leave_after) if is_stream else http.generate(
                connection, body)
        except http.Abandoned as left:
            self.ledger.count(child.name, "abandoned")
            self._check(child, what, expected, left.tokens, False)
            return False  # asked again, to the end
        except http.Failed as failed:
            self._check(child, what, expected, failed.tokens, False)
            if self.ledger.request_failed(child.name, begun, f"{what}: {failed}"):
                self.ledger.is_over.wait(RETRY_SECONDS)
            return False
        self.ledger.request_done(CLOCK.now() - begun)
        self.ledger.count(child.name, "requests")
        self._check(child, what + f", cached {answer['meta_info'].get('cached_tokens_details')}", expected,
                    answer["output_ids"], True)
        return True

    def _check(self, child, what, expected, tokens, is_complete):
        wrong = prompts.wrong_token(expected, tokens, is_complete)
        if wrong:
            self.ledger.count(child.name, "wrong answers")
            self.ledger.fail(f"WRONG TOKEN from {what}: {wrong}")
        else:
            self.ledger.count(child.name, "tokens", len(tokens))
