# SPDX-License-Identifier: Apache-2.0
"""Threads that make trouble: one for the servers, one for the metadata server, so that troubles overlap.

Each deals from a deck of (what, to whom), shuffled by the seed; when the deck is empty it is shuffled anew. So
everything happens to everybody early, and nothing is left out by chance. Only what ends a process opens a window in
which its requests may fail: all else must cost nothing but time.
"""

import random
import threading
import time

from soak import children, http, watch
from soak.clock import CLOCK
from soak.ledger import DISK_STOOD_STILL

FLUSH_SECONDS = 3
ADMIN_SECONDS = 150  # the server gives a switch 60 s
ATTACH_LIMIT_SECONDS = 60
METADATA_SHARE = 4  # a trouble of the metadata server for so many of the others
METADATA_GRACE_SECONDS = 3  # a call that waits for its time-out, and is told then
BREAKER_GRACE_SECONDS = 20  # an attached storage is asked again after at most twice the time that it was away
DISK_IS_SLOW = "the medium hangs or is very slow"  # what a storage probe says
MOST_STALLS = 2
STALL_GRACE_SECONDS = 60
SERVER_DECK = ("kill", "kill", "terminate", "switch storage", "switch storage", "flush", "pause")
CLEARED = (0, 2)  # servers whose storage is cleared, once in a deck: what two servers share, and what one has alone
ENDING = ("kill", "terminate")
METADATA_DECK = ("kill", "kill", "terminate", "pause", "pause")


class Hand(threading.Thread):
    """Deals one deck, and before it the opening."""

    def __init__(self, name, seed, pause_seconds, ledger, opening, deck, play):
        super().__init__(name=name, daemon=True)
        self._draw = random.Random(f"{seed}/{name}")
        self._pause_seconds, self._ledger, self._deck, self._play = pause_seconds, ledger, deck, play
        self._opening = list(opening)

    def run(self):
        try:
            hand = self._opening
            self._draw.shuffle(hand)
            while True:
                pause = self._draw.uniform(0.5, 1.5) * self._pause_seconds
                if self._ledger.is_over.wait(pause):
                    return
                if not hand:
                    hand = list(self._deck)
                    self._draw.shuffle(hand)
                self._play(*hand.pop(), self._draw)
        except Exception as error:  # a mistake of the soak's own must not look like peace
            self._ledger.fail(f"{self.name} broke: {error!r}")


class Chaos:
    """servers: (child, plan) of each; metadata: child; mount: where 3FS links its memory."""

    def __init__(self, options, ledger, servers, metadata, mount):
        self._ledger, self._servers, self._metadata, self._mount = ledger, servers, metadata, mount
        self._seconds = options.minutes * 60
        self._with_probe = not options.no_probe
        self._slow_until = 0.0
        self._children = [child for child, _ in servers] + [metadata]
        everybody = range(len(servers))
        deck = [(what, number) for what in SERVER_DECK for number in everybody]
        deck += [("clear storage", number) for number in CLEARED]
        self.hands = [
            Hand("trouble of servers", options.seed, options.trouble, ledger, [("kill", n) for n in everybody], deck,
                 self._play_server),
            Hand("trouble of metadata", options.seed, METADATA_SHARE * options.trouble, ledger, [],
                 [(what, 0) for what in METADATA_DECK], self._play_metadata),
        ]

    def spared(self):
        """Number of the server that nobody ends now, or None: each has its turn, so that each lives long enough once
        for its memory to be judged. In a soak that is too short for that nobody is spared."""
        turn_seconds = self._seconds / len(self._servers)
        if turn_seconds < 1.2 * watch.LONG_ENOUGH_SECONDS:
            return None
        return min(int(self._ledger.seconds() / turn_seconds), len(self._servers) - 1)

    def _play_server(self, what, number, draw):
        child, plan = self._servers[number]
        if what in ENDING and number == self.spared() and len(child.lives) > 1:
            what = "pause"
        self._ledger.event(f"{what} {child.name}")
        if what == "kill":
            self._end_and_start(child, lambda: self._kill(child), draw.uniform(0, 1.5))
        elif what == "terminate":
            self._end_and_start(child, lambda: self.terminate(child), draw.uniform(0, 0.5))
        elif what == "switch storage":
            self._switch_storage(child, plan, draw.uniform(0.2, 3))
        elif what == "flush":
            self._flush(child)
        elif what == "clear storage":
            self._clear_storage(child)
        else:
            self._pause(child, draw.uniform(0.3, 2.5))

    def _play_metadata(self, what, _, draw):
        child = self._metadata
        self._ledger.event(f"{what} {child.name}")
        if what == "pause":
            window = self._ledger.open_window(child.name, what)
            self._pause(child, draw.uniform(0.5, 6))
            self._ledger.close_window(window)
        elif what == "kill":
            self._end_and_start(child, lambda: self._kill(child), draw.uniform(0, 4))
        else:
            self._end_and_start(child, lambda: self.terminate(child), draw.uniform(0, 2))

    def _pause(self, child, seconds):
        child.pause(True)
        try:
            self._ledger.is_over.wait(seconds)
        finally:
            child.pause(False)

    def _end_and_start(self, child, end, down_seconds):
        window = self._ledger.open_window(child.name, "end")
        end()
        self._ledger.is_over.wait(down_seconds)
        limit = CLOCK.now() + children.START_SECONDS
        while True:
            begun = CLOCK.now()
            try:
                child.start()
                self._ledger.count(child.name, "restarts")
                break
            except children.DidNotStart as error:
                # A server may say that its metadata server is not there; then it is started again.
                if self._is_metadata_away(begun) and child is not self._metadata and CLOCK.now() < limit:
                    self._ledger.count(child.name, "starts refused")
                    time.sleep(0.5)
                    continue
                self._ledger.fail(f"{error}\n{child.log_tail()}")
                break
        self._ledger.close_window(window)

    def _kill(self, child):
        child.kill()
        self._remove_memory(child)

    def terminate(self, child):
        """Must end with 0, and leave no memory of 3FS."""
        code = child.terminate()
        if code != 0:
            self._ledger.fail(f"{child.name} ended with {code} after SIGTERM\n{child.log_tail()}")
        left = self._remove_memory(child)
        if left:
            self._ledger.fail(f"{child.name} ended after SIGTERM, and left {left} files in /dev/shm")

    def _remove_memory(self, ended):
        """Of a server that has ended. The metadata server has none, and its hand must not look while others detach."""
        return 0 if ended is self._metadata else children.remove_unused_memory(self._mount, self._children)

    def _is_metadata_away(self, begun, grace=METADATA_GRACE_SECONDS):
        return self._ledger.is_excused(self._metadata.name, begun, CLOCK.now(), grace)

    def _switch_storage(self, child, plan, away_seconds):
        while not self._admin(child, "DELETE", "/hicache/storage-backend"):
            time.sleep(0.5)
        self._ledger.is_over.wait(away_seconds)
        limit = CLOCK.now() + ATTACH_LIMIT_SECONDS
        while not self._admin(child, "PUT", "/hicache/storage-backend", plan.attach_body(self._with_probe),
                              may_fail=plan.uses_metadata and CLOCK.now() < limit):
            self._ledger.count(child.name, "attaches refused")
            time.sleep(0.5)
        child.life.attached()

    def _flush(self, child):
        begun = CLOCK.now()
        status, text = self._call(child, "POST", f"/flush_cache?timeout={FLUSH_SECONDS}")
        if status == 200:
            self._ledger.event("flush done")
        elif "Timed out waiting for idle" in text:
            pass  # under load that is an honest answer
        elif not self._ledger.stood_still(begun, CLOCK.now()):
            self._ledger.fail(f"{child.name}: flush: HTTP {status}: {text[:300]}")

    def _clear_storage(self, child):
        # Through the index: it may fail while that is away, or while the breaker believes so.
        self._admin(child, "POST", "/hicache/storage-backend/clear", may_fail=True, grace=BREAKER_GRACE_SECONDS)

    def _admin(self, child, method, target, body=None, may_fail=False, grace=METADATA_GRACE_SECONDS):
        """True: done, or failed for good. With `may_fail` it may fail while the metadata server is away (False)."""
        begun = CLOCK.now()
        status, text = self._call(child, method, target, body)
        if status == 200:
            return True
        if self._ledger.stood_still(begun, CLOCK.now()) or (may_fail and self._is_metadata_away(begun, grace)):
            return False
        # A disk on which others write much may stand still for half a minute, and the store's directory is taken until
        # it moves again; a store that hangs does so each time.
        if DISK_IS_SLOW in text and self._ledger.total(DISK_STOOD_STILL) < MOST_STALLS:
            self._ledger.count(child.name, DISK_STOOD_STILL)
            self._slow_until = CLOCK.now() + STALL_GRACE_SECONDS
            return False
        if method == "PUT" and CLOCK.now() < self._slow_until:
            return False
        self._ledger.fail(f"{child.name}: {method} {target}: HTTP {status}: {text[:300]}")
        return True

    @staticmethod
    def _call(child, method, target, body=None):
        """(status, text); status 0: no answer."""
        try:
            return http.call(child.port, method, target, body, timeout=ADMIN_SECONDS)
        except http.Failed as error:
            return 0, str(error)
