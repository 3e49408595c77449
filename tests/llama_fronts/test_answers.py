# SPDX-License-Identifier: Apache-2.0
"""Answers through the proxy are those of llama-server alone, whatever of their prompts was reused.

Both compute in batches of 64 tokens that begin at multiples of 64, or another split of the same prompt would round
otherwise. Tokens are compared as long as each is likelier than the next one by more than rounding; then the next
request of the conversation goes on from what llama-server alone has said.
"""

import concurrent.futures
import random

import pytest

from servers import LlamaServer, Proxy

BATCHES = ("-b", 64, "-ub", 64, "--ctx-checkpoints", 0)
ROUNDS, COUNT = 8, 12


class Conversations:
    """Turns of several at once; what each prompt must be followed by."""

    def __init__(self, plain, system, number, seed):
        self.plain = plain
        self.source = random.Random(seed)
        self.histories = [list(system) for _ in range(number)]
        self.compared = self.all = 0

    def fresh(self, count):
        return [self.source.randrange(256) for _ in range(count)]

    def round(self, proxy, parallel):
        for history in self.histories:
            history += self.fresh(self.source.randrange(20, 200))
        with concurrent.futures.ThreadPoolExecutor(parallel) as threads:
            answers = list(threads.map(lambda history: proxy.complete(history, COUNT), self.histories))
        for history, answer in zip(self.histories, answers):
            self.compare(history, answer)
        return answers

    def compare(self, history, answer):
        expected = self.plain.complete(history, COUNT, cache_prompt=False)
        same = min(expected.certain(), answer.certain())
        assert answer.tokens[:same] == expected.tokens[:same], f"after {len(history)} tokens, {answer.reused} reused"
        self.compared += same
        self.all += COUNT
        history += expected.tokens


@pytest.mark.parametrize("kind", ["qwen3next", "gemma3", "qwen35"])
def test_ten_conversations_on_four_slots(kind, model, start, tokens, tmp_path):
    path = model(kind)
    plain = start(LlamaServer(path, "-c", 4096, "-np", 1, *BATCHES))
    server = ("-c", 16384, "-np", 4, *BATCHES)
    proxy = start(Proxy(path, *server, store=tmp_path))
    talks = Conversations(plain, tokens(640, 1), 10, 7)
    reused = 0
    for number in range(ROUNDS):
        answers = talks.round(proxy, 4)
        reused += sum(answer.reused for answer in answers)
        if number == 3:
            proxy.wait_stored()
            proxy.kill_both()  # all that was kept comes from storage
            proxy = start(Proxy(path, *server, store=tmp_path))
        if number == 5:
            lose_server(proxy)
    assert talks.compared > 0.6 * talks.all, "too few tokens were certain: the test says little"
    assert reused > 0.6 * sum(len(history) for history in talks.histories)


def lose_server(proxy):
    """llama-server dies alone; the proxy starts it again and proves it."""
    import os
    import signal

    old = proxy.server_pid()
    proxy.wait_stored()
    os.kill(old, signal.SIGKILL)
    proxy.wait_until(lambda: children(proxy) not in ([], [old]) and proxy.get("/health")[0] == 200, 60)


def children(proxy):
    from servers import children_of

    return children_of(proxy.process.pid)


def test_a_lost_server_is_an_error_and_then_it_is_back(model, start, tokens):
    proxy = start(Proxy(model("qwen3next"), "-c", 8192, "-np", 1))
    a = tokens(2000, 1)
    before = proxy.complete(a, COUNT)
    proxy.complete(tokens(500, 2))
    proxy.wait_stored()
    lose_server(proxy)
    after = proxy.complete(a, COUNT)
    assert (after.reused, after.source) == (1984, "host")
    certain = min(before.certain(), after.certain())
    assert after.tokens[:certain] == before.tokens[:certain]
    assert proxy.metrics()["larder_proxy_server_losses_total"] == 1
