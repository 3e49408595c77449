# SPDX-License-Identifier: Apache-2.0
"""`larder serve --model x.gguf`: what the proxy's tests ask, of llama.cpp in one process; beside llama-server alone."""

import http.client
import json
import pathlib
import signal
import sys
import time

import pytest

import test_answers
import test_clients
from servers import LARDER, LlamaServer, Serve, Server
from test_clients import CHATS, MESSAGES, TOOLS, lasting, rounded

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "sglang" / "rig"))
from kv_index import KvIndex  # noqa: E402

BATCH = ("-b", 64)
KINDS = ["qwen3next", "qwen35", "falcon-h1", "granitehybrid", "jamba", "lfm2", "mamba2", "gemma3", "gpt-oss"]


@pytest.mark.parametrize("kind", KINDS)
def test_branches_and_restarts(kind, model, start, tokens, tmp_path):
    path = model(kind)
    plain = start(LlamaServer(path, "-c", 4096, "-np", 1, *test_answers.BATCHES))
    serve = start(Serve(path, "-c", 16384, "-p", 1, *BATCH, store=tmp_path))
    a, other = tokens(1500, 1), tokens(1500, 9)

    def ask(prompt):
        answer, expected = serve.complete(prompt, 8), plain.complete(prompt, 8, cache_prompt=False)
        same = min(answer.certain(), expected.certain())
        assert answer.tokens[:same] == expected.tokens[:same], f"{answer.reused} reused"
        return answer.reused

    assert ask(a) == 0
    assert ask(a) == 1499  # a checkpoint of the slot, before the last token
    assert ask(a[:1000] + tokens(500, 4)) == 0  # nobody has been there: it becomes a restore point now
    serve.wait_stored()
    assert ask(a[:1000] + tokens(500, 5)) == 960
    assert ask(other) == 0
    assert ask(a + tokens(100, 2)) == 1472
    serve.wait_stored()
    serve.kill()
    serve = start(Serve(path, "-c", 16384, "-p", 1, *BATCH, store=tmp_path))
    answer = serve.complete(a + tokens(150, 2))
    assert (answer.reused, answer.source) == (1536, "storage")
    assert ask(a[:700] + tokens(500, 7)) == 0
    serve.wait_stored()
    assert ask(a[:700] + tokens(500, 8)) == 640


def test_a_dense_model_shares_what_a_busy_slot_has(model, start, tokens, tmp_path):
    serve = start(Serve(model("qwen3"), "-c", 16384, "-p", 3, *BATCH, store=tmp_path))
    a = tokens(1500, 1)
    assert serve.complete(a).reused == 0
    assert serve.complete(a).reused == 1499
    connection = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=60)
    body = {"prompt": a, "n_predict": 3000, "ignore_eos": True, "stream": True, "temperature": 0}
    connection.request("POST", "/completion", json.dumps(body))
    assert connection.getresponse().readline().startswith(b"data: ")
    answer = serve.complete(a[:1000] + tokens(100, 3))  # from the slot that is writing
    assert (answer.reused, answer.source) == (1000, "slot")
    connection.close()
    serve.wait_stored()
    serve.kill()
    serve = start(Serve(model("qwen3"), "-c", 16384, "-p", 3, *BATCH, store=tmp_path))
    answer = serve.complete(a[:1000] + tokens(200, 7))
    assert (answer.reused, answer.source) == (960, "storage")


@pytest.mark.parametrize("kind", ["qwen35", "gemma3", "qwen3"])
def test_ten_conversations_on_four_slots(kind, model, start, tokens, tmp_path):
    path = model(kind)
    plain = start(LlamaServer(path, "-c", 4096, "-np", 1, *test_answers.BATCHES))
    serve = start(Serve(path, "-c", 16384, "-p", 4, *BATCH, store=tmp_path))
    talks = test_answers.Conversations(plain, tokens(640, 1), 10, 7)
    reused = 0
    for number in range(test_answers.ROUNDS):
        reused += sum(answer.reused for answer in talks.round(serve, 4))
        if number == 3:
            serve.wait_stored()
            serve.kill()
            serve = start(Serve(path, "-c", 16384, "-p", 4, *BATCH, store=tmp_path))
    assert talks.compared > 0.6 * talks.all, "too few tokens were certain: the test says little"
    assert reused > 0.6 * sum(len(history) for history in talks.histories)


@pytest.mark.parametrize("kind", ["qwen35", "gemma3", "qwen3"])
def test_requests_that_make_room_for_others_end_with_the_same_tokens(kind, model, start, tokens):
    """Four answers of 700 tokens do not fit the context together."""
    path = model(kind)
    plain = start(LlamaServer(path, "-c", 4096, "-np", 1, *test_answers.BATCHES))
    serve = start(Serve(path, "-c", 1536, "-p", 4, *BATCH))
    prompts = [tokens(300, seed) for seed in range(4)]
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda prompt: serve.complete(prompt, 400, ignore_eos=True), prompts))
    assert serve.status()["slots"]["set_back"] > 0
    for prompt, answer in zip(prompts, answers):
        assert len(answer.tokens) == 400
        expected = plain.complete(prompt, 400, ignore_eos=True, cache_prompt=False)
        same = min(answer.certain(), expected.certain())
        assert answer.tokens[:same] == expected.tokens[:same]


@pytest.fixture
def both(model, start, tmp_path):
    path = model("qwen3next")
    plain = start(LlamaServer(path, *test_clients.SERVER, "--jinja"))
    return plain, start(Serve(path, "-c", 16384, "-p", 4, *BATCH, "--alias", path, store=tmp_path))


def test_chats_answer_the_same(both):
    plain, serve = both
    for name, fields in CHATS.items():
        body = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "seed": 1, **fields}
        expected = plain.post("/v1/chat/completions", body)
        for turn in range(2):  # the second one is restored
            answer = serve.post("/v1/chat/completions", body)
            assert answer[0] == expected[0] == 200, (name, answer[2], expected[2])
            said, wanted = lasting(answer[2]), lasting(expected[2])
            said.pop("model"), wanted.pop("model")
            assert said == rounded(wanted), (name, turn)
    assert serve.metrics()["larder_serve_requests_total"] == 2 * len(CHATS)


def test_the_openai_client_streams_and_calls(both):
    openai = pytest.importorskip("openai")
    said = []
    for server in both:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        stream = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=16, temperature=0,
                                                stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        called = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=64, temperature=0,
                                                tools=TOOLS, tool_choice="required")
        plain_text = client.completions.create(model="any", prompt="On the shelf " * 30, max_tokens=8, temperature=0)
        responses = client.responses.create(model="any", input="On which shelf?", max_output_tokens=8, temperature=0)
        said.append((text, chunks[-1].usage.prompt_tokens,
                     called.choices[0].message.model_dump(exclude={"tool_calls": {"__all__": {"id"}}}),
                     plain_text.choices[0].text, responses.output_text))
    assert said[0] == said[1]
    again = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=4, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens > 100


def test_texts_and_messages_are_those_of_llama_server(both):
    plain, serve = both
    for path, body in (("/tokenize", {"content": "shelf"}), ("/tokenize", {"content": "a", "with_pieces": True}),
                       ("/apply-template", {"messages": MESSAGES}), ("/detokenize", {"tokens": [65, 66]}),
                       ("/v1/messages/count_tokens", {"messages": MESSAGES[1:], "max_tokens": 4}),
                       ("/completion", {"prompt": ["one", "two"], "n_predict": 4, "temperature": 0}),
                       ("/v1/messages", {"messages": MESSAGES[1:], "max_tokens": 6, "temperature": 0})):
        expected, answer = plain.post(path, body), serve.post(path, body)
        assert answer[0] == expected[0] == 200, (path, answer)
        if path == "/completion":
            assert [one["content"] for one in answer[2]] == [one["content"] for one in expected[2]]
        elif path == "/v1/messages":
            assert answer[2]["content"] == expected[2]["content"]
        else:
            assert lasting(answer[2]) == lasting(expected[2]), path


def test_wrong_requests_are_refused_and_harm_nothing(both, tokens):
    plain, serve = both
    wrong = [("/completion", b"{nonsense"), ("/completion", {}), ("/completion", {"prompt": []}),
             ("/completion", {"prompt": [99999]}), ("/completion", {"prompt": "a", "grammar": "root ::= ("}),
             ("/completion", {"prompt": tokens(20000, 1)}), ("/v1/chat/completions", {"messages": 7}),
             ("/v1/chat/completions", {"messages": MESSAGES, "n": 40}), ("/infill", {"input_prefix": "a"}),
             ("/completion", {"prompt": "a", "lora": [{"id": 0, "scale": 1}]}), ("/detokenize", {"tokens": [-1]}),
             ("/completion", {"prompt": "a", "n_predict": "many"})]
    for path, body in wrong:
        status, _, answer = serve.post(path, body)
        assert 400 <= status < 500 and answer["error"]["message"], (path, str(body)[:99], answer)
    for body in ({"prompt": tokens(20000, 1)}, {"prompt": tokens(20000, 1), "stream": True}):
        expected, answer = (server.post("/completion", body) for server in (plain, serve))
        sizes = [(status, told["error"]["type"], told["error"]["code"], told["error"]["n_prompt_tokens"])
                 for status, _, told in (expected, answer)]
        assert sizes[0] == sizes[1] == (400, "exceed_context_size_error", 400, 20000)
        assert answer[2]["error"]["n_ctx"] == 16384
    assert serve.post("/nothing", {})[0] == 404
    assert serve.complete(tokens(100, 1), 4).tokens


def test_a_client_that_leaves_frees_its_slot(both):
    _, serve = both
    body = json.dumps({"messages": MESSAGES, "max_tokens": 9000, "temperature": 0, "stream": True, "ignore_eos": True})
    for _ in range(6):  # more than there are slots
        connection = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", body)
        reply = connection.getresponse()
        assert reply.status == 200 and reply.getheader("Content-Type").startswith("text/event-stream")
        assert reply.readline().startswith(b"data: ")
        connection.close()
    serve.wait_until(lambda: (serve.status()["slots"]["busy"], serve.status()["slots"]["waiting"]) == (0, 0))
    assert serve.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})[0] == 200


def test_tenants_share_nothing(model, start, tokens):
    serve = start(Serve(model("qwen3"), "-c", 8192, "-p", 2, *BATCH))
    a = tokens(500, 1)
    assert serve.complete(a, cache_salt="one").reused == 0
    assert serve.complete(a, cache_salt="two").reused == 0
    assert serve.complete(a, cache_salt="one").reused > 400
    assert serve.complete(a, cache_prompt=False).reused == 0
    assert serve.complete(a).reused == 0
    assert serve.post("/completion", {"prompt": a, "cache_salt": 1})[0] == 400  # as none it would share with all


def test_what_is_private_is_shared_with_nobody(model, start, tokens):
    """While it is being answered, too, and whatever salt others make up."""
    serve = start(Serve(model("qwen3"), "-c", 16384, "-p", 2, *BATCH))
    a = tokens(500, 1)
    connection = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=60)
    body = {"prompt": a, "n_predict": 9000, "ignore_eos": True, "stream": True, "cache_prompt": False}
    connection.request("POST", "/completion", json.dumps(body))
    assert connection.getresponse().readline().startswith(b"data: ")
    assert serve.complete(a, cache_salt="\0").reused == 0
    assert serve.complete(a[:400] + tokens(100, 2)).reused == 0
    connection.close()


def test_an_explanation_is_what_happens_then(model, start, tokens, tmp_path):
    serve = start(Serve(model("qwen35"), "-c", 8192, "-p", 2, *BATCH, store=tmp_path))
    a = tokens(1000, 1)

    def explained(**question):
        status, _, answer = serve.post("/larder/explain", question)
        return answer["restore"] if status == 200 else status

    assert explained(input_ids=a)["storage"]["tokens"] == 0
    serve.complete(a)
    serve.wait_stored()
    branch = a[:980] + tokens(40, 2)
    assert explained(input_ids=branch)["host"]["tokens"] == serve.complete(branch).reused > 900
    serve.post("/larder/flush", {})
    assert explained(input_ids=a[:700], cache_salt="you")["storage"]["tokens"] == 0
    stored = explained(input_ids=a[:980])
    assert stored["storage"]["tokens"] == 960
    status, fields, _ = serve.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})
    assert status == 200
    told = explained(messages=MESSAGES)["device"]["tokens"]
    _, fields, _ = serve.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})
    assert told == int(fields["X-Larder-Reused-Tokens"]) > 0
    assert (explained(prompt="x"), explained(text=3), explained(messages=3)) == (400, 400, 400)


def test_answers_say_why_no_more_was_reused(model, start, tokens, tmp_path):
    serve = start(Serve(model("qwen35"), "-c", 8192, "-p", 1, *BATCH, store=tmp_path))
    a = tokens(600, 1)
    assert serve.complete(a).miss == "never_seen; at_token=0"
    serve.wait_stored()
    assert serve.complete(a[:500] + tokens(100, 2)).miss == "no_checkpoint; at_token=0"
    serve.wait_stored()
    answer = serve.complete(a[:500] + tokens(100, 3))
    assert answer.reused > 400 and answer.miss.split(";")[0] in ("diverged", "never_seen"), answer.miss
    assert serve.metrics()['larder_misses_total{reason="no_checkpoint"}'] == 1


def test_answers_say_that_a_prefix_found_no_room(model, start, tokens, tmp_path):
    """Beside one that is being answered; on a busy machine that may have its answer before the other one comes."""
    a = tokens(1200, 1)
    body = {"prompt": tokens(1000, 2), "n_predict": 1000, "ignore_eos": True, "stream": True, "temperature": 0}
    for attempt in range(4):
        serve = start(Serve(model("qwen35"), "-c", 2048, "-p", 2, *BATCH, store=tmp_path / str(attempt)))
        serve.complete(a)
        serve.wait_stored()
        connection = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=60)
        connection.request("POST", "/completion", json.dumps(body))
        assert connection.getresponse().readline().startswith(b"data: ")
        answer = serve.complete(a + tokens(10, 3))
        if answer.reused == 0:
            break
        connection.close()
    assert (answer.reused, answer.miss) == (0, "load_failed; at_token=0")
    assert serve.metrics()['larder_misses_total{reason="load_failed"}'] == 1
    connection.close()
    assert serve.complete(a + tokens(10, 4)).reused > 1000


def test_several_answers_take_the_room_of_conversations_that_are_over(model, start, tokens):
    serve = start(Serve(model("qwen3"), "-c", 1024, "-p", 4, *BATCH))
    for seed in range(4):
        serve.complete(tokens(240, seed))
    body = {"prompt": tokens(700, 9), "n_predict": 4, "ignore_eos": True, "n": 4}
    status, _, answer = serve.post("/completion", body)
    assert status == 200 and len(answer) == 4, answer


def test_a_router_knows_what_host_memory_has(model, start, tokens, tmp_path):
    """From KV events alone."""
    endpoints = {"endpoint": f"ipc://{tmp_path}/kv", "replay_endpoint": f"ipc://{tmp_path}/replay"}
    options = json.dumps({"publisher": "zmq", "groups": "all", **endpoints})
    serve = start(Serve(model("qwen35"), "-c", 8192, "-p", 1, *BATCH, "--kv-events-config", options,
                        store=tmp_path / "store"))
    index = KvIndex(*endpoints.values())
    index.wait_for_beginning()
    a = tokens(600, 1)
    serve.complete(a)
    serve.wait_stored()
    end = time.monotonic() + 20
    while index.block_size == 0 or index.restore_pages(a, ["CPU_PINNED"], 0, True) * index.block_size < 500:
        assert time.monotonic() < end, index.there
        index.catch_up()
    pools = serve.post("/larder/explain", {"input_ids": a})[2]["pools"]
    there = {pool["component"]: pool["host_pages"] for pool in pools}
    assert there["full"] == len(index.path(a)) == len(index.there["CPU_PINNED", 0])
    assert not any(tier == "GPU" for tier, _ in index.there)
    serve.post("/larder/flush", {})
    while any(index.there.values()):
        assert time.monotonic() < end, index.there
        index.catch_up()
    index.close()


def test_too_many_at_once_are_asked_to_come_again(model, start):
    serve = start(Serve(model("qwen3"), "-c", 4096, "-p", 1, "--max-requests", 2, *BATCH))
    status, _, answer = serve.post("/completion", {"prompt": ["a"] * 40, "n_predict": 200, "ignore_eos": True})
    assert status == 503 and "too many" in answer["error"]["message"], answer
    serve.wait_until(lambda: (serve.status()["slots"]["busy"], serve.status()["slots"]["waiting"]) == (0, 0))
    assert serve.post("/completion", {"prompt": ["a"] * 2, "n_predict": 2})[0] == 200


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_system_prompt_is_a_restore_point_before_anybody_else_came(route, model, start):
    serve = start(Serve(model("qwen3next"), "-c", 8192, "-p", 1, *BATCH))
    system = "You keep the larder. " * 40

    def reused(question):
        said = [{"role": "user", "content": question}]
        body = {"/v1/chat/completions": {"messages": [{"role": "system", "content": system}, *said], "max_tokens": 2},
                "/v1/messages": {"system": system, "messages": said, "max_tokens": 2},
                "/v1/responses": {"instructions": system, "input": question, "max_output_tokens": 2}}[route]
        status, head, answer = serve.post(route, {**body, "temperature": 0})
        assert status == 200, answer
        return int(head["X-Larder-Reused-Tokens"])

    assert reused("What is on the first shelf? " * 10) == 0
    serve.wait_stored()
    assert reused("And in the cellar, I wonder? " * 10) >= 832 - 64


def test_a_key_is_asked_for(model, start, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    serve = start(Serve(model("qwen3"), "--api-key-file", tmp_path / "key"))
    body = {"prompt": "a", "n_predict": 1}
    assert serve.post("/completion", body)[0] == 401
    assert serve.post("/completion", body, {"Authorization": "Bearer secres"})[0] == 401
    assert serve.post("/completion", body, {"Authorization": "Bearer secret"})[0] == 200
    assert serve.post("/completion", body, {"X-Api-Key": "secret"})[0] == 200
    assert serve.post("/completion", body, {"Authorization": "Bearer secret", "X-Api-Key": "another"})[0] == 200
    assert serve.post("/completion", body, {"Authorization": "Bearer secres", "X-Api-Key": "secret"})[0] == 401
    assert serve.get("/health")[0] == 200


def test_wrong_options_are_named(model, tmp_path):
    def refused(*arguments):
        server = Server([LARDER, "serve", "--port", "0", *arguments])
        server.launch()
        return server.process.wait(60), server.log()

    no_model = tmp_path / "none.gguf"
    no_model.write_bytes(b"GGUF and nothing behind it")
    for arguments, words in ((("-m", no_model), "none.gguf"),
                             (("-m", tmp_path / "missing.gguf"), "missing.gguf"),
                             (("-m", model("qwen3"), "--cache-type-k", "q9"), "--cache-type-k"),
                             (("-m", model("qwen3"), "--host-memory", "much"), "--host-memory")):
        code, log = refused(*arguments)
        assert code in (1, 2) and words in log, log


def test_it_records_what_it_is_asked(model, start, tokens, tmp_path):
    trace = tmp_path / "trace.jsonl"
    recording = ("--record-trace", trace, "--record-trace-block", 64)
    serve = start(Serve(model("qwen3"), "-c", 8192, "-p", 2, *BATCH, *recording))
    a = tokens(500, 1)
    serve.complete(a)
    serve.complete(a + tokens(60, 2))
    serve.complete(a, cache_salt="you")
    serve.complete(a, cache_prompt=False)
    assert serve.post("/completion", {"prompt": a * 20, "n_predict": 4})[0] == 400  # longer than the context
    assert serve.stop() == 0
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    longer = [line["input_length"] - lines[0]["input_length"] for line in lines]
    assert longer == [0, 60, 0, 0], lines
    assert all(line["output_length"] > 0 for line in lines), lines
    whole = [tuple(line["hash_ids"][:7]) for line in lines]
    assert whole[0] == whole[1] and len(set(whole)) == 3, "others' salts, and what is private, share nothing"
    assert trace.stat().st_mode & 0o777 == 0o600


def test_it_stops_in_order(model, start, tokens, tmp_path):
    serve = start(Serve(model("qwen35"), store=tmp_path))
    serve.complete(tokens(500, 1))
    assert serve.stop() == 0
    serve = start(Serve(model("qwen35"), store=tmp_path))
    answer = serve.complete(tokens(500, 1))
    assert (answer.reused, answer.source) == (448, "storage")


def test_a_stream_that_is_cut_off_ends_with_an_error(model, start):
    serve = start(Serve(model("qwen3"), "--stop-wait", 0, "-c", 8192, *BATCH))
    connection = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=60)
    connection.request("POST", "/completion", json.dumps({"prompt": [1, 2, 3], "n_predict": 8000, "ignore_eos": True,
                                                          "stream": True}))
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    serve.process.send_signal(signal.SIGTERM)
    events = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert "stopping" in json.loads(events[-1][6:])["error"]["message"], events[-1]
    assert serve.process.wait(60) == 0  # stop() would send a second signal, which ends it at once


@pytest.mark.parametrize("path", ["/completion", "/tokenize", "/apply-template", "/v1/messages/count_tokens"])
def test_a_body_that_is_nested_too_deep_is_refused(path, model, start):
    serve = start(Serve(model("qwen3"), "-c", 4096, *BATCH))
    deep = b'{"prompt":[1],"content":"a","messages":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    status, _, answer = serve.post(path, deep)
    assert status == 400 and "nested deeper" in answer["error"]["message"], answer
    assert serve.get("/health")[0] == 200
