# SPDX-License-Identifier: Apache-2.0
"""The soak's own judgements: each is shown something bad and something good. `tools/soak.py --self-test`."""

import mmap
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

from soak import children, clock, ledger, prompts, report, settings, watch


class FakeClock:
    """Of a ledger."""

    def __init__(self):
        self.seconds = 100.0
        self.still_moments = []

    def now(self):
        return self.seconds


class FakeLife:
    def __init__(self, number, samples=(), counters=None):
        self.number, self.samples, self.counters = number, list(samples), counters or {}
        self.judged_from = 0


class FakeChild:
    def __init__(self, lives, name="gdn"):
        self.name, self.lives = name, lives


class Tokens(unittest.TestCase):
    EXPECTED = [5, 6, 7, 8]

    def test_right(self):
        self.assertIsNone(prompts.wrong_token(self.EXPECTED, [5, 6, 7, 8], True))
        self.assertIsNone(prompts.wrong_token(self.EXPECTED, [5, 6], False))
        self.assertIsNone(prompts.wrong_token(self.EXPECTED, [], False))

    def test_every_wrong_position_is_seen(self):
        for position in range(4):
            for is_complete in (True, False):
                answer = list(self.EXPECTED)
                answer[position] ^= 1
                self.assertIn(f"token {position} ", prompts.wrong_token(self.EXPECTED, answer, is_complete))

    def test_a_wrong_length_is_seen(self):
        self.assertIsNotNone(prompts.wrong_token(self.EXPECTED, [5, 6, 7], True))
        self.assertIsNotNone(prompts.wrong_token(self.EXPECTED, [5, 6, 7, 8, 9], True))
        self.assertIsNotNone(prompts.wrong_token(self.EXPECTED, [5, 6, 7, 8, 9], False))

    def test_a_prompt_has_the_answers_before_it_and_a_seed_makes_it_again(self):
        script, again, other = (prompts.Script("m", 0, seed, 3, 100) for seed in (1, 1, 2))
        for one in (script, again, other):
            one.answers = [[1000], [1001], [1002]]
        self.assertEqual(script.prompt(2), again.prompt(2))
        self.assertNotEqual(script.prompt(2), other.prompt(2))
        self.assertEqual([t for t in script.prompt(2) if t >= 1000], [1000, 1001])
        self.assertEqual(script.prompt(2)[:len(script.prompt(1))], script.prompt(1))


class Windows(unittest.TestCase):
    def setUp(self):
        self.clock = FakeClock()
        self.ledger = ledger.Ledger(clock=self.clock)

    def window(self, begun, ended):
        self.clock.seconds = begun
        window = self.ledger.open_window("gdn", "kill")
        self.clock.seconds = ended
        self.ledger.close_window(window)

    def failed(self, begun, ended, server="gdn"):
        self.clock.seconds = ended
        return self.ledger.request_failed(server, begun, "refused")

    def test_a_failure_without_a_window_ends_the_soak(self):
        self.assertFalse(self.failed(100, 101))
        self.assertTrue(self.ledger.is_over.is_set())
        self.assertIn("outside every window", self.ledger.failures[0])

    def test_a_failure_that_meets_a_window_is_excused(self):
        self.window(110, 120)
        for begun, ended in ((105, 111), (112, 113), (119, 130), (105, 130)):
            self.assertTrue(self.failed(begun, ended), (begun, ended))
        self.assertEqual(self.ledger.failures, [])
        self.assertEqual(self.ledger.counts["gdn"]["failed in windows"], 4)

    def test_an_open_window_excuses_what_ends_after_its_begin(self):
        self.clock.seconds = 110
        self.ledger.open_window("gdn", "kill")
        self.assertTrue(self.failed(105, 500))
        self.assertFalse(self.failed(105, 109))

    def test_before_after_and_of_another_server_it_is_not(self):
        self.window(110, 120)
        self.assertFalse(self.failed(105, 109))
        self.assertFalse(self.failed(121, 122))
        self.assertFalse(self.failed(112, 113, "swa"))

    def test_what_fails_while_or_just_after_the_machine_stood_still_is_excused(self):
        self.clock.still_moments.append(115)
        self.assertTrue(self.failed(110, 116))
        self.assertTrue(self.failed(118, 119))
        self.assertFalse(self.failed(110, 114))
        self.assertFalse(self.failed(115 + ledger.STILL_GRACE_SECONDS + 1, 130))

    def test_the_clock_does_not_count_stillness(self):
        times = iter([0.0, 1.0, 3.0, 103.0, 104.0])
        one = clock.Clock(lambda: next(times))
        self.assertEqual([one.now() for _ in range(4)], [1.0, 3.0, 3.0, 4.0])
        self.assertEqual((one.still_seconds, one.still_moments), (100.0, [3.0]))

    def test_keep_going(self):
        going = ledger.Ledger(keeps_going=True, clock=self.clock)
        going.fail("x")
        self.assertFalse(going.is_over.is_set())
        self.assertEqual(len(going.failures), 1)


class Flatness(unittest.TestCase):
    SECONDS = int(4 * watch.LONG_ENOUGH_SECONDS)

    def why(self, rss, descriptors=lambda t: 20, threads=lambda t: 30, seconds=SECONDS, judged_from=0, earlier=0):
        life = FakeLife(1, [watch.Sample(t, rss(t), descriptors(t), threads(t)) for t in range(seconds)])
        life.judged_from = judged_from
        return watch.why_not_flat(life, earlier)

    @staticmethod
    def flat(t):
        """With a warm-up, noise, and dips of some seconds, as when storage is detached."""
        return 50_000 + min(t, 40) * 500 + (t * 7919) % 2000 - (15_000 if t % 60 < 4 else 0)

    def test_flat(self):
        self.assertEqual(self.why(self.flat), [])

    def test_memory_that_grows_is_seen_also_under_noise(self):
        for rise in (50, 100, 1000):
            found = self.why(lambda t, rise=rise: self.flat(t) + rise * t)
            self.assertEqual(len(found), 1)
            self.assertIn("more KiB of memory", found[0])

    def test_memory_that_grows_to_what_earlier_lives_had_is_a_warm_up(self):
        def rss(t):
            return 50_000 + 100 * t

        most = rss(self.SECONDS)
        self.assertEqual(self.why(rss, earlier=most), [])
        self.assertEqual(len(self.why(rss, earlier=most - 1000)), 1)

    def test_memory_that_shrinks_is_not(self):
        self.assertEqual(self.why(lambda t: 90_000 - 100 * t), [])

    def test_descriptors_and_threads_that_grow_are_seen(self):
        self.assertIn("descriptors", self.why(self.flat, lambda t: 20 + t // 5)[0])
        self.assertIn("threads", self.why(self.flat, threads=lambda t: t // 8)[0])

    def test_the_step_of_a_first_attach_is_left_out_and_a_second_one_is_seen(self):
        step = int(0.7 * self.SECONDS)

        def descriptors(t):
            return 100 if t < step else 200

        self.assertIn("descriptors", self.why(self.flat, descriptors)[0])
        self.assertEqual(self.why(self.flat, descriptors, judged_from=step), [])

    def test_a_short_life_is_not_judged(self):
        self.assertEqual(self.why(lambda t: 50_000 + 5000 * t, seconds=30), [])

    def test_peaks_from_life_to_life(self):
        def lives(peak):
            return [[watch.Sample(100.0 * n + t, peak(n), 1, 1) for t in range(90)] for n in range(12)]

        self.assertEqual(watch.why_peaks_grow(lives(lambda n: 50_000 + n % 3 * 1000), 0, 1200), [])
        self.assertIn("peak", watch.why_peaks_grow(lives(lambda n: 50_000 + 2000 * n), 0, 1200)[0])


class SharedMemory(unittest.TestCase):
    """Of 3FS: a file in /dev/shm with a link under the mount."""

    def setUp(self):
        self.mount = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.mount)
        links = self.mount / "3fs-virt" / "iovs"
        links.mkdir(parents=True)
        self.name = f"{children.SHARED_MEMORY}self-test-{os.getpid()}"
        with open(self.name, "wb+") as file:
            file.truncate(4096)
            self.mapped = mmap.mmap(file.fileno(), 4096)
        self.addCleanup(lambda: os.path.exists(self.name) and os.unlink(self.name))
        (links / "one").symlink_to(self.name)

    @staticmethod
    def living_process():
        child, child.life = FakeChild([]), FakeLife(1)
        child.life.pid, child.life.is_alive = os.getpid(), lambda: True
        return child

    def test_what_a_living_process_has_mapped_stays(self):
        self.assertEqual(children.remove_unused_memory(self.mount, [self.living_process()]), 0)
        self.assertTrue(os.path.exists(self.name))

    def test_what_nobody_has_mapped_is_counted_and_removed(self):
        self.mapped.close()
        self.assertEqual(children.remove_unused_memory(self.mount, [self.living_process()]), 1)
        self.assertFalse(os.path.exists(self.name))
        self.assertEqual(children.remove_unused_memory(self.mount, []), 0)


class Verdict(unittest.TestCase):
    def judge(self, lives):
        book = ledger.Ledger(keeps_going=True)
        book.count("gdn", "tokens", 24)
        child = FakeChild(lives)
        report.judge(book, [child], [child], book.begun + 30)
        return " ".join(book.failures)

    @staticmethod
    def life(number, storage, internal_errors=0):
        return FakeLife(number, counters={"cached_tokens": {"storage": storage},
                                          "cache": {"internal_errors": internal_errors}})

    def test_good(self):
        self.assertEqual(self.judge([self.life(1, 0), self.life(2, 64)]), "")

    def test_storage_hits_before_a_restart_prove_nothing(self):
        self.assertIn("proved nothing", self.judge([self.life(1, 640), self.life(2, 0)]))
        self.assertIn("never restarted", self.judge([self.life(1, 640)]))

    def test_internal_errors(self):
        self.assertIn("internal errors", self.judge([self.life(1, 0, 1), self.life(2, 64)]))

    def test_no_tokens(self):
        book = ledger.Ledger(keeps_going=True)
        child = FakeChild([self.life(1, 0), self.life(2, 64)])
        report.judge(book, [child], [child], book.begun + 30)
        self.assertIn("no token was checked", " ".join(book.failures))

    def test_the_command_that_replays_parses_to_the_same(self):
        options = settings.parse(["--seed", "7", "--minutes", "0.5", "--rate", "3.5", "--no-probe", "--corrupt-token"])
        again = settings.parse(settings.replay(options).split()[1:])
        self.assertEqual(vars(options), vars(again))


def run():
    """0: all judgements are as they should be."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    return 0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1
