# SPDX-License-Identifier: Apache-2.0
"""/v1/responses and /v1/messages through the proxy: it knows the tokens that llama-server makes of them.

A template that prints all that it is given shows each difference between our conversion and llama-server's. With
pages of two tokens llama-server itself says how far both were the same: what it found in the slot was computed for our
prompt.
"""

import concurrent.futures
import http.client
import http.server
import json
import os
import signal
import threading
import urllib.error
import urllib.request

import pytest

from servers import LlamaServer, Proxy

TEMPLATE = """\
{%- if mark is defined %}mark={{ mark }};{% endif -%}
{%- if reasoning_effort is defined %}effort={{ reasoning_effort }};{% endif -%}
{%- if enable_thinking is defined and not enable_thinking %}unthinking;{% endif -%}
{%- if tools %}tools={{ tools | tojson }};{% endif -%}
{%- for message in messages %}<|im_start|>{{ message | tojson }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PAGE = 2
SMALL_PAGES = ("--page-size", PAGE, "--checkpoint-spacing", 64)
# Batches that begin at the same tokens, or rounding differs (test_answers.py).
SERVER = ("-c", 16384, "-np", 2, "-b", 64, "-ub", 64, "--ctx-checkpoints", 0, "--jinja")
VARIES = ("id", "created_at", "completed_at", "call_id", "item_id", "usage", "timings", "signature", "sequence_number")
SHELF = "On the first shelf there are jars of plums. " * 6
CALL = {"type": "function_call", "call_id": "c1", "name": "open_shelf", "arguments": '{"number": 1}'}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Plums?"}]}
SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Plums.", "annotations": [], "logprobs": []}]}
PARAMETERS = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}, "required": ["z"]}

RESPONSES = {
    "text": {"input": SHELF},
    "instructions": {"input": SHELF, "instructions": "You keep the larder."},
    "messages": {"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": SHELF}, SAID,
                           {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                                           {"type": "input_text", "text": "é"}]}]},
    "thoughts": {"input": [{"role": "user", "content": SHELF}, THOUGHT, SAID, SAID, {"role": "user", "content": "b"}]},
    "calls": {"input": [{"role": "user", "content": SHELF}, THOUGHT, CALL, {**CALL, "call_id": "c2"},
                        {"type": "function_call_output", "call_id": "c1", "output": "plums"},
                        {"type": "function_call_output", "call_id": "c2",
                         "output": [{"type": "input_text", "text": "pears"}]}, CALL, SAID,
                        {"role": "user", "content": "b"}]},
    "tools": {"input": SHELF, "tools": [
        {"type": "function", "name": "open_shelf", "description": "Opens.", "parameters": PARAMETERS, "strict": False},
        {"type": "web_search"}, {"type": "function", "name": "shut", "parameters": {}}], "tool_choice": "auto"},
    "other tools": {"input": SHELF, "tools": [{"type": "web_search"}]},
    "effort": {"input": SHELF, "reasoning": {"effort": "low", "summary": "auto"}},
    "no effort": {"input": SHELF, "reasoning": {"effort": "none"}, "text": {"format": {"type": "text"}}},
    "fields": {"input": SHELF, "chat_template_kwargs": {"mark": "yes"}, "store": False, "metadata": {"a": "b"}},
}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "open_shelf", "input": {"z": 2.50, "a": ["é", None]}}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=a5145;You keep the larder."
MESSAGES = {
    "text": {"messages": [{"role": "user", "content": SHELF}]},
    "system": {"system": "You keep the larder.", "messages": [{"role": "user", "content": SHELF}]},
    "blocks": {"system": [{"type": "text", "text": BILLING}, {"type": "text", "text": "b", "cache_control": {}}],
               "messages": [{"role": "user", "content": [{"type": "text", "text": SHELF, "cache_control": {}},
                                                         {"type": "text", "text": "é"}]}]},
    "thoughts": {"messages": [{"role": "user", "content": SHELF},
                              {"role": "assistant", "content": [
                                  {"type": "thinking", "thinking": "A.", "signature": "s"},
                                  {"type": "text", "text": "Plums."}]},
                              {"role": "user", "content": "More?"}], "thinking": {"type": "enabled",
                                                                                  "budget_tokens": 99}},
    "calls": {"messages": [{"role": "user", "content": SHELF},
                           {"role": "assistant", "content": [TOOL_USE, {**TOOL_USE, "id": "t2"}]},
                           {"role": "user", "content": [
                               {"type": "tool_result", "tool_use_id": "t1", "content": "plums"},
                               {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
                                "content": [{"type": "text", "text": "pe"}, {"type": "text", "text": "ars"}]},
                               {"type": "text", "text": "And?"}, {"type": "tool_result", "tool_use_id": "t3"}]}]},
    "tools": {"messages": [{"role": "user", "content": SHELF}], "tool_choice": {"type": "auto"}, "tools": [
        {"name": "open_shelf", "description": "Opens.", "input_schema": PARAMETERS},
        {"type": "web_search_20250305", "name": "web_search"}]},
    "fields": {"messages": [{"role": "user", "content": SHELF}], "chat_template_kwargs": {"enable_thinking": False},
               "add_generation_prompt": False, "id_slot": 7, "metadata": {"user_id": "me"}},
}
PLAIN = {  # what is not certain, and what llama-server refuses
    "/v1/responses": [
        ("media", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]}),
        ("other_prompt", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("not_understood", {"input": 7}),
        ("not_understood", {"input": "a", "previous_response_id": "r"})],
    "/v1/messages": [
        ("media", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}),
        ("other_prompt", {"messages": [{"role": "user", "content": [{"type": "document"}, {"type": "text",
                                                                                           "text": "a"}]}]}),
        ("not_understood", {"messages": 7})],
}


def lasting(value):
    """A reply without what differs from one time to the next."""
    if isinstance(value, dict):
        return {name: lasting(one) for name, one in value.items() if name not in VARIES}
    return [lasting(one) for one in value] if isinstance(value, list) else value


def limited(path, body, count):
    return {"max_output_tokens" if "responses" in path else "max_tokens": count, "temperature": 0, "seed": 1, **body}


def counted(answer):
    """(tokens of the prompt, of them found in the slot), as llama-server says."""
    usage = answer["usage"]
    if "cache_read_input_tokens" in usage:
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return ("--chat-template-file", path, "--skip-chat-parsing")


@pytest.mark.parametrize("kind", ["qwen3next", "qwen3"])
def test_the_prompts_are_those_that_llama_server_makes(kind, model, start, template):
    path = model(kind)
    plain = start(LlamaServer(path, *SERVER, *template))
    proxy = start(Proxy(path, *SERVER, *template, options=SMALL_PAGES))
    for route, bodies in (("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)):
        for name, fields in bodies.items():
            body = limited(route, fields, 2)
            status, _, expected = plain.post(route, body)
            assert status == 200, (route, name, expected)
            all_tokens = counted(expected)[0]
            for turn in range(2):
                status, head, answer = proxy.post(route, body)
                assert status == 200, (route, name, answer)
                assert lasting(answer) == lasting(expected), (route, name, turn)
                tokens, cached = counted(answer)
                assert tokens == all_tokens
                if kind == "qwen3next" or route == "/v1/messages" or turn == 1:
                    assert cached >= tokens - 1 - PAGE, (route, name, turn, tokens, cached)
                if turn == 1:
                    assert int(head["X-Larder-Reused-Tokens"]) >= tokens - 1 - PAGE, (route, name, head.items())
                proxy.wait_until(lambda: proxy.status()["slots"]["busy"] == 0)  # a dense one is saved after its answer
                proxy.wait_stored()
    metrics = proxy.metrics()
    assert metrics['larder_proxy_requests_total{how="cached"}'] == 2 * (len(RESPONSES) + len(MESSAGES))
    assert metrics["larder_proxy_prompt_mismatches_total"] == metrics["larder_proxy_other_slots_total"] == 0


def test_what_is_not_certain_goes_on_plainly(model, start):
    path = model("qwen3next")
    plain, proxy = start(LlamaServer(path, *SERVER)), start(Proxy(path, *SERVER))
    before = proxy.metrics()
    for route, bodies in PLAIN.items():
        for reason, fields in bodies:
            body = limited(route, fields, 4)
            expected, answer = plain.post(route, body), proxy.post(route, body)
            assert (answer[0], lasting(answer[2])) == (expected[0], lasting(expected[2])), (route, fields)
            name = f'larder_proxy_requests_total{{how="{reason}"}}'
            metrics = proxy.metrics()
            assert metrics[name] == before[name] + 1, (route, reason, fields)
            before = metrics
    assert before['larder_proxy_requests_total{how="cached"}'] == 0


def test_counting_tokens_needs_no_slot(model, start):
    proxy = start(Proxy(model("qwen3next"), *SERVER))
    for route, body in (("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": SHELF}]}),
                        ("/v1/responses/input_tokens", {"input": SHELF})):
        status, head, answer = proxy.post(route, body)
        assert status == 200 and answer["input_tokens"] > len(SHELF) / 2 and "X-Larder-Reused-Tokens" not in head
    assert all(value == 0 for name, value in proxy.metrics().items() if name.startswith("larder_proxy_requests_total"))


def test_a_conversation_goes_on_after_a_restart(model, start, tmp_path):
    path = model("qwen3next")
    system = "You keep the larder. " * 40
    for route in ("/v1/responses", "/v1/messages"):
        def ask(proxy, question):
            body = ({"instructions": system, "input": question} if "responses" in route
                    else {"system": system, "messages": [{"role": "user", "content": question}]})
            status, head, answer = proxy.post(route, limited(route, {**body, "cache_salt": route}, 4))
            assert status == 200, answer
            return int(head["X-Larder-Reused-Tokens"]), head["X-Larder-Reused-From"], counted(answer)

        proxy = start(Proxy(path, *SERVER, store=tmp_path))
        assert ask(proxy, "What is on the shelf? " * 8)[0] == 0
        proxy.wait_stored()
        reused, _, (tokens, cached) = ask(proxy, "And in the cellar, I wonder? " * 8)
        assert 832 - 64 <= reused <= cached < tokens
        proxy.wait_stored()
        proxy.kill_both()
        proxy = start(Proxy(path, *SERVER, store=tmp_path))
        reused, source, _ = ask(proxy, "What is on the shelf? " * 8)
        assert reused > 900 and source == "storage"
        assert proxy.stop() == 0


def events_of(text):
    return [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]


def test_events_of_messages_pass_through(model, start):
    path = model("qwen3next")
    plain, proxy = start(LlamaServer(path, *SERVER)), start(Proxy(path, *SERVER))
    body = limited("/v1/messages", {**MESSAGES["system"], "stream": True}, 6)
    expected = events_of(plain.post("/v1/messages", body)[2])
    assert [event["type"] for event in expected][:1] == ["message_start"]
    for turn in range(2):
        status, head, text = proxy.post("/v1/messages?beta=true", body)
        assert status == 200 and head["Content-Type"].startswith("text/event-stream")
        assert lasting(events_of(text)) == lasting(expected)
        assert (int(head["X-Larder-Reused-Tokens"]) > 0) == (turn == 1)
        proxy.wait_until(lambda: proxy.status()["slots"]["busy"] == 0)  # else the next turn may get another slot
    metrics = proxy.metrics()
    assert metrics["larder_proxy_prompt_mismatches_total"] == metrics["larder_proxy_other_slots_total"] == 0


def test_the_openai_client_gets_responses(model, start):
    openai = pytest.importorskip("openai")
    path = model("qwen3next")
    tools = [{"type": "function", "name": "open_shelf", "parameters": PARAMETERS, "strict": False}]
    said, reused = [], []
    for server in (start(LlamaServer(path, *SERVER)), start(Proxy(path, *SERVER))):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")

        def create(**more):
            raw = client.responses.with_raw_response.create(model="any", temperature=0, **more)
            reused.append(raw.headers.get("X-Larder-Reused-Tokens"))
            return raw.parse()

        first = create(input=SHELF, instructions="Be brief.", max_output_tokens=12)
        history = [{"role": "user", "content": SHELF}, *[item.model_dump(exclude_none=True) for item in first.output],
                   {"role": "user", "content": "And on the second?"}]
        second = create(input=history, instructions="Be brief.", max_output_tokens=12)
        called = create(input=SHELF, tools=tools, tool_choice="required", max_output_tokens=64)
        text, kinds = "", []
        with client.responses.create(model="any", input=history, instructions="Be brief.", max_output_tokens=12,
                                     temperature=0, stream=True) as events:
            for event in events:
                kinds.append(event.type)
                text += event.delta if event.type == "response.output_text.delta" else ""
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and len(kinds) > 8
        said.append((first.output_text, second.output_text, [lasting(item.model_dump()) for item in called.output],
                     text, kinds))
    assert said[0] == said[1]
    assert reused[:3] == [None] * 3 and int(reused[3]) == 0 and int(reused[4]) > 0
    assert said[1][1] == said[1][3], "the same prompt, asked for again"


def test_many_at_once_get_their_own_answers(model, start):
    """llama-server chooses the slot of a message; requests that were given a slot are beside it."""
    path = model("qwen3")
    plain = start(LlamaServer(path, *SERVER))
    proxy = start(Proxy(path, *SERVER[:2], "-np", 3, *SERVER[4:]))
    requests, expected = [], []
    for number in range(36):
        words = f"Shelf {number % 12}. " * 30
        requests.append(("/v1/messages", {"system": SHELF, "messages": [{"role": "user", "content": words}]})
                        if number % 2 else ("/v1/responses", {"instructions": SHELF, "input": words}))
        chat = {"messages": [{"role": "system", "content": SHELF}, {"role": "user", "content": words}], "max_tokens": 1,
                "temperature": 0, "logprobs": True, "top_logprobs": 2}
        answer = plain.post("/v1/chat/completions", chat)[2]
        first, next_one = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        # Slots share batches, so that they round otherwise: what is not certain is not compared.
        is_certain = first["logprob"] - next_one["logprob"] > 0.1
        expected.append((answer["usage"]["prompt_tokens"], answer["choices"][0]["message"]["content"] if is_certain
                         else None))
    assert sum(text is not None for _, text in expected) > 12
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda one: proxy.post(one[0], limited(*one, 1)), requests))
    for (status, _, answer), (tokens, text) in zip(answers, expected):
        assert status == 200 and counted(answer)[0] == tokens, answer
        parts = answer["content"] if "content" in answer else answer["output"][0]["content"]
        assert text is None or parts[0]["text"] == text
    metrics = proxy.metrics()
    assert metrics["larder_proxy_prompt_mismatches_total"] == 0
    assert metrics['larder_proxy_requests_total{how="cached"}'] == len(requests)
    proxy.wait_until(lambda: proxy.status()["slots"] == {"all": 3, "busy": 0, "waiting": 0})


class OtherTemplates(http.server.ThreadingHTTPServer):
    """Before a llama-server: another version of it, whose /apply-template is not what its chats are made with."""

    def __init__(self, upstream):
        self.upstream = upstream
        super().__init__(("127.0.0.1", 0), OtherTemplate)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class OtherTemplate(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        question = urllib.request.Request(self.server.upstream + self.path, body or None, dict(self.headers),
                                          method=self.command)
        try:
            with urllib.request.urlopen(question, timeout=60) as reply:
                status, answer = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, answer = error.code, error.read()
        if self.path == "/apply-template" and status == 200:
            answer = json.dumps({"prompt": "Otherwise. " + json.loads(answer)["prompt"]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST


@pytest.mark.parametrize("kind", ["qwen3next", "qwen3"])
def test_a_prompt_that_was_guessed_wrong_is_counted_and_not_kept(kind, model, start, tmp_path):
    upstream = start(LlamaServer(model(kind), *SERVER, slots=f"{tmp_path}/"))
    between = OtherTemplates(upstream.url)
    proxy = start(Proxy(upstream=f"http://127.0.0.1:{between.server_port}", slots=tmp_path))
    chat = {"messages": [{"role": "user", "content": SHELF}], "max_tokens": 8, "temperature": 0}
    requests = [("/v1/chat/completions", chat), ("/v1/chat/completions", {**chat, "stream": True}),
                ("/v1/responses", limited("/v1/responses", RESPONSES["text"], 8)),
                ("/v1/messages", limited("/v1/messages", MESSAGES["text"], 8))]
    plain = start(LlamaServer(model(kind), *SERVER))
    for number, (route, body) in enumerate(requests, 1):
        expected, answer = plain.post(route, body), proxy.post(route, body)
        assert answer[0] == 200
        if not body.get("stream"):
            left_out = (*VARIES, "created")
            same = [{name: lasting(one) for name, one in reply[2].items() if name not in left_out}
                    for reply in (expected, answer)]
            assert same[0] == same[1], route
        proxy.wait_until(lambda: proxy.status()["slots"]["busy"] == 0)
        assert proxy.metrics()["larder_proxy_prompt_mismatches_total"] == number, route
    proxy.wait_stored()
    # A text is what it is: nothing of the wrong guesses is in its way.
    text = {"prompt": SHELF * 2, "n_predict": 8, "temperature": 0}
    assert proxy.post("/completion", text)[2]["content"] == plain.post("/completion", text)[2]["content"]
    metrics = proxy.metrics()
    assert metrics["larder_proxy_prompt_mismatches_total"] == len(requests)
    assert metrics["larder_proxy_other_slots_total"] == 0
    between.shutdown()


def test_a_server_that_chooses_slots_otherwise_is_left_alone(model, start):
    """--slot-prompt-similarity 0: the slot that was not used for longest, whatever it holds."""
    more = ("--slot-prompt-similarity", 0)
    plain = start(LlamaServer(model("qwen3next"), *SERVER))
    proxy = start(Proxy(model("qwen3next"), *SERVER, *more))
    body = limited("/v1/messages", MESSAGES["system"], 8)
    expected = plain.post("/v1/messages", body)[2]["content"]
    # Of two slots it takes the right one about every second time.
    for _ in range(120):
        assert proxy.post("/v1/messages", body)[2]["content"] == expected
        metrics = proxy.metrics()
        if metrics['larder_proxy_requests_total{how="other_slot"}'] > 0:
            break
    assert metrics['larder_proxy_requests_total{how="other_slot"}'] > 0, metrics
    assert metrics["larder_proxy_other_slots_total"] >= 8
    status, head, answer = proxy.post("/v1/responses", limited("/v1/responses", RESPONSES["text"], 8))
    assert status == 200 and "X-Larder-Reused-Tokens" in head, answer


def test_a_key_as_anthropics_clients_send_it(model, start):
    proxy = start(Proxy(model("qwen3next"), *SERVER, "--api-key", "secret",
                        options=("--upstream-key-file", key_file(model))))
    body = limited("/v1/messages", MESSAGES["system"], 4)
    assert proxy.post("/v1/messages", body)[0] == 401
    for turn in range(2):
        status, head, answer = proxy.post("/v1/messages", body, {"X-Api-Key": "secret"})
        assert status == 200 and (int(head["X-Larder-Reused-Tokens"]) > 0) == (turn == 1), answer


def test_who_has_no_key_learns_nothing_and_changes_nothing(model, start, tokens):
    proxy = start(Proxy(model("qwen3"), *SERVER, "--api-key", "secret",
                        options=("--upstream-key-file", key_file(model))))
    body = {"prompt": tokens(400, 1), "n_predict": 4, "temperature": 0}
    key = {"Authorization": "Bearer secret"}
    assert proxy.post("/completion", body, key)[0] == 200
    for wrong in (None, {"Authorization": "Bearer guess"}):
        status, head, answer = proxy.post("/completion", body, wrong)
        assert status == 401 and not [name for name in head if name.startswith("X-Larder")], (head.items(), answer)
    proxy.wait_until(lambda: proxy.status()["slots"]["busy"] == 0)
    status, head, answer = proxy.post("/completion", body, key)
    assert status == 200 and head["X-Larder-Reused-From"] == "slot", head.items()
    assert int(head["X-Larder-Reused-Tokens"]) == 399


def test_an_interrupt_from_the_keyboard_ends_no_answer(model, start):
    """It reaches the whole foreground group: llama-server goes on until the proxy ends it."""
    proxy = start(Proxy(model("qwen3"), *SERVER, is_session=True))
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    connection.request("POST", "/completion", json.dumps({"prompt": SHELF, "n_predict": 4000, "stream": True,
                                                          "ignore_eos": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200 and reply.readline().startswith(b"data: ")
    os.killpg(proxy.process.pid, signal.SIGINT)
    events = [line for line in reply.read().decode().splitlines() if line.startswith("data: {")]
    assert json.loads(events[-1][6:])["stop"] is True and json.loads(events[-1][6:])["tokens_predicted"] == 4000
    assert proxy.process.wait(30) == 0
    assert "llama-server has ended" not in proxy.log()


def key_file(model):
    path = model("qwen3next").parent / "key"
    path.write_text("secret\n")
    return path
