# SPDX-License-Identifier: Apache-2.0
"""`tools/soak.py`: all of it together."""

from soak import chaos, children, clients, frame, http, judgements_test, prompts, report, settings, watch
from soak.clock import CLOCK


class Soak(frame.Frame):
    binaries = settings.BINARIES
    replay = staticmethod(settings.replay)
    ok = "ok: no wrong token, no failed request outside the windows, everything came back, memory is flat"

    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.mount = directory / "mount"
        (self.mount / "3fs-virt" / "iovs").mkdir(parents=True)
        self.reference = []
        port = self.ports.take()
        self.metadata = children.Child(settings.METADATA, settings.metadata_command(options.binary, port, directory),
                                       port, directory / "metadata.log", self.spawner, key=settings.METADATA_KEY)
        self.plans = settings.plans(options, directory, port)
        self.servers = [self._server(plan) for plan in self.plans]
        self.processes = self.logs = [*self.servers, self.metadata]

    def _server(self, plan):
        port = self.ports.take()
        return children.Child(plan.name, plan.command(self.options.binary, port), port,
                              self.directory / f"{plan.name}.log", self.spawner)

    def learn(self, model):
        """All scripts of a model with their answers, from a server that keeps nothing."""
        port = self.ports.take()
        child = children.Child("reference", settings.reference_command(self.options.binary, port, model), port,
                               self.directory / "reference.log", self.spawner)
        self.reference.append(child)
        child.start()
        vocabulary = http.get_json(port, "/model_info")["vocab_size"]
        scripts = [prompts.Script(model, number, self.options.seed, self.options.turns, vocabulary)
                   for number in range(self.options.conversations)]
        prompts.learn(scripts, port)
        child.kill()
        if self.options.corrupt_token:
            answer = scripts[0].answers[-1]
            answer[len(answer) // 2] ^= 1
        return scripts

    def groups(self):
        """(children that share a model's storage, scripts) of each model."""
        by_model = {}
        for plan, child in zip(self.plans, self.servers):
            by_model.setdefault(plan.model, []).append(child)
        return [(group, self.learn(model)) for model, group in by_model.items()]

    def play(self):
        """Returns when it is over. DidNotStart, KeyboardInterrupt."""
        begun = CLOCK.now()
        groups = self.groups()
        count = sum(len(s.answers) for _, scripts in groups for s in scripts)
        frame.say(f"{count} answers learned from servers that keep nothing, in {CLOCK.now() - begun:.1f} s")
        for child in [self.metadata, *self.servers]:
            child.start()
        self.ledger.begun = CLOCK.now()
        trouble = chaos.Chaos(self.options, self.ledger, list(zip(self.servers, self.plans)), self.metadata, self.mount)
        load = clients.Load(self.options, self.ledger, groups)
        watcher = watch.Watch(self.ledger, self.processes)
        talkers = [clients.Client(number, load) for number in range(self.options.clients)]
        for thread in [watcher, *talkers, *trouble.hands]:
            thread.start()
        self.wait()
        self.join([*trouble.hands, *talkers])
        if not self.ledger.failures:
            self._end_in_order(trouble, watcher)
        watcher.stop()
        if not self.ledger.failures or self.options.keep_going:
            report.judge(self.ledger, self.servers, self.processes, CLOCK.now())

    def progress(self):
        return report.progress(self.ledger, self.processes)

    def full(self, seconds):
        return report.full(self.ledger, self.servers, self.processes, frame.processor_seconds(), seconds)

    def _end_in_order(self, trouble, watcher):
        """Nobody asks any more: backups end, tiers are emptied, processes end with 0, and the store is whole."""
        for child in self.servers:
            for target in ("/quiesce?timeout=60", "/flush_cache?timeout=30"):
                status, text = http.call(child.port, "POST", target, timeout=150)
                if status != 200:
                    self.ledger.fail(f"{child.name}: at the end: {target}: HTTP {status}: {text[:300]}")
            watcher.ask(child)
        for child in [*self.servers, self.metadata]:
            trouble.terminate(child)
        self.check_store("at the end", self.directory / "store")

    def end_children(self):
        for child in [*self.processes, *self.reference]:
            child.kill()
        children.remove_unused_memory(self.mount, self.processes)


def main(arguments=None):
    options = settings.parse(arguments)
    return judgements_test.run() if options.self_test else frame.main(options, Soak, "soak")
