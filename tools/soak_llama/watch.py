# SPDX-License-Identifier: Apache-2.0
"""Samples of both processes of each pair, their counters and files; llama-servers that end by themselves."""

from soak import http, watch
from soak.clock import CLOCK
from soak_llama import pairs, settings

NOTICED_SECONDS = 2.5  # a look, and the time until the next one
FILES_EVERY = 3  # looks


def parse_metrics(text):
    """Ours of a Prometheus text: name with labels -> number."""
    lines = [line for line in text.splitlines() if line.startswith("larder_")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


class Watch(watch.Watch):
    def __init__(self, ledger, all_pairs):
        super().__init__(ledger, [process for pair in all_pairs for process in pair.processes])
        self._pairs = {process.name: pair for pair in all_pairs for process in pair.processes}
        self._looks = {pair.name: 0 for pair in all_pairs}
        self.most_stored = {pair.name: 0 for pair in all_pairs}

    def _look_at(self, child):
        pair = self._pairs[child.name]
        if child is pair.server:
            if child.look() and not self._ledger.is_excused(pair.name, CLOCK.now() - NOTICED_SECONDS, CLOCK.now()):
                self._ledger.fail(f"{pair.name}: its llama-server ended by itself\n{pair.proxy.log_tail()}")
        else:
            self._looks[pair.name] += 1
            if self._looks[pair.name] % FILES_EVERY == 0:
                self.look_at_files(pair)
        super()._look_at(child)

    def look_at_files(self, pair):
        self.most_stored[pair.name] = max(self.most_stored[pair.name], pairs.size_of(pair.plan.store))
        for words in pairs.why_too_much(pair.plan, pair.server.folder, settings.SLOTS):
            self._ledger.fail(words)

    @staticmethod
    def ask(child):
        life = child.life
        try:
            status, text = http.call(child.port, "GET", "/metrics", timeout=1)
        except http.Failed:
            return  # it is paused, or was just killed
        if status == 200:
            life.counters = parse_metrics(text)
