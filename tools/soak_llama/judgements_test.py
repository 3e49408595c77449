# SPDX-License-Identifier: Apache-2.0
"""The soak's own judgements: each is shown something bad and something good. `tools/soak_llama.py --self-test`."""

import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from soak import http, ledger
from soak_llama import asking, chaos, command, conversations, pairs, report, settings, verdict, watch

ROUNDING = 0.004
FAR, TIE = 5 * ROUNDING, ROUNDING / 2


def said(token, *rivals):
    """A token that is the likeliest; rivals: (token, how much less likely)."""
    top = [{"id": token, "logprob": -1.0}] + [{"id": other, "logprob": -1.0 - gap} for other, gap in rivals]
    return asking.Said({"id": token, "logprob": -1.0, "top_logprobs": top})


def again(one, token=None, off=0.0):
    """What the proxy says: the same token, or a rival of it, with a log probability that is off by so much."""
    token = one.token if token is None else token
    logprob = one.top.get(token, -9.0) + off
    return asking.Said({"id": token, "logprob": logprob, "top_logprobs": [{"id": token, "logprob": logprob}]})


class Verdicts(unittest.TestCase):
    EXPECTED = [said(token, (token + 1, TIE), (token + 2, FAR)) for token in (50, 60, 70, 80)]

    def setUp(self):
        self.asked = []

    def judge(self, answer, is_complete=True, goes_on=()):
        def go_on(prompt, count):
            self.asked.append((prompt, count))
            return list(goes_on)

        return verdict.judge([1, 2], self.EXPECTED, answer, is_complete, go_on, ROUNDING)

    def same(self):
        return [again(one) for one in self.EXPECTED]

    def test_right(self):
        for answer, is_complete in ((self.same(), True), (self.same()[:2], False), ([], False)):
            self.assertIsNone(self.judge(answer, is_complete).wrong)

    def test_rounding_is_none_of_its_business(self):
        found = self.judge([again(one, off=TIE) for one in self.EXPECTED])
        self.assertIsNone(found.wrong)
        self.assertAlmostEqual(found.furthest, TIE)

    def test_every_wrong_position_is_seen(self):
        for place in range(4):
            for wrong in (self.EXPECTED[place].token + 2, 99):  # one that is listed, and one that is not
                answer = self.same()
                answer[place] = again(self.EXPECTED[place], wrong)
                for some, is_complete in ((answer, True), (answer[:place + 1], False)):
                    self.assertIn(f"token {place} of the answer is {wrong}", self.judge(some, is_complete).wrong)
        self.assertEqual(self.asked, [])

    def test_a_right_token_with_another_probability_is_wrong(self):
        answer = self.same()
        answer[2] = again(self.EXPECTED[2], off=FAR)
        self.assertIn("off by", self.judge(answer).wrong)

    def test_a_wrong_length_is_seen(self):
        self.assertIsNotNone(self.judge(self.same()[:3]).wrong)
        self.assertIsNotNone(self.judge(self.same() + self.same()[:1]).wrong)
        self.assertIsNotNone(self.judge(self.same() + self.same()[:1], False).wrong)

    def test_after_a_tie_the_rest_is_compared_with_what_follows_it(self):
        rest = [said(30, (31, FAR)), said(40, (41, FAR))]
        answer = [again(self.EXPECTED[0]), again(self.EXPECTED[1], 61), again(rest[0]), again(rest[1])]
        found = self.judge(answer, goes_on=rest)
        self.assertIsNone(found.wrong)
        self.assertEqual((found.ties, self.asked), (1, [([1, 2, 50, 61], 2)]))
        answer[3] = again(rest[1], 41)
        self.assertIn("after a tie", self.judge(answer, goes_on=rest).wrong)

    def test_a_tie_at_the_end_asks_nobody(self):
        answer = self.same()[:3] + [again(self.EXPECTED[3], 81)]
        self.assertEqual((self.judge(answer).wrong, self.asked), (None, []))

    def test_the_smallest_mistake_is_seen(self):
        for place in range(4):
            answer = verdict.corrupted(self.same(), self.EXPECTED, place, ROUNDING)
            self.assertEqual(answer[place].token, self.EXPECTED[place].token + 2)
            self.assertIn(f"token {place} ", self.judge(answer).wrong)


class Reply:
    """Of http.client, with these lines."""

    headers = {"X-Larder-Reused-Tokens": "64", "X-Larder-Reused-From": "host"}

    def __init__(self, *lines):
        self._lines = io.BytesIO("".join(line + "\n" for line in lines).encode())
        self.readline, self.read = self._lines.readline, self._lines.read


class Streams(unittest.TestCase):
    TOLD = '{"id": 65, "logprob": -1, "top_logprobs": []}'
    TOKEN = f'data: {{"stop": false, "completion_probabilities": [{TOLD}]}}'
    END = 'data: {"stop": true, "stop_type": "limit", "id_slot": 2}'
    CHAT = f'data: {{"choices": [{{"finish_reason": null, "logprobs": {{"content": [{TOLD}]}}}}]}}'
    CHAT_END = 'data: {"choices": [{"finish_reason": "length", "delta": {}}]}'

    @staticmethod
    def read(*lines, leave_after=None):
        return asking._read_stream(Reply(*lines), [], leave_after)

    def test_whole_ones(self):
        chat = (self.CHAT, self.CHAT, self.CHAT_END, "data: [DONE]")
        for lines in ((self.TOKEN, "", self.TOKEN, "", self.END), chat):
            answer = self.read(*lines)
            self.assertEqual(([one.token for one in answer.said], answer.reused, answer.source), ([65, 65], 64, "host"))
        self.assertEqual(self.read(self.TOKEN, self.END).slot, 2)

    def test_what_is_cut_off_or_ends_with_an_error_failed_with_its_tokens(self):
        for lines in ((self.TOKEN,), (self.CHAT,), (self.TOKEN, 'error: {"code": 500}'),
                      (self.TOKEN, self.END.replace("limit", "eos"))):
            with self.assertRaises(http.Failed) as caught:
                self.read(*lines)
            self.assertEqual([one.token for one in caught.exception.tokens], [65], lines)

    def test_who_leaves_has_what_came(self):
        with self.assertRaises(http.Abandoned) as caught:
            self.read(self.TOKEN, self.TOKEN, self.TOKEN, leave_after=2)
        self.assertEqual(len(caught.exception.tokens), 2)


class Scripts(unittest.TestCase):
    @staticmethod
    def script(number, seed=1):
        one = conversations.Script("m", number, seed, 4)
        one.answers = [[said(33 + turn)] for turn in range(4)]
        return one

    def test_a_seed_makes_it_again_and_turns_grow(self):
        one, same, other = self.script(0), self.script(0), self.script(0, 2)
        self.assertEqual(one._tokens(3), same._tokens(3))
        self.assertNotEqual(one._tokens(3), other._tokens(3))
        self.assertEqual(one._tokens(3)[:len(one._tokens(2)) + 1], one._tokens(2) + [35])

    def test_a_branch_leaves_in_the_middle_of_a_turn(self):
        for number in (0, 2):
            trunk, branch = self.script(number)._tokens(3), self.script(number + 1)._tokens(3)
            parted = next(at for at, (a, b) in enumerate(zip(trunk, branch)) if a != b)
            self.assertGreater(parted, len(self.script(number)._tokens(1)))
            self.assertLess(parted, len(self.script(number)._tokens(2)))

    def test_chats_have_all_that_was_said(self):
        roles = [message["role"] for message in self.script(2)._messages(2)]
        self.assertEqual(roles, ["system"] + ["user", "assistant"] * 2 + ["user"])


class Files(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.plan = settings.PairPlan("m", "m", self.directory, "1Mi", True)
        for folder in (self.plan.store, self.plan.slots):
            folder.mkdir()
        (self.plan.slots / pairs.LOCK).touch()

    def why(self):
        return " ".join(pairs.why_too_much(self.plan, self.plan.slots, 2))

    def test_what_is_allowed(self):
        with open(self.plan.store / "segment", "wb") as file:
            file.truncate(self.plan.store_bytes)
        for number in range(2):
            (self.plan.slots / f"larder-restore-{number}.slot").touch()
        self.assertEqual(self.why(), "")
        self.assertEqual(pairs.slot_files(self.plan.slots), [])

    def test_a_store_that_is_too_large(self):
        (self.plan.store / "deep").mkdir()
        for name, size in (("segment", self.plan.store_bytes), ("deep/one", 1)):
            with open(self.plan.store / name, "wb") as file:
                file.truncate(size)
        self.assertIn("--store-size", self.why())

    def test_slot_files_that_pile_up(self):
        for number in range(15):
            (self.plan.slots / f"larder-{number}.slot").touch()
        self.assertIn("15 slot files", self.why())
        for number in range(3):
            (self.plan.slots / f"larder-restore-{number}.slot").touch()
        self.assertIn("3 files of restores", self.why())

    def test_slots_that_are_busy_and_files_that_are_left(self):
        def why(busy=0, waiting=0, working=False, files=()):
            return command.why_busy({"slots": {"all": 1, "busy": busy, "waiting": waiting}},
                                    [{"id": 0, "is_processing": working}], list(files))

        self.assertEqual(why(), "")
        for bad in ({"busy": 1}, {"waiting": 1}, {"working": True}, {"files": ["larder-1.slot"]}):
            self.assertNotEqual(why(**bad), "", bad)


class FakeLife:
    def __init__(self, number=1, counters=None, pid=0):
        self.number, self.counters, self.pid = number, counters or {}, pid
        self.samples, self.judged_from = [], 0

    @staticmethod
    def is_alive():
        return True


class FakeProxy:
    name, log_path, port, is_meant_to_run = "m", None, 1, False

    def __init__(self, lives):
        self.lives = lives

    @property
    def life(self):
        return self.lives[-1]

    @staticmethod
    def log_tail():
        return ""


class FakePair:
    name, plan = "m", settings.PairPlan("m", "m", pathlib.Path("/nowhere"), "1Mi", True)

    def __init__(self, lives):
        self.proxy = FakeProxy(lives)
        self.server = pairs.Server(self.proxy)

    @property
    def processes(self):
        return [self.proxy, self.server]


class Servers(unittest.TestCase):
    """A child of this process stands for llama-server."""

    def setUp(self):
        self.pair = FakePair([FakeLife(pid=os.getpid())])
        self.ledger = ledger.Ledger(keeps_going=True)
        self.watch = watch.Watch(self.ledger, [self.pair])

    def start(self):
        command_line = [sys.executable, "-c", "import time; time.sleep(60)", "--slot-save-path", "/nowhere"]
        process = subprocess.Popen(command_line)
        self.addCleanup(lambda: (process.kill(), process.wait()))
        while pairs.slot_folder_of(process.pid) is None:
            time.sleep(0.01)  # it is not that program yet
        return process

    def restart(self, process):
        process.kill()
        process.wait()
        self.assertFalse(self.pair.server.is_alive())
        self.start()
        self.watch._look_at(self.pair.server)

    def test_one_that_ends_by_itself_is_seen(self):
        process = self.start()
        self.assertTrue(self.pair.server.look())
        self.assertEqual(self.pair.server.folder, pathlib.Path("/nowhere"))
        self.watch._look_at(self.pair.server)
        self.assertEqual(self.ledger.failures, [])
        self.restart(process)
        self.assertIn("ended by itself", self.ledger.failures[0])
        self.assertEqual(len(self.pair.server.lives), 2)

    def test_one_that_was_killed_is_not(self):
        process = self.start()
        self.assertTrue(self.pair.server.look())
        self.ledger.open_window("m", chaos.KILL_SERVER)
        self.restart(process)
        self.assertEqual((self.ledger.failures, len(self.pair.server.lives)), ([], 2))


class Ends(unittest.TestCase):
    STORAGE = settings.PairPlan.metrics + report.REUSED % "storage"

    def judge(self, lives, ties=0):
        book = ledger.Ledger(keeps_going=True)
        book.count("m", "tokens", 1000)
        book.count("m", "ties", ties)
        report.judge(book, [FakePair(lives)], book.begun + 30)
        return " ".join(book.failures)

    def good(self):
        return [FakeLife(1), FakeLife(2, {self.STORAGE: 64.0})]

    def test_good(self):
        self.assertEqual(self.judge(self.good(), ties=3), "")

    def test_what_proves_nothing(self):
        self.assertIn("nothing came from storage", self.judge([FakeLife(1, {self.STORAGE: 64.0}), FakeLife(2)]))
        self.assertIn("never restarted", self.judge([FakeLife(1, {self.STORAGE: 64.0})]))
        self.assertIn("were ties", self.judge(self.good(), ties=20))
        book = ledger.Ledger(keeps_going=True)
        report.judge(book, [FakePair(self.good())], book.begun + 30)
        self.assertIn("no token was checked", " ".join(book.failures))

    def test_prompts_that_were_taken_for_others(self):
        lives = self.good() + [FakeLife(3, {"larder_proxy_prompt_mismatches_total": 1.0})]
        self.assertIn("counted other tokens", self.judge(lives))

    def test_metrics(self):
        text = '# HELP x\nllama_x 1\nlarder_proxy_reused_tokens_total{from="storage"} 64\n'
        self.assertEqual(watch.parse_metrics(text), {self.STORAGE: 64.0})

    def test_the_command_that_replays_parses_to_the_same(self):
        options = settings.parse(["--seed", "7", "--minutes", "0.5", "--rate", "3.5", "--corrupt-token"])
        self.assertEqual(vars(options), vars(settings.parse(settings.replay(options).split()[1:])))

    def test_serve_has_no_llama_server_to_end(self):
        pair = FakePair([FakeLife()])
        pair.plan = settings.ServePlan("m", "m", pathlib.Path("/nowhere"), "1Mi", False)
        trouble = chaos.Chaos(settings.parse([]), ledger.Ledger(), [pair])
        self.assertEqual(trouble._deck(chaos.END_DECK, 0), [("kill", 0), ("kill", 0), ("terminate", 0)])
        self.assertEqual(trouble._deck(chaos.BESIDE_DECK, 0), [("stop", 0), ("flush", 0)])

    def test_llama_server_is_not_killed_until_the_proxy_gives_it_up(self):
        pair = FakePair([FakeLife()])
        pair.server.lives.append(FakeLife())
        trouble = chaos.Chaos(settings.parse([]), ledger.Ledger(), [pair])
        pair.server.life.judged_from = chaos.CLOCK.now()  # it has just begun
        seen = [trouble._would_give_up(pair) for _ in range(4)]
        pair.server.life.judged_from = 0
        self.assertEqual((seen, trouble._would_give_up(pair)), ([False] * 3 + [True], False))


def run():
    """0: all judgements are as they should be."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    return 0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1
