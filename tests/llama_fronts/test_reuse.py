# SPDX-License-Identifier: Apache-2.0
"""What of a prompt is not computed anew, for each kind of model: the rows of docs/llama_cpp.md."""

import pytest

from servers import Proxy, Serve

PAGE = 64
SERVER = ("-c", 8192, "-np", 1)
KINDS = ["qwen3next", "falcon-h1", "gemma3", "mamba2", "lfm2", "gpt-oss"]


@pytest.mark.parametrize("kind", KINDS)
def test_branches_and_restarts(kind, model, start, tokens, tmp_path):
    proxy = start(Proxy(model(kind), *SERVER, store=tmp_path))
    a, other = tokens(3000, 1), tokens(3000, 9)

    def ask(prompt):
        answer = proxy.complete(prompt)
        return answer.reused

    assert ask(a) == 0
    assert ask(a) >= 2944  # the slot itself, or the page before its end
    assert ask(a + tokens(100, 2)) >= 2944
    assert ask(a[:1000] + tokens(2000, 4)) == 0  # nobody has been there: it becomes a restore point now
    proxy.wait_stored()
    assert ask(a[:1000] + tokens(2000, 5)) == 960
    assert ask(a) == 2944
    assert ask(other) == 0
    assert ask(a + tokens(100, 2)) == 3072
    assert ask(other[:2944] + tokens(56, 10)) >= 2944
    proxy.wait_stored()

    proxy.kill_both()
    proxy = start(Proxy(model(kind), *SERVER, store=tmp_path))
    answer = proxy.complete(a + tokens(150, 2))
    assert (answer.reused, answer.source) == (3072, "storage")
    assert ask(a[:2000] + tokens(1000, 7)) == 960  # the nearest one below
    proxy.wait_stored()
    assert ask(a[:2000] + tokens(1000, 8)) == 1984


def test_a_dense_model_shares_pages_and_survives_restarts(model, start, tokens, tmp_path):
    proxy = start(Proxy(model("qwen3"), *SERVER, store=tmp_path))
    a = tokens(3000, 1)
    assert proxy.complete(a).reused == 0
    assert proxy.complete(a[:1000] + tokens(2000, 4)).reused == 1000  # the slot rolls back
    proxy.wait_stored()
    assert proxy.complete(a).reused == 2944
    proxy.wait_stored()
    proxy.kill_both()
    proxy = start(Proxy(model("qwen3"), *SERVER, store=tmp_path))
    answer = proxy.complete(a[:2000] + tokens(1000, 7))
    assert (answer.reused, answer.source) == (1984, "storage")


def test_a_system_prompt_is_a_restore_point_before_anybody_else_came(model, start):
    proxy = start(Proxy(model("qwen3next"), *SERVER))
    system = "You keep the larder. " * 40

    def chat(question):
        body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
                "max_tokens": 2, "temperature": 0}
        status, head, answer = proxy.post("/v1/chat/completions", body)
        assert status == 200, answer
        return int(head["X-Larder-Reused-Tokens"])

    assert chat("What is on the first shelf? " * 10) == 0
    proxy.wait_stored()
    assert chat("And in the cellar, I wonder? " * 10) >= 832 - PAGE


def test_several_slots_share_what_one_has_computed(model, start, tokens):
    for more in (("-np", 4, "-c", 16384), ("-np", 4, "-c", 16384, "--kv-unified")):
        proxy = start(Proxy(model("qwen3next"), *more))
        system = tokens(1024, 1)
        assert proxy.complete(system + tokens(500, 2)).reused == 0
        assert proxy.complete(system + tokens(500, 3)).reused == 0
        proxy.wait_stored()
        for seed in range(4, 8):
            assert proxy.complete(system + tokens(500, seed)).reused == 1024
        proxy.stop()


def test_tenants_share_nothing(model, start, tokens):
    proxy = start(Proxy(model("qwen3next"), *SERVER))
    a = tokens(1000, 1)
    assert proxy.complete(a, cache_salt="me").reused == 0
    assert proxy.complete(a, cache_salt="me").source == "slot"
    you = proxy.complete(a, cache_salt="you")
    assert you.reused == 0, "neither from the slot nor from the host"
    proxy.wait_stored()
    me = proxy.complete(a, cache_salt="me")
    assert (me.reused, me.source) == (960, "host")
    assert me.tokens == you.tokens


def test_tenants_share_nothing_in_slots_that_llama_server_chooses(model, start, tokens):
    """Of messages with a part that nobody knows, as of those with images, and of several prompts in a request."""
    proxy = start(Proxy(model("qwen3"), "-c", 8192, "-np", 2))
    content = [{"type": "text", "text": "On which shelf? " * 40}, {"type": "document"}]
    message = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    prompts = {"prompt": [tokens(600, 1), tokens(600, 2)], "n_predict": 2}

    def cached(salt):
        status, _, answer = proxy.post("/v1/messages", {**message, "cache_salt": salt})
        assert status == 200, answer
        return answer["usage"]["cache_read_input_tokens"]

    def cached_of_several(salt):
        status, _, answers = proxy.post("/completion", {**prompts, "cache_salt": salt})
        assert status == 200, answers
        return [one["timings"]["cache_n"] for one in answers]

    assert cached("me") == 0 and cached("me") > 500
    assert cached("you") == 0 and cached("me") == 0
    assert cached_of_several("me") == [0, 0] and min(cached_of_several("me")) > 500
    assert cached_of_several("you") == [0, 0]
    assert proxy.metrics()['larder_proxy_requests_total{how="other_prompt"}'] == 4


def test_a_list_of_one_prompt_is_a_prompt(model, start, tokens):
    proxy = start(Proxy(model("qwen3next"), *SERVER))
    a = tokens(1000, 1)
    first = proxy.complete([a], 4)
    second = proxy.complete([a], 4)
    assert (first.reused, second.source) == (0, "slot") and second.reused >= 960
    assert first.tokens == proxy.complete(a, 4).tokens
    text = {"prompt": ["On which shelf? " * 40], "max_tokens": 2}
    reused = [proxy.post("/v1/completions", text)[1]["X-Larder-Reused-Tokens"] for _ in range(2)]
    assert reused[0] == "0" and int(reused[1]) > 500


def test_a_server_that_has_slept_gets_its_prefixes_again(model, start, tokens):
    proxy = start(Proxy(model("qwen3"), *SERVER, "--sleep-idle-seconds", 2))
    a = tokens(1000, 1)
    for source in ("slot", "host"):
        assert proxy.complete(a).source == source
        proxy.wait_stored()
        proxy.wait_until(lambda: proxy.get("/props")[2]["is_sleeping"])
    proxy.post("/tokenize", {"content": "it wakes up"})
    assert proxy.complete(a).source == "host"


def test_quantised_rows_that_are_not_rotated_are_others(model, start, tokens, tmp_path, monkeypatch):
    a, path = tokens(1000, 1), model("qwen3")
    fronts = {"proxy": lambda store: Proxy(path, *SERVER, "-ctk", "q8_0", "-ctv", "q8_0", store=store),
              "serve": lambda store: Serve(path, "--cache-type-k", "q8_0", "--cache-type-v", "q8_0", store=store)}
    for name, front in fronts.items():
        reused = []
        for value in ("0", "0", "1"):
            monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", value)
            server = start(front(tmp_path / name))
            reused.append(server.complete(a).reused)
            server.wait_stored()
            server.stop()
        assert reused == [0, 960, 0], name


@pytest.mark.parametrize("variable", ["LLAMA_ARG_ROPE_FREQ_BASE", "LLAMA_ARG_YARN_ORIG_CTX"])
def test_a_variable_that_changes_numbers_finds_no_pages(variable, model, start, tokens, tmp_path, monkeypatch):
    a, reused = tokens(1000, 1), []
    for value in (None, None, "5000"):
        if value:
            monkeypatch.setenv(variable, value)
        proxy = start(Proxy(model("qwen3"), *SERVER, store=tmp_path))
        reused.append(proxy.complete(a).reused)
        proxy.wait_stored()
        proxy.stop()
    assert reused == [0, 960, 0]
