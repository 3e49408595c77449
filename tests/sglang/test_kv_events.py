# SPDX-License-Identifier: Apache-2.0
"""KV events of `larder serve`: SGLang's own reader decodes them, and an index made of nothing else knows the cache."""

import concurrent.futures
import json
import random
import struct
import time

import msgspec
import pytest
import zmq
from rig.kv_index import FULL, STATE, TIERS, WINDOW, KvIndex
from rig.server import Server
from sglang.srt.disaggregation import kv_events

PATIENCE_SECONDS = 20
GROUPS = {"full": FULL, "swa": WINDOW, "mamba": STATE}
MODELS = ["gqa-tiny", "swa-tiny", "gdn-tiny", "dsv4-tiny"]


def config(**more):
    return json.dumps({"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*", "bind": True,
                       "replay_endpoint": "tcp://127.0.0.1:*", "groups": "all", **more})


def follow(server):
    told = server.ask("/server_info")["kv_events"]
    return KvIndex(f"tcp://127.0.0.1:{told['endpoint_port_base']}",
                   f"tcp://127.0.0.1:{told['replay_endpoint_port_base']}", told["topic"])


def prompts(count, seed):
    """Conversations that share beginnings; each ends inside a page."""
    draw = random.Random(seed)
    stems = [[draw.randrange(250) for _ in range(64 * draw.randrange(1, 8))] for _ in range(4)]
    return [draw.choice(stems) + [draw.randrange(250) for _ in range(64 * draw.randrange(0, 6) + 5)]
            for _ in range(count)]


def generate(server, tokens):
    return server.ask("/generate", {"input_ids": tokens, "sampling_params": {"max_new_tokens": 8, "temperature": 0}})


def window_pages(model, page_size):
    return {"swa-tiny": 128 // page_size, "dsv4-tiny": 128 // page_size}.get(model, 0)


def difference(server, index, asked, model):
    """Empty, or how the index and the server differ now."""
    index.catch_up()
    info = server.ask("/server_info")
    page_size = info["page_size"]
    for tier in info["internal_states"][0]["tiers"]:
        medium = {"device": TIERS[0], "host": TIERS[1]}.get(tier["tier"])
        known = len(index.there.get((medium, GROUPS.get(tier["component"])), ()))
        if medium and known != tier["slots"]:
            return f"{tier['tier']} {tier['component']}: {known} pages are known, {tier['slots']} are there"
    for tokens in asked:
        explained = server.ask("/explain", {"input_ids": tokens})["restore"]
        for tiers, name in ((TIERS[:1], "device"), (TIERS, "host")):
            known = index.restore_pages(tokens, tiers, window_pages(model, page_size), model == "gdn-tiny")
            if known != explained[name]["pages"]:
                return f"{len(tokens)} tokens: {known} pages can be resumed from {name}, explain says {explained[name]}"
    return ""


def agree(server, index, asked, model, replays=False):
    """Waits until the index knows what the server has at rest. replays: it may miss what is told while it connects."""
    server.ask("/quiesce", method="POST")
    end = time.monotonic() + PATIENCE_SECONDS
    while found := difference(server, index, asked, model):
        assert time.monotonic() < end, found
        if replays:
            index.replay()


@pytest.mark.parametrize("model", MODELS)
def test_an_index_of_events_is_the_cache_at_each_pause(model, tmp_path):
    storage = json.dumps({"directory": str(tmp_path)})
    options = ["--model", model, "--max-total-tokens", 4096, "--hicache-ratio", 1.5, "--max-mamba-cache-size", 24,
               "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", storage]
    with Server(*options, "--kv-events-config", config()) as server:
        index = follow(server)
        index.wait_for_beginning()
        asked = prompts(40, 7)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for round_number in range(4):
                list(pool.map(lambda tokens: generate(server, tokens), asked[10 * round_number:10 * round_number + 10]))
                agree(server, index, asked, model)
            assert index.there[TIERS[0], FULL] and index.there[TIERS[1], FULL]
            server.ask("/flush_cache", method="POST")
            agree(server, index, asked, model)
            assert not any(index.there.values())
            list(pool.map(lambda tokens: generate(server, tokens), asked[:10]))  # storage has them
            agree(server, index, asked, model)
            assert server.ask("/server_info")["internal_states"][0]["cache"]["prefetched_pages"] > 0

        late = follow(server)
        late.wait_for_beginning()
        agree(server, late, asked, model)
        assert late.there == index.there

        decoder = msgspec.msgpack.Decoder(kv_events.KVEventBatch)
        kinds = set()
        for payload in index.payloads:
            batch = decoder.decode(payload)
            assert abs(batch.ts - time.time()) < 600 and batch.attn_dp_rank == 0
            kinds.update(type(event) for event in batch.events)
            for event in batch.events:
                if isinstance(event, kv_events.BlockStored):
                    assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                    assert event.medium in (kv_events.StorageMedium.GPU, kv_events.StorageMedium.CPU)
        assert kinds == {kv_events.BlockStored, kv_events.BlockRemoved, kv_events.AllBlocksCleared}
        index.close()
        late.close()


def test_who_comes_after_what_is_kept_is_told_all_anew():
    with Server("--model", "gqa-tiny", "--kv-events-config", config(buffer_steps=2, groups="full")) as server:
        asked = prompts(12, 8)
        for tokens in asked:
            generate(server, tokens)
        index = follow(server)
        index.wait_for_beginning()
        agree(server, index, asked, "gqa-tiny")
        assert index.there[TIERS[0], FULL]
        index.close()


def test_adapters_and_tenants_are_told_apart():
    with Server("--model", "gqa-tiny", "--kv-events-config", config()) as server:
        index = follow(server)
        index.wait_for_beginning()
        tokens = prompts(1, 9)[0]
        sampling = {"max_new_tokens": 1, "temperature": 0}
        for names in ({}, {"lora_path": "lora"}, {"cache_salt": "tenant"}):
            server.ask("/generate", {"input_ids": tokens, "sampling_params": sampling, **names})
        server.ask("/quiesce", method="POST")
        end = time.monotonic() + PATIENCE_SECONDS
        paths = []
        while len({tuple(path) for path in paths}) < 3 and time.monotonic() < end:
            index.catch_up()
            paths = [index.path(tokens), index.path(tokens, adapter="lora"), index.path(tokens, salt="tenant")]
        assert len({block for path in paths for block in path}) == 3 * (len(tokens) // index.block_size)
        index.close()


def test_a_server_that_starts_anew_is_another_one(tmp_path):
    endpoints = {"endpoint": f"ipc://{tmp_path}/kv", "replay_endpoint": f"ipc://{tmp_path}/replay"}
    index = KvIndex(*endpoints.values())
    for seed in (10, 11):
        with Server("--model", "gqa-tiny", "--kv-events-config", config(groups="full", **endpoints)) as server:
            assert server.ask("/server_info")["kv_events"] is None, "nobody connects to a file by the name of a server"
            asked = prompts(6, seed)
            for tokens in asked:
                generate(server, tokens)
            index.replay()
            agree(server, index, asked, "gqa-tiny", replays=True)
            assert index.there[TIERS[0], FULL]
    index.close()


def test_who_cannot_ask_for_what_was_missed_is_told_when_it_connects(tmp_path):
    endpoint = f"ipc://{tmp_path}/kv"
    index = KvIndex(endpoint, None)
    for seed in (12, 13):  # the second is another process, whose first batches the index misses while it connects
        with Server("--model", "gqa-tiny", "--kv-events-config",
                    config(groups="full", endpoint=endpoint, replay_endpoint=None)) as server:
            asked = prompts(6, seed)
            for tokens in asked:
                generate(server, tokens)
            agree(server, index, asked, "gqa-tiny")
            assert index.there[TIERS[0], FULL]
    index.close()


class Publisher:
    """Tells batches as a server does, from a number on."""

    def __init__(self, endpoints):
        self.live = zmq.Context.instance().socket(zmq.XPUB)
        self.live.bind(endpoints[0])
        self.readers = zmq.Context.instance().socket(zmq.ROUTER)
        self.readers.bind(endpoints[1])

    def begin(self, number):
        """As a process that starts anew."""
        self.number, self.kept = number, []

    def tell(self, *events):
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self.kept.append((struct.pack(">Q", self.number), payload))
        self.live.send_multipart([b"", *self.kept[-1]])
        self.number += 1

    def answer_one(self):
        """Answers who asks next."""
        assert self.readers.poll(10_000), "nobody asks for a replay"
        name, _, first = self.readers.recv_multipart()
        for number, payload in self.kept:
            if number >= first:
                self.readers.send_multipart([name, b"", b"", number, payload])
        self.readers.send_multipart([name, b"", b"", b"\xff" * 8, b""])

    def close(self):
        self.live.close(linger=0)
        self.readers.close(linger=0)


def stored(block):
    return {"type": "BlockStored", "block_hashes": [block], "parent_block_hash": None, "token_ids": [block],
            "block_size": 1, "lora_id": None, "medium": TIERS[0], "lora_name": None}


def test_a_server_whose_clock_was_set_back_is_another_one(tmp_path):
    endpoints = [f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"]
    publisher = Publisher(endpoints)
    index = KvIndex(*endpoints)
    assert publisher.live.poll(20_000), "the index does not subscribe"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for number, block in ((1_000_000, 1), (5, 2), (5, 3)):
            publisher.begin(number)
            publisher.tell({"type": "AllBlocksCleared"}, stored(block))
            publisher.tell(stored(block + 10))
            answering = pool.submit(publisher.answer_one)
            index.catch_up(1)
            answering.result()
            assert index.knows and index.there == {(TIERS[0], FULL): {block, block + 10}}
    index.close()
    publisher.close()


def test_server_info_says_where_as_sglang_does():
    options = config(topic="kv")
    with Server("--model", "gqa-tiny", "--kv-events-config", options) as server:
        told = server.ask("/server_info")["kv_events"]
    assert told["publisher"] == "zmq" and told["topic"] == "kv" and told["dp_size"] == 1
    assert told["endpoint_host"] == "127.0.0.1" and told["endpoint_port_base"] > 0
    assert told["replay_endpoint_port_base"] > 0 and told["block_size"] > 0
    assert kv_events.KVEventsConfig.from_cli(options).topic == "kv"
