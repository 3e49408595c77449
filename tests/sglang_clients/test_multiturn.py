# SPDX-License-Identifier: Apache-2.0
"""Conversations as SGLang's bench_multiturn.py holds them, and what the cache does for the time to the first token.

Times are compared only with times of the same run on the same machine, request after request, and the bounds are far
from what is usual (it is beside each): other load on the machine may not fail a test.
"""

import contextlib
import random
import statistics

import pytest
from conversations import Load, ask, converse
from larder_server import LarderServer
from storage_tiers import BACKENDS, storage_options

PAGE = 64


def larder(*options):
    return LarderServer("--model", "gdn-tiny", "--page-size", PAGE, *options)


def random_prompts(count, tokens):
    source = random.Random(7)
    return [[source.randrange(256) for _ in range(tokens)] for _ in range(count)]


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "ids"])
def test_every_turn_reuses_all_pages_of_the_turn_before(is_text):
    load = Load(clients=4, rounds=5, new_tokens=100, output_tokens=30, parallel=2, is_text=is_text)
    with larder() as server:
        turns = converse(server.url, load)
        server.flush()
        again = converse(server.url, load)
    with larder("--disable-radix-cache") as server:
        computed = converse(server.url, load)
    for turn in turns:
        assert turn.prompt_tokens == load.prompt_tokens(turn.round)
        assert turn.cached == load.reusable_tokens(turn.round, PAGE), turn
    assert [turn.cached for turn in again] == [turn.cached for turn in turns], "the flush left something"
    assert not any(turn.cached for turn in computed)
    assert [turn.output for turn in turns] == [turn.output for turn in computed] == [turn.output for turn in again]


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_run_has_its_first_token_sooner(backend, tmp_path):
    """From the device, and from storage after a flush; here both take about 0.05 of the first run's time."""
    from_device, from_storage = [], []
    prompts = random_prompts(5, 4096)
    with larder(*storage_options(backend, tmp_path)) as server:
        for prompt in prompts:
            first = ask(server.url, prompt)
            second = ask(server.url, prompt)
            server.ask("/quiesce?timeout=60", method="POST")
            server.flush()
            third = ask(server.url, prompt)
            assert (first.cached, second.device, third.storage) == (0, 4032, 4032)
            assert first.output == second.output == third.output
            from_device.append(second.ttft / first.ttft)
            from_storage.append(third.ttft / first.ttft)
    assert statistics.median(from_device) < 0.5, from_device
    assert statistics.median(from_storage) < 0.5, from_storage


def test_without_the_cache_the_second_run_is_no_sooner():
    """The test above measures the cache and nothing else."""
    with larder("--disable-radix-cache") as server:
        ratios = []
        for prompt in random_prompts(3, 4096):
            first = ask(server.url, prompt)
            ratios.append(ask(server.url, prompt).ttft / first.ttft)
    assert 0.5 < statistics.median(ratios) < 2, ratios


def test_late_rounds_keep_their_ttft():
    """A turn computes what is new, not the conversation: here a fifth of the time that it takes without the cache."""
    ratios = []
    with larder() as cached, larder("--disable-radix-cache") as computing:
        for seed in range(3):
            load = Load(clients=1, rounds=9, new_tokens=480, output_tokens=8, parallel=1, seed=seed)
            with_cache, without = (converse(server.url, load)[-1] for server in (cached, computing))
            assert with_cache.cached == load.reusable_tokens(8, PAGE)
            assert with_cache.output == without.output
            ratios.append(with_cache.ttft / without.ttft)
    assert statistics.median(ratios) < 0.5, ratios


def test_what_waits_for_the_device_says_so():
    """Where the device has room for two of four requests, the others wait for an end: that is in their queue time.

    Here the median request waits 20 to 140 times as long as where all four have room.
    """
    load = Load(clients=12, rounds=1, new_tokens=256, output_tokens=256, parallel=4)
    with contextlib.ExitStack() as servers:
        narrow, wide = (servers.enter_context(larder("--max-total-tokens", tokens)) for tokens in (1152, 16384))
        turns = {server: converse(server.url, load) for server in (narrow, wide)}
    queue = {server: statistics.median(turn.queue for turn in turns[server]) for server in turns}
    assert queue[narrow] > 3 * queue[wide], queue.values()
    share = statistics.median(turn.queue / turn.ttft for turn in turns[narrow])
    assert share > 0.5, share
