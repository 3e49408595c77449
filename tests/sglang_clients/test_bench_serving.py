# SPDX-License-Identifier: Apache-2.0
"""SGLang's own benchmark clients against `larder serve`."""

import clients
import pytest
from larder_server import LarderServer

PAGE = 64
REQUESTS = 5
PROMPT_TOKENS = 500
OUTPUT_TOKENS = 16

LENGTHS = ("--num-prompts", REQUESTS, "--random-input-len", PROMPT_TOKENS, "--random-output-len", OUTPUT_TOKENS,
           "--random-range-ratio", 1.0)


def reusable(prompt_tokens):
    """Of a prompt that came before: whole pages, and the last token is always computed."""
    return (prompt_tokens - 1) // PAGE * PAGE


class Counters:
    """Prompt tokens that a server took and reused since the last look."""

    def __init__(self, server):
        self.server = server
        self.before = self._read()

    def _read(self):
        return (self.server.metric("sglang:prompt_tokens_total"),
                self.server.metric("sglang:cached_tokens_total", cache_source="total"))

    def look(self):
        """(prompt tokens, cached tokens) since the last look."""
        now = self._read()
        change = (now[0] - self.before[0], now[1] - self.before[1])
        self.before = now
        return change


@pytest.mark.parametrize("backend, options", [
    ("sglang", ("--dataset-name", "random")),
    ("sglang", ("--dataset-name", "random-ids", "--tokenize-prompt")),
    ("sglang-oai", ("--dataset-name", "random")),
    ("sglang-oai-chat", ("--dataset-name", "random")),
], ids=["generate-text", "generate-ids", "completions", "chat"])
def test_requests_once_and_again(server, benchmark, conversations_file, backend, options):
    everywhere = ("--backend", backend, "--dataset-path", conversations_file, *options, *LENGTHS)
    counters = Counters(server)

    # The clients send a prompt for a warm-up first; the flush lets nothing of it stay.
    cold = benchmark(server, "--flush-cache", *everywhere)
    clients.check_figures(cold, REQUESTS, OUTPUT_TOKENS)
    taken, cached = counters.look()
    length = taken / (REQUESTS + 1)
    assert length == PROMPT_TOKENS or backend == "sglang-oai-chat" and length > PROMPT_TOKENS
    assert cached == 0
    assert cold["cache_report"]["total_cached_tokens"] == 0

    warm = benchmark(server, *everywhere)
    clients.check_figures(warm, REQUESTS, OUTPUT_TOKENS)
    assert warm["generated_texts"] == cold["generated_texts"]
    taken, cached = counters.look()
    assert (taken, cached) == ((REQUESTS + 1) * length, (REQUESTS + 1) * reusable(length))
    assert warm["cached_tokens"] == [reusable(length)] * REQUESTS
    assert warm["cache_report"]["device_cached_tokens"] == REQUESTS * reusable(length)


def test_rust_client(server, tokenizer, tmp_path, monkeypatch):
    options = ("--backend", "sglang", "--dataset-name", "random-ids", *LENGTHS, "--tokenizer",
               tokenizer / "tokenizer.json", "--seed", 1)
    counters = Counters(server)
    results = [clients.run(clients.RUST_CLIENT, server.url, tmp_path, *options, monkeypatch=monkeypatch)
               for _ in range(2)]
    for result in results:
        clients.check_figures(result, REQUESTS, OUTPUT_TOKENS)
    taken, cached = counters.look()
    # Its first warm-up has the first prompt; every later request was there before.
    assert taken == 2 * (REQUESTS + 1) * PROMPT_TOKENS
    assert cached == (REQUESTS + 2) * reusable(PROMPT_TOKENS)
    assert results[0]["generated_texts"] == results[1]["generated_texts"]


@pytest.mark.parametrize("model, second_hit", [("gqa-tiny", 512), ("gdn-tiny", 0)])
def test_shared_system_prompts(benchmark, model, second_hit):
    """A hybrid model's second prompt shows where the first two part; from the third on there is a checkpoint there."""
    groups = 2
    options = ("--backend", "sglang", "--dataset-name", "generated-shared-prefix", "--gsp-num-groups", groups,
               "--gsp-prompts-per-group", 4, "--gsp-system-prompt-len", 512, "--gsp-question-len", 100,
               "--gsp-output-len", 8, "--gsp-ordered", "--max-concurrency", 1, "--flush-cache")
    with LarderServer("--model", model, "--page-size", PAGE) as server:
        result = benchmark(server, *options)
    clients.check_figures(result, 4 * groups, 8)
    assert result["cached_tokens"] == [0, second_hit, 512, 512] * groups


def test_turns_of_chats(server, benchmark):
    """The answer that comes back as text in the next turn is found in the cache."""
    chats, turns, question, answer = 3, 4, 100, 8
    counters = Counters(server)
    result = benchmark(server, "--backend", "sglang-oai-chat", "--dataset-name", "generated-shared-prefix",
                       "--gsp-num-groups", chats, "--gsp-prompts-per-group", 1, "--gsp-system-prompt-len", 64,
                       "--gsp-question-len", question, "--gsp-output-len", answer, "--gsp-num-turns", turns,
                       "--warmup-requests", 0)
    clients.check_figures(result, chats * turns, answer)
    taken, cached = counters.look()
    frame = 4  # tokens around the messages of a turn
    growth = question + answer + frame
    first = taken / chats / turns - growth * (turns - 1) / 2
    prompts = [first + turn * growth for turn in range(turns)]
    assert first == 64 + 2 + question + frame
    assert cached == chats * sum((prompt + answer - 1) // PAGE * PAGE for prompt in prompts[:-1])
