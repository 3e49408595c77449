# SPDX-License-Identifier: Apache-2.0
"""What clients of llama-server use, through the proxy: the same answers as without it."""

import http.client
import json
import subprocess

import pytest

from servers import LARDER, LlamaServer, Proxy

# The same split of a prompt, or it is rounded otherwise (test_answers.py).
SERVER = ("-c", 16384, "-np", 4, "-b", 64, "-ub", 64, "--ctx-checkpoints", 0)
VARIES = ("id", "created", "timings", "usage", "system_fingerprint", "__verbose", "id_slot")
MESSAGES = [{"role": "system", "content": "You keep the larder. " * 12},
            {"role": "user", "content": "What is on the first shelf?"}]
TOOLS = [{"type": "function", "function": {"name": "open_shelf", "description": "Opens a shelf.", "parameters": {
    "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "shelf", "schema": {
    "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}}}
CHATS = {
    "plain": {},
    "stop": {"stop": ["e"]},
    "several answers": {"n": 2},
    "log probabilities": {"logprobs": True, "top_logprobs": 3},
    "tools": {"tools": TOOLS, "tool_choice": "required"},
    "schema": {"response_format": SCHEMA},
    "grammar": {"grammar": 'root ::= "one" | "two"'},
}


def lasting(value):
    """A reply without what differs from one time to the next."""
    if isinstance(value, dict):
        return {name: lasting(one) for name, one in value.items() if name not in VARIES}
    return [lasting(one) for one in value] if isinstance(value, list) else value


def rounded(value):
    """The same, to compare with: log probabilities are within rounding."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return pytest.approx(value, abs=0.02) if isinstance(value, float) else value


@pytest.fixture
def both(model, start, tmp_path):
    path = model("qwen3next")
    return start(LlamaServer(path, *SERVER, "--jinja")), start(Proxy(path, *SERVER, "--jinja", store=tmp_path))


def test_chats_answer_the_same(both):
    plain, proxy = both
    for name, fields in CHATS.items():
        body = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "seed": 1, "cache_prompt": True, **fields}
        expected = plain.post("/v1/chat/completions", body)
        for turn in range(2):  # the second one is restored
            answer = proxy.post("/v1/chat/completions", body)
            assert answer[0] == expected[0] == 200, (name, answer[2], expected[2])
            assert lasting(answer[2]) == rounded(lasting(expected[2])), (name, turn)
    assert proxy.metrics()['larder_proxy_requests_total{how="cached"}'] == 2 * len(CHATS)


def test_the_openai_client_streams_and_calls(both):
    openai = pytest.importorskip("openai")
    plain, proxy = both
    said = []
    for server in both:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        stream = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=16, temperature=0,
                                                stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        called = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=64, temperature=0,
                                                tools=TOOLS, tool_choice="required")
        plain_text = client.completions.create(model="any", prompt="On the shelf " * 30, max_tokens=8, temperature=0)
        names = [model.id for model in client.models.list()]
        said.append((text, called.choices[0].message.model_dump(exclude={"tool_calls": {"__all__": {"id"}}}),
                     plain_text.choices[0].text, names))
    assert said[0] == said[1]


def test_every_other_route_goes_through(both):
    plain, proxy = both
    for path in ("/health", "/v1/models", "/lora-adapters", "/nothing"):
        assert lasting(proxy.get(path)[2]) == lasting(plain.get(path)[2]), path
    for path, body in (("/tokenize", {"content": "shelf"}), ("/apply-template", {"messages": MESSAGES}),
                       ("/detokenize", {"tokens": [65, 66]}), ("/completion", b"{nonsense"), ("/completion", {}),
                       ("/v1/chat/completions", {"messages": 7}), ("/infill", {"input_prefix": "a"})):
        expected, answer = plain.post(path, body), proxy.post(path, body)
        assert (answer[0], lasting(answer[2])) == (expected[0], lasting(expected[2])), path
    metrics = proxy.metrics()
    assert metrics['larder_proxy_requests_total{how="not_understood"}'] == 3
    assert metrics['larder_proxy_requests_total{how="other_prompt"}'] == 1


def test_events_come_as_they_are_made_and_a_client_that_leaves_frees_its_slot(both):
    _, proxy = both
    body = json.dumps({"messages": MESSAGES, "max_tokens": 4000, "temperature": 0, "stream": True, "ignore_eos": True})
    for _ in range(6):  # more than there are slots
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200 and reply.getheader("Content-Type").startswith("text/event-stream")
        assert reply.readline().startswith(b"data: ")  # of 4,000 tokens the first ones
        connection.close()
    proxy.wait_until(lambda: proxy.status()["slots"] == {"all": 4, "busy": 0, "waiting": 0})
    assert proxy.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})[0] == 200


def test_a_conversation_that_goes_on_without_its_client_does_not_keep_its_slot(model, start):
    """With X-Conversation-Id llama-server would go on for a client that has left, in a slot that is another's."""
    proxy = start(Proxy(model("qwen3"), "-c", 65536, "-np", 1))
    body = json.dumps({"messages": MESSAGES, "max_tokens": 60000, "temperature": 0, "stream": True,
                       "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", body,
                       {"Content-Type": "application/json", "X-Conversation-Id": "mine"})
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    assert proxy.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}, timeout=5)[0] == 200


def test_an_explanation_says_what_would_be_reused(both, tokens):
    _, proxy = both
    a = tokens(1000, 1)
    nothing = proxy.post("/larder/explain", {"input_ids": a})[2]
    assert (nothing["restore"]["host"]["tokens"], nothing["why"]) == (0, "nothing of this prompt would be reused")
    proxy.complete(a)
    proxy.wait_stored()
    some = proxy.post("/larder/explain", {"input_ids": a[:980]})[2]
    assert some["restore"]["host"]["tokens"] == 960
    assert proxy.post("/larder/explain", {"prompt": "x"})[0] == 400
    assert proxy.post("/larder/flush", {})[0] == 200
    other = proxy.post("/larder/explain", {"input_ids": a[:980], "cache_salt": "you"})[2]
    assert other["restore"]["host"]["tokens"] == other["restore"]["storage"]["tokens"] == 0


@pytest.mark.parametrize("kind", ["qwen3next", "gemma3", "qwen3"])
def test_an_explanation_says_what_storage_has(kind, model, start, tokens, tmp_path):
    path, a = model(kind), tokens(1000, 1)
    short = start(Proxy(path, *SERVER))
    short.complete(a)
    said = short.post("/larder/explain", {"input_ids": a})[2]["restore"]["storage"]
    assert said["reason"] == "there is no storage (--store)", said
    proxy = start(Proxy(path, *SERVER, store=tmp_path))
    proxy.complete(a)
    proxy.wait_stored()
    proxy.kill_both()

    proxy = start(Proxy(path, *SERVER, store=tmp_path))
    said = proxy.post("/larder/explain", {"input_ids": a})[2]
    assert [said["restore"][tier]["tokens"] for tier in ("device", "host", "storage")] == [0, 0, 960], said
    assert said["why"] == "960 tokens would be reused, from storage" and said["storage_status"] == "ok"
    assert {pool["storage_pages"] for pool in said["pools"]} <= {15, 1, 8}, said["pools"]
    told = subprocess.run([LARDER, "explain", "--url", proxy.url + "/larder", "--input-ids", str(a)],
                          capture_output=True, text=True, timeout=60, check=True)
    assert "960 tokens would be reused, from storage" in told.stdout, told.stdout
    branch = proxy.post("/larder/explain", {"input_ids": a[:500] + tokens(500, 2)})[2]["restore"]["storage"]
    reason = "full_missing of full in storage" if kind == "qwen3" else "state_missing of mamba in storage"
    assert branch["reason"] == reason and branch["tokens"] == (448 if kind == "qwen3" else 0), branch
    yours = proxy.post("/larder/explain", {"input_ids": a, "cache_salt": "you"})[2]["restore"]["storage"]
    assert yours["tokens"] == 0
    small = proxy.post("/larder/explain", {"input_ids": a[:200]})[2]
    assert small["why"] == "nothing of this prompt would be reused", small
    answer = proxy.complete(a)
    assert (answer.reused, answer.source) == (960, "storage"), "as it was said"
