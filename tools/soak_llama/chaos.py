# SPDX-License-Identifier: Apache-2.0
"""Threads that make trouble: for each pair one that ends its processes, and one for all that stops and flushes.

Decks as in soak.chaos. Only what ends a process opens a window: a llama-server or a proxy that stands still for some
seconds, a flush, and a client that leaves cost time, never a request.
"""

import os
import signal
import time

from soak import children, http, watch
from soak.chaos import Hand
from soak.clock import CLOCK

BACK_SECONDS = 60
SHORT_LIFE_SECONDS = 11  # five llama-servers in a row that died sooner, and the proxy starts no other one
MOST_SHORT_LIVES = 3
KILL_SERVER, KILL_BOTH = "kill llama-server of", "kill both of"
END_DECK = (KILL_SERVER, KILL_SERVER, "kill", "kill", KILL_BOTH, KILL_BOTH, "terminate")
STOP_SERVER = "stop llama-server of"
BESIDE_DECK = (STOP_SERVER, "stop", "flush")
NEEDS_SERVER = (KILL_SERVER, KILL_BOTH, STOP_SERVER)
SPARED = "flush"


class Chaos:
    def __init__(self, options, ledger, pairs):
        self._ledger, self._pairs = ledger, pairs
        self._seconds = options.minutes * 60
        self._short_lives = {pair.name: 0 for pair in pairs}
        self.hands = [Hand(f"trouble of {pair.name}", options.seed, options.trouble, ledger,
                           self._deck((KILL_SERVER, "kill", KILL_BOTH), number), self._deck(END_DECK, number),
                           self._play_end) for number, pair in enumerate(pairs)]
        self.hands.append(Hand("trouble beside", options.seed, options.trouble, ledger, [],
                               [card for number in range(len(pairs)) for card in self._deck(BESIDE_DECK, number)],
                               self._play_beside))

    def _deck(self, cards, number):
        """[(what, number)] of those that this pair can be dealt."""
        has_server = self._pairs[number].plan.has_server
        return [(what, number) for what in cards if has_server or what not in NEEDS_SERVER]

    def spared(self):
        """As soak.chaos.Chaos.spared()."""
        turn_seconds = self._seconds / len(self._pairs)
        if turn_seconds < 1.2 * watch.LONG_ENOUGH_SECONDS:
            return None
        return min(int(self._ledger.seconds() / turn_seconds), len(self._pairs) - 1)

    # ---- what ends processes

    def _play_end(self, what, number, draw):
        pair = self._pairs[number]
        was_ended = len(pair.proxy.lives) > 1 and (not pair.plan.has_server or len(pair.server.lives) > 2)
        if number == self.spared() and was_ended:
            what = SPARED
        if what == KILL_SERVER and self._would_give_up(pair):
            what = "kill"
        self._ledger.event(f"{what} {pair.name}")
        if what == SPARED:
            self._flush(pair)
        elif what == KILL_SERVER:
            self._kill_server(pair)
        else:
            self._end_and_start(pair, what, draw)

    def _would_give_up(self, pair):
        is_short = CLOCK.now() - pair.server.life.judged_from < SHORT_LIFE_SECONDS
        self._short_lives[pair.name] = self._short_lives[pair.name] + 1 if is_short else 0
        return self._short_lives[pair.name] > MOST_SHORT_LIVES

    def _kill_server(self, pair):
        """The proxy starts it again."""
        window = self._ledger.open_window(pair.name, KILL_SERVER)
        pair.server.signal(signal.SIGKILL)
        limit = CLOCK.now() + BACK_SECONDS
        while not (pair.server.look() or pair.server.is_alive()) or not pair.proxy.is_healthy():
            if CLOCK.now() > limit:
                self._ledger.fail(f"{pair.name}: llama-server was killed, and does not serve again after "
                                  f"{BACK_SECONDS} s\n{pair.proxy.log_tail()}")
                break
            time.sleep(0.1)
        self._ledger.count(pair.name, "llama-server restarts")
        self._ledger.close_window(window)

    def _end_and_start(self, pair, what, draw):
        self._short_lives[pair.name] = 0
        window = self._ledger.open_window(pair.name, what)
        if what == "terminate":
            self.terminate(pair)
        else:
            if what == KILL_BOTH and draw.random() < 0.5:
                pair.server.signal(signal.SIGKILL)
            pair.proxy.kill()
            if what == KILL_BOTH:
                pair.server.signal(signal.SIGKILL)
            self._must_be_gone(pair)
        self._ledger.is_over.wait(draw.uniform(0, 1.5))
        try:
            pair.start()
            self._ledger.count(pair.name, "restarts")
        except children.DidNotStart as error:
            self._ledger.fail(f"{error}\n{pair.proxy.log_tail()}")
        self._ledger.close_window(window)

    def terminate(self, pair):
        """Must end with 0, with its llama-server, and leave no slot files."""
        code = pair.proxy.terminate()
        if code != 0:
            self._ledger.fail(f"{pair.name} ended with {code} after SIGTERM\n{pair.proxy.log_tail()}")
        self._must_be_gone(pair)
        folder = pair.server.folder
        if folder and pair.plan.slots is None and folder.exists():
            self._ledger.fail(f"{pair.name} ended after SIGTERM, and left {folder}: {sorted(os.listdir(folder))[:6]}")

    def _must_be_gone(self, pair):
        if not pair.server.wait_gone():
            self._ledger.fail(f"{pair.name}: its proxy has ended, and llama-server was still there")

    # ---- what does not

    def _play_beside(self, what, number, draw):
        pair = self._pairs[number]
        self._ledger.event(f"{what} {pair.name}")
        if what == "flush":
            self._flush(pair)
        elif what == "stop":
            self._stand_still(pair.proxy.pause, draw.uniform(0.3, 3))
        else:
            life = pair.server.life

            def pause(is_paused):
                if life is pair.server.life:
                    pair.server.signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

            self._stand_still(pause, draw.uniform(0.5, 4))

    def _stand_still(self, pause, seconds):
        pause(True)
        try:
            self._ledger.is_over.wait(seconds)
        finally:
            pause(False)

    def _flush(self, pair):
        begun = CLOCK.now()
        try:
            status, text = http.call(pair.proxy.port, "POST", "/larder/flush", {})
        except http.Failed as error:
            status, text = 0, str(error)
        if status != 200 and not self._ledger.is_excused(pair.name, begun, CLOCK.now()):
            self._ledger.fail(f"{pair.name}: flush: HTTP {status}: {text[:300]}")
