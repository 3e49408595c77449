# SPDX-License-Identifier: Apache-2.0
"""Threads that converse: the loop of soak.clients, with llama-server's requests and soak_llama.verdict."""

import threading

from soak import clients, http
from soak.clock import CLOCK
from soak_llama import asking, conversations, verdict


class Load(clients.Load):
    """plains: the plain llama-server of each model. furthest: the largest difference of a log probability so far."""

    def __init__(self, options, ledger, groups, plains):
        super().__init__(options, ledger, groups)
        self.plains, self.furthest = plains, 0.0
        self._lock_furthest = threading.Lock()
        self._is_to_corrupt = options.corrupt_token

    def note(self, difference):
        with self._lock_furthest:
            self.furthest = max(self.furthest, difference)

    def takes_corruption(self):
        """True once."""
        with self._lock_furthest:
            was, self._is_to_corrupt = self._is_to_corrupt, False
        return was


class Client(clients.Client):
    def ask(self, child, script, turn, salt):
        """True: answered, and right (or wrong, which has been said)."""
        is_stream = self.draw.random() < 0.5
        leave_after = None
        if is_stream and self.draw.random() < 0.2:
            leave_after = self.draw.randint(1, conversations.ANSWER_TOKENS - 1)
        begun = CLOCK.now()
        kind = ("chat" if script.is_chat else "tokens") + (", a stream" if is_stream else "")
        what = f"{child.name}: script {script.number}, turn {turn}, salt {salt}, {kind}"
        try:
            answer = asking.ask(self.connection(child), script.question(turn, cache_salt=salt), leave_after, is_stream)
        except http.Abandoned as left:
            self.ledger.count(child.name, "abandoned")
            self._check(child, what, script, turn, left.tokens, False)
            return False  # asked again, to the end
        except http.Failed as failed:
            self._check(child, what, script, turn, failed.tokens, False)
            if self.ledger.request_failed(child.name, begun, f"{what}: {failed}"):
                self.ledger.is_over.wait(clients.RETRY_SECONDS)
            return False
        self.ledger.request_done(CLOCK.now() - begun)
        self.ledger.count(child.name, "requests")
        self._note_reuse(child, begun, what, answer)
        said = answer.said
        if self.load.takes_corruption():
            said = verdict.corrupted(said, script.answers[turn], len(said) // 2, verdict.ROUNDING[script.model])
        self._check(child, f"{what}, {answer.reused} tokens from {answer.source}", script, turn, said, True)
        return True

    def _note_reuse(self, child, begun, what, answer):
        """Whoever asks while llama-server comes back may be answered without the cache; others not."""
        if answer.reused is not None:
            return
        self.ledger.count(child.name, "without the cache")
        if not self.ledger.is_excused(child.name, begun, CLOCK.now()):
            self.ledger.fail(f"{what}: outside every window it was answered without the cache")

    def _check(self, child, what, script, turn, said, is_complete):
        plain = self.load.plains[child.name]
        found = verdict.judge(script.prompts[turn], script.answers[turn], said, is_complete, plain.go_on,
                              verdict.ROUNDING[script.model])
        self.load.note(found.furthest)
        self.ledger.count(child.name, "ties", found.ties)
        if found.wrong:
            self.ledger.count(child.name, "wrong answers")
            self.ledger.fail(f"WRONG TOKEN from {what}: {found.wrong}")
        else:
            self.ledger.count(child.name, "tokens", len(said))
