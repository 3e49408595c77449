"""`tools/soak_llama.py`: all of it together."""

import pathlib
import shutil
import subprocess
import tempfile
import time

from soak import children, http, ledger
from soak.clock import CLOCK
from soak.command import END_SECONDS, PROGRESS_SECONDS, SKIPPED, ProgressLine, prepare, processor_seconds, say
from soak_llama import asking, chaos, clients, conversations, judgements_test, pairs, report, settings, watch

QUIET_SECONDS = 20  # for slots to be free and slot files to be gone, at the end
FRESH_TOKENS = 300


class Soak:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.ledger = ledger.Ledger(options.keep_going)
        self.spawner, self.ports = children.Spawner(), children.Ports()
        self.plans = settings.plans(directory)
        self.pairs = [pairs.Pair(plan, options, directory, self.spawner, self.ports.take()) for plan in self.plans]
        self.plain = {plan.kind: self._plain(plan) for plan in self.plans}
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

    def run(self):
        """Returns when it is over. DidNotStart, KeyboardInterrupt."""
        begun = CLOCK.now()
        self.learn()
        say(f"{sum(len(s.answers) for _, scripts in self.load.groups for s in scripts)} answers learned from plain "
            f"llama-servers, in {CLOCK.now() - begun:.1f} s")
        for pair in self.pairs:
            pair.start()
        self.ledger.begun = CLOCK.now()
        trouble = chaos.Chaos(self.options, self.ledger, self.pairs)
        self.watcher = watch.Watch(self.ledger, self.pairs)
        talkers = [clients.Client(number, self.load) for number in range(self.options.clients)]
        for thread in [self.watcher, *talkers, *trouble.hands]:
            thread.start()
        self._wait()
        self.ledger.is_over.set()
        self._join([*trouble.hands, *talkers])
        if not self.ledger.failures:
            self._end_in_order(trouble)
        self.watcher.stop()
        if not self.ledger.failures or self.options.keep_going:
            report.judge(self.ledger, self.pairs, CLOCK.now())

    def _wait(self):
        line = ProgressLine()
        seconds = self.options.minutes * 60
        while self.ledger.seconds() < seconds:
            if self.ledger.is_over.wait(min(PROGRESS_SECONDS, max(0.01, seconds - self.ledger.seconds()))):
                break
            line.show(report.progress(self.ledger, self.pairs))
        line.end()

    def _join(self, threads):
        limit = CLOCK.now() + END_SECONDS
        for thread in threads:
            thread.join(max(0, limit - CLOCK.now()))
            if thread.is_alive():
                self.ledger.fail(f"{thread.name} did not end: it waits for a server")

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
            self._check_store(pair)

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

    def _check_store(self, pair):
        done = subprocess.run([str(self.options.binary), "store", "fsck", str(pair.plan.store)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        if done.returncode != 0:
            self.ledger.fail(f"{pair.name}: larder store fsck: {done.returncode}\n{done.stdout[-2000:]}")

    def end_children(self):
        for pair in self.pairs:
            pair.end()
            folder = pair.server.folder
            if folder and pair.plan.slots is None:
                pair.server.wait_gone()
                shutil.rmtree(folder, ignore_errors=True)
        for child in self.plain.values():
            child.kill()

    def write_samples(self):
        with open(self.directory / "samples.txt", "w", encoding="utf-8") as out:
            out.write("process life seconds rss_kib descriptors threads\n")
            for process in [process for pair in self.pairs for process in pair.processes]:
                for life in process.lives:
                    for s in life.samples:
                        out.write(f"{process.name} {life.number} {s.seconds - self.ledger.begun:.1f} {s.rss_kib} "
                                  f"{s.descriptors} {s.threads}\n")

    def print_failures(self):
        for text in self.ledger.failures:
            print(f"FAIL {text}")
        print("\nthe last lines of each log:")
        for child in [*(pair.proxy for pair in self.pairs), *self.plain.values()]:
            print(f"  {child.log_path}\n{child.log_tail(6)}")
        print(f"\nagain: {settings.replay(self.options)}")


def why_busy(status, slots, files):
    """Of a proxy's /larder/status, llama-server's /slots, and its slot files: "" if nothing goes on."""
    use = status["slots"]
    working = [slot["id"] for slot in slots if slot["is_processing"]]
    if use["busy"] or use["waiting"]:
        return f"/larder/status: {use['busy']} slots are busy, {use['waiting']} requests wait"
    if working:
        return f"llama-server: slots {working} are working"
    return f"slot files are left: {files}" if files else ""


def run(options, directory):
    CLOCK.start()
    begun = CLOCK.now()
    soak = Soak(options, directory)
    interrupted = False
    try:
        soak.run()
    except (children.DidNotStart, http.Failed, subprocess.CalledProcessError) as error:
        soak.ledger.fail(str(error))
    except KeyboardInterrupt:
        interrupted = True
        soak.ledger.is_over.set()
        say("\ninterrupted")
    finally:
        soak.end_children()
        soak.write_samples()
    furthest = soak.load.furthest if soak.load else 0.0
    print("\n" + report.full(soak.ledger, soak.pairs, soak.watcher, furthest, processor_seconds(), CLOCK.now() - begun))
    print(f"\nseed {options.seed}, {soak.ledger.seconds():.0f} s, {options.binary}, {options.llama_server}")
    if soak.ledger.failures:
        soak.print_failures()
        return 1
    if interrupted:
        return 130
    print("ok: no wrong token, no failed request outside the windows, every slot serves, everything came back, memory "
          "is flat")
    return 0


def main(arguments=None):
    options = settings.parse(arguments)
    if options.self_test:
        return judgements_test.run()
    for name in ("binary", "write_model", "llama_server"):
        path = getattr(options, name)
        if not path.is_file():
            print(f"SKIPPED: {path} is not there: build it (docs/llama_cpp.md), or give --{name.replace('_', '-')}")
            return SKIPPED
        setattr(options, name, path.resolve())
    prepare()
    directory = options.directory or pathlib.Path(tempfile.mkdtemp(prefix="larder_soak_llama_", dir="/var/tmp"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(f"{directory} is not empty")
        return 2
    directory = directory.resolve()
    say(f"models, stores and logs: {directory}; seed {options.seed}; {options.minutes:g} min")
    code = run(options, directory)
    if options.directory is None and code == 0 and not options.keep:
        shutil.rmtree(directory)
    return code
