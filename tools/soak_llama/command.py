# SPDX-License-Identifier: Apache-2.0
"""`tools/soak_llama.py`: all of it together."""

import shutil
import subprocess
import time

from soak import children, frame, http
from soak.clock import CLOCK
from soak_llama import asking, chaos, clients, conversations, judgements_test, pairs, report, settings, watch

QUIET_SECONDS = 20  # for slots to be free and slot files to be gone, at the end
FRESH_TOKENS = 300


class Soak(frame.Frame):
    binaries = settings.BINARIES
    replay = staticmethod(settings.replay)
    ok = ("ok: no wrong token, no failed request outside the windows, every slot serves, everything came back, "
          "memory is flat")

    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.plans = settings.plans(directory)
        self.pairs = [pairs.Pair(plan, options, directory, self.spawner, self.ports.take()) for plan in self.plans]
        self.plain = {plan.kind: self._plain(plan) for plan in self.plans}
        self.processes = [process for pair in self.pairs for process in pair.processes]
        self.logs = [*(pair.proxy for pair in self.pairs), *self.plain.values()]
        self.watcher, self.load = None, None

    def _plain(self, plan):
        port = self.ports.take()
        return children.Child(f"{plan.kind}-plain", plan.plain_command(self.options, port), port,
                              self.directory / f"{plan.kind}-plain.log", self.spawner)

    def learn(self):
        """Models, and all scripts with their answers."""
        models = {plan.kind: plan.model for plan in self.plans}
        for kind, child in self.plain.items():
            subprocess.run([str(self.options.write_model), kind, str(models[kind])], check=True,
                           stderr=subprocess.DEVNULL)
            child.start()
        plains = {kind: conversations.Plain(child.port) for kind, child in self.plain.items()}
        scripts = {kind: conversations.scripts_of(self.options, kind) for kind in plains}
        conversations.learn([(plains[kind], scripts[kind]) for kind in plains])
        groups = [([pair.proxy], scripts[pair.plan.kind]) for pair in self.pairs]
        self.load = clients.Load(self.options, self.ledger, groups,
                                 {plan.name: plains[plan.kind] for plan in self.plans})

    def play(self):
        """Returns when it is over. DidNotStart, KeyboardInterrupt."""
        begun = CLOCK.now()
        self.learn()
        count = sum(len(s.answers) for _, scripts in self.load.groups for s in scripts)
        frame.say(f"{count} answers learned from plain llama-servers, in {CLOCK.now() - begun:.1f} s")
        for pair in self.pairs:
            pair.start()
        self.ledger.begun = CLOCK.now()
        trouble = chaos.Chaos(self.options, self.ledger, self.pairs)
        self.watcher = watch.Watch(self.ledger, self.pairs)
        talkers = [clients.Client(number, self.load) for number in range(self.options.clients)]
        for thread in [self.watcher, *talkers, *trouble.hands]:
            thread.start()
        self.wait()
        self.join([*trouble.hands, *talkers])
        if not self.ledger.failures:
            self._end_in_order(trouble)
        self.watcher.stop()
        if not self.ledger.failures or self.options.keep_going:
            report.judge(self.ledger, self.pairs, CLOCK.now())

    def progress(self):
        return report.progress(self.ledger, self.pairs)

    def full(self, seconds):
        furthest = self.load.furthest if self.load else 0.0
        return report.full(self.ledger, self.pairs, self.watcher, furthest, frame.processor_seconds(), seconds)

    # ---- the end, in order

    def _end_in_order(self, trouble):
        """Nobody asks any more: every slot is free and serves, what was saved is put away, the store is whole."""
        for pair in self.pairs:
            self._wait_quiet(pair)
            self._use_every_slot(pair)
            self._wait_quiet(pair)
            self.watcher.ask(pair.proxy)
            self.watcher.look_at_files(pair)
        for pair in self.pairs:
            trouble.terminate(pair)
            self.check_store(pair.name, pair.plan.store)

    def _wait_quiet(self, pair):
        limit = CLOCK.now() + QUIET_SECONDS
        while True:
            try:
                slots = http.get_json(pair.proxy.port, "/slots") if pair.plan.has_server else []
                files = pairs.slot_files(pair.server.folder) if pair.plan.has_server else []
                busy = why_busy(http.get_json(pair.proxy.port, "/larder/status"), slots, files)
            except http.Failed as error:
                busy = str(error)
            if not busy or CLOCK.now() > limit:
                break
            time.sleep(0.2)
        if busy:
            self.ledger.fail(f"{pair.name}: {QUIET_SECONDS} s after the last request: {busy}\n{pair.proxy.log_tail()}")

    def _use_every_slot(self, pair):
        """Prompts that have nothing in common go to the slot that was not used for longest, so each has its turn."""
        served = set()
        for number in range(2 * settings.SLOTS):
            connection = http.Connection(pair.proxy.port)
            try:
                answer = asking.ask(connection, asking.completion([33 + number] * FRESH_TOKENS, 2))
            except http.Failed as error:
                self.ledger.fail(f"{pair.name}: at the end a request failed: {error}")
                return
            finally:
                connection.close()
            served.add(answer.slot)
            if answer.reused is None:
                self.ledger.fail(f"{pair.name}: at the end a request went on without the cache")
        if pair.plan.has_server and served != set(range(settings.SLOTS)):
            self.ledger.fail(f"{pair.name}: of {settings.SLOTS} slots only {sorted(served)} serve at the end")

    def end_children(self):
        for pair in self.pairs:
            pair.end()
            folder = pair.server.folder
            if folder and pair.plan.slots is None:
                pair.server.wait_gone()
                shutil.rmtree(folder, ignore_errors=True)
        for child in self.plain.values():
            child.kill()


def why_busy(status, slots, files):
    """Of a proxy's /larder/status, llama-server's /slots, and its slot files: "" if nothing goes on."""
    use = status["slots"]
    working = [slot["id"] for slot in slots if slot["is_processing"]]
    if use["busy"] or use["waiting"]:
        return f"/larder/status: {use['busy']} slots are busy, {use['waiting']} requests wait"
    if working:
        return f"llama-server: slots {working} are working"
    return f"slot files are left: {files}" if files else ""


def main(arguments=None):
    options = settings.parse(arguments)
    return judgements_test.run() if options.self_test else frame.main(options, Soak, "soak_llama")
