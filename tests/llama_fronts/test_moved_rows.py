# SPDX-License-Identifier: Apache-2.0
"""Rows that llama-server moves, in a full context or from elsewhere in a prompt, are restored into no prompt."""

import pytest

from servers import LlamaServer, Proxy

SERVER = ("-np", 1, "-b", 64, "-ub", 64)
WAYS = ["option", "variable", "upstream"]


@pytest.fixture
def fronts(start, tmp_path, monkeypatch):
    """A proxy whose llama-server has an option, in each of the ways in which it may have it."""

    def run(path, way, variable, option, *more, options=()):
        if way == "variable":
            monkeypatch.setenv(variable, str(option[1]) if len(option) > 1 else "1")
            return start(Proxy(path, *SERVER, *more))
        if way == "option":
            return start(Proxy(path, *SERVER, *more, *option))
        upstream = start(LlamaServer(path, *SERVER, *more, *option, slots=f"{tmp_path}/"))
        return start(Proxy(upstream=upstream.url, slots=tmp_path, options=options))

    return run


def assert_same(answer, plain, prompt):
    expected = plain.complete(prompt, 8, cache_prompt=False)
    same = min(expected.certain(), answer.certain())
    assert same > 0 and answer.tokens[:same] == expected.tokens[:same]
    (ours, theirs) = (one.body["completion_probabilities"][0]["logprob"] for one in (answer, expected))
    assert ours == pytest.approx(theirs, abs=0.02)


def check_restored(proxy, plain, prompt, other):
    """What is kept of the prompt gives the answer of a server that has computed it."""
    proxy.wait_stored()
    proxy.complete(other)
    answer = proxy.complete(prompt, 8)
    assert answer.source == "host" and answer.reused >= 192, (answer.source, answer.reused)
    assert_same(answer, plain, prompt)


@pytest.mark.parametrize("way", [*WAYS, "request"])
def test_chunks_from_elsewhere_in_a_prompt(way, fronts, model, start, tokens):
    path, size = model("qwen3"), ("-c", 4096)
    plain = start(LlamaServer(path, *SERVER, *size, "--cache-reuse", 64))
    head, middle, tail = tokens(128, 1), tokens(128, 2), tokens(256, 3)
    whole, without = head + middle + tail, head + tail
    plain.complete(whole)
    assert plain.complete(without).cached > 256, "this server moves rows"

    option, fields = ("--cache-reuse", 64), {}
    if way == "request":
        option, fields = (), {"n_cache_reuse": 64}
    proxy = fronts(path, "option" if way == "request" else way, "LLAMA_ARG_CACHE_REUSE", option, *size)
    proxy.complete(whole, **fields)
    answer = proxy.complete(without, 8, **fields)
    assert answer.cached == answer.reused == 128
    assert_same(answer, plain, without)
    check_restored(proxy, plain, without, tokens(500, 4))


# All tokens are the same one, so those of a shifted slot look like those of a prompt.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [{"n_predict": 500}, {"n_predict": -1, "max_tokens": 5}, {"stream": True}])
def test_a_context_that_was_shifted(way, limit, fronts, model, start, tokens):
    path, size = model("qwen3"), ("-c", 512)
    plain = start(LlamaServer(path, *SERVER, *size, "--context-shift"))
    prompt, longer = [65] * 200, [65] * 330
    fill = {"prompt": prompt, "grammar": 'root ::= "A"{450}', "temperature": 0, **limit}
    assert plain.post("/completion", fill)[0] == 200
    assert plain.complete(longer).cached > 220, "this server uses what it has shifted"

    proxy = fronts(path, way, "LLAMA_ARG_CONTEXT_SHIFT", ("--context-shift",), *size, options=("--context-shift",))
    assert proxy.post("/completion", fill)[0] == 200
    answer = proxy.complete(longer, 8)
    assert answer.reused <= 192, "the pages of the first prompt, which were kept before its answer"
    assert_same(answer, plain, longer)
    check_restored(proxy, plain, longer, tokens(300, 4))
