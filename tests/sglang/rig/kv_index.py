# SPDX-License-Identifier: Apache-2.0
"""What a router knows of a server: an index built from KV events alone, with nothing of Larder's own."""

import struct
import time

import msgspec
import zmq

END = (1 << 64) - 1
FULL, WINDOW, STATE = 0, 1, 2  # group_idx
TIERS = ("GPU", "CPU_PINNED")


class KvIndex:
    """Follows one server. `endpoint` and `replay` as its /server_info has them; None: nobody can be asked."""

    def __init__(self, endpoint, replay, topic=""):
        context = zmq.Context.instance()
        self.live = context.socket(zmq.SUB)
        self.topic = topic
        self.live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.live.connect(endpoint)
        self.asks = None
        if replay:
            self.asks = context.socket(zmq.DEALER)
            self.asks.connect(replay)
        self.heard = -1  # the last number on the live socket
        self.next = 0
        self.there = {}  # (medium, group) -> hashes
        self.child = {}  # (hash of the page before, tokens of the page, adapter, salt) -> hash
        self.block_size = 0
        self.knows = False  # has heard a beginning
        self.payloads = []  # all that was taken, for other readers

    def close(self):
        self.live.close(linger=0)
        if self.asks:
            self.asks.close(linger=0)

    def catch_up(self, seconds=0.2):
        """Takes what is published; asks for what was missed."""
        while self.live.poll(seconds * 1000):
            _, number, payload = self.live.recv_multipart()
            number = struct.unpack(">Q", number)[0]
            if number <= self.heard:  # another process, whose clock was set back: it knows nothing of the one before
                self.next, self.knows, self.there, self.child = 0, False, {}, {}
            self.heard = number
            if number > self.next:
                self.replay()
            if number > self.next:
                self.skip_to(number)
            if number == self.next:
                self.take(number, payload)

    def skip_to(self, number):
        """What is between is gone: only a beginning helps."""
        self.knows, self.next = False, number
        if not self.asks:  # a server that nobody can ask begins anew for who subscribes
            self.live.setsockopt_string(zmq.UNSUBSCRIBE, self.topic)
            self.live.setsockopt_string(zmq.SUBSCRIBE, self.topic)

    def replay(self):
        """Takes what the server still has from the next batch on, if it can be asked."""
        if not self.asks:
            return
        self.asks.send_multipart([b"", struct.pack(">Q", self.next)])
        while True:
            assert self.asks.poll(10_000), "the server does not answer a replay"
            _, _, number, payload = self.asks.recv_multipart()[-4:]
            number = struct.unpack(">Q", number)[0]
            if number == END:
                return
            if number > self.next:
                self.skip_to(number)
            if number == self.next:
                self.take(number, payload)

    def take(self, number, payload):
        self.next = number + 1
        self.payloads.append(payload)
        for event in msgspec.msgpack.decode(payload)[1]:
            self.apply(event)

    def apply(self, event):
        if event["type"] == "AllBlocksCleared":
            self.there, self.child, self.knows = {}, {}, True
        if event["type"] == "AllBlocksCleared" or not self.knows:
            return
        there = self.there.setdefault((event["medium"], event.get("group_idx", FULL)), set())
        for block in event["block_hashes"]:
            assert (block in there) == (event["type"] == "BlockRemoved"), event
        if event["type"] == "BlockRemoved":
            there.difference_update(event["block_hashes"])
            return
        there.update(event["block_hashes"])
        size = self.block_size = event["block_size"]
        before = event["parent_block_hash"]
        for i, block in enumerate(event["block_hashes"]):
            tokens = tuple(event["token_ids"][i * size:(i + 1) * size])
            self.child[before, tokens, event.get("lora_name"), event.get("cache_salt")] = block
            before = block

    def path(self, tokens, adapter=None, salt=None):
        """Hashes of a prompt's pages, as far as they were ever heard of."""
        out, before = [], None
        for at in range(0, len(tokens) - self.block_size + 1, self.block_size):
            page = tuple(tokens[at:at + self.block_size])
            before = self.child.get((before, page, adapter, salt))
            if before is None:
                break
            out.append(before)
        return out

    def restore_pages(self, tokens, tiers, window_pages, has_state, **names):
        """The longest prefix of a prompt that can be resumed from these tiers together, in pages."""
        def has(block, group):
            return any(block in self.there.get((tier, group), ()) for tier in tiers)
        best, path = 0, self.path(tokens, **names)
        for end in range(1, len(path) + 1):
            if not has(path[end - 1], FULL):
                break
            window = all(has(block, WINDOW) for block in path[max(0, end - window_pages):end]) if window_pages else True
            if window and (not has_state or has(path[end - 1], STATE)):
                best = end
        return best

    def wait_for_beginning(self, seconds=20):
        end = time.monotonic() + seconds
        while not self.knows and time.monotonic() < end:
            self.replay()
            self.catch_up()
        assert self.knows, "no beginning was told"
