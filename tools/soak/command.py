"""`tools/soak.py`: all of it together."""

import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from soak import chaos, children, clients, http, judgements_test, ledger, prompts, report, settings, watch
from soak.clock import CLOCK

SKIPPED = 77
PROGRESS_SECONDS = 10
OPEN_FILES = 65536  # the 3FS library refuses to load when there may be 2^24
END_SECONDS = 120  # for clients, and trouble in progress, to end


class Soak:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.mount = directory / "mount"
        (self.mount / "3fs-virt" / "iovs").mkdir(parents=True)
        self.ledger = ledger.Ledger(options.keep_going)
        self.spawner, self.ports = children.Spawner(), children.Ports()
        self.reference = []
        port = self.ports.take()
        self.metadata = children.Child(settings.METADATA, settings.metadata_command(options.binary, port, directory),
                                       port, directory / "metadata.log", self.spawner, key=settings.METADATA_KEY)
        self.plans = settings.plans(options, directory, port)
        self.servers = [self._server(plan) for plan in self.plans]
        self.children = [*self.servers, self.metadata]

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

    def run(self):
        """Returns when it is over. DidNotStart, KeyboardInterrupt."""
        begun = CLOCK.now()
        groups = self.groups()
        say(f"{sum(len(s.answers) for _, scripts in groups for s in scripts)} answers learned from servers that keep "
            f"nothing, in {CLOCK.now() - begun:.1f} s")
        for child in [self.metadata, *self.servers]:
            child.start()
        self.ledger.begun = CLOCK.now()
        trouble = chaos.Chaos(self.options, self.ledger, list(zip(self.servers, self.plans)), self.metadata, self.mount)
        load = clients.Load(self.options, self.ledger, groups)
        watcher = watch.Watch(self.ledger, self.children)
        talkers = [clients.Client(number, load) for number in range(self.options.clients)]
        for thread in [watcher, *talkers, *trouble.hands]:
            thread.start()
        self._wait()
        self.ledger.is_over.set()
        self._join([*trouble.hands, *talkers])
        if not self.ledger.failures:
            self._end_in_order(trouble, watcher)
        watcher.stop()
        if not self.ledger.failures or self.options.keep_going:
            report.judge(self.ledger, self.servers, self.children, CLOCK.now())

    def _wait(self):
        line = ProgressLine()
        seconds = self.options.minutes * 60
        while self.ledger.seconds() < seconds:
            if self.ledger.is_over.wait(min(PROGRESS_SECONDS, max(0.01, seconds - self.ledger.seconds()))):
                break
            line.show(report.progress(self.ledger, self.children))
        line.end()

    def _join(self, threads):
        limit = CLOCK.now() + END_SECONDS
        for thread in threads:
            thread.join(max(0, limit - CLOCK.now()))
            if thread.is_alive():
                self.ledger.fail(f"{thread.name} did not end: it waits for a server")

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
        store = [str(self.options.binary), "store", "fsck", str(self.directory / "store")]
        done = subprocess.run(store, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                              check=False)
        if done.returncode != 0:
            self.ledger.fail(f"larder store fsck: {done.returncode}\n{done.stdout[-2000:]}")

    def end_children(self):
        for child in [*self.children, *self.reference]:
            child.kill()
        children.remove_unused_memory(self.mount, self.children)

    def write_samples(self):
        with open(self.directory / "samples.txt", "w", encoding="utf-8") as out:
            out.write("process life seconds rss_kib descriptors threads\n")
            for child in self.children:
                for life in child.lives:
                    for s in life.samples:
                        out.write(f"{child.name} {life.number} {s.seconds - self.ledger.begun:.1f} {s.rss_kib} "
                                  f"{s.descriptors} {s.threads}\n")

    def print_failures(self):
        for text in self.ledger.failures:
            print(f"FAIL {text}")
        print("\nthe last lines of each log:")
        for child in self.children:
            print(f"  {child.log_path}\n{child.log_tail(6)}")
        print(f"\nagain: {settings.replay(self.options)}")


class ProgressLine:
    """One line that changes on a terminal, else a line each time."""

    def __init__(self):
        self._is_terminal = sys.stdout.isatty()

    def show(self, text):
        if self._is_terminal:
            print("\r" + text[:shutil.get_terminal_size().columns - 1].ljust(20) + "\x1b[K", end="", flush=True)
        else:
            print(text, flush=True)

    def end(self):
        if self._is_terminal:
            print()


def say(text):
    print(text, flush=True)


def processor_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run(options, directory):
    CLOCK.start()
    begun = CLOCK.now()
    soak = Soak(options, directory)
    interrupted = False
    try:
        soak.run()
    except children.DidNotStart as error:
        soak.ledger.fail(str(error))
    except KeyboardInterrupt:
        interrupted = True
        soak.ledger.is_over.set()
        say("\ninterrupted")
    finally:
        soak.end_children()
        soak.write_samples()
    print("\n" + report.full(soak.ledger, soak.servers, soak.children, processor_seconds(), CLOCK.now() - begun))
    print(f"\nseed {options.seed}, {soak.ledger.seconds():.0f} s, {options.binary}")
    if soak.ledger.failures:
        soak.print_failures()
        return 1
    if interrupted:
        return 130
    print("ok: no wrong token, no failed request outside the windows, everything came back, memory is flat")
    return 0


def prepare():
    """Signals end the soak, also in the background, as Ctrl-C does; no more open files than the 3FS library takes."""

    def interrupt(*_):
        raise KeyboardInterrupt

    assert threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most) if soft != resource.RLIM_INFINITY else most, most))


def main(arguments=None):
    options = settings.parse(arguments)
    if options.self_test:
        return judgements_test.run()
    for path in (options.binary, options.library):
        if not path.is_file():
            print(f"SKIPPED: {path} is not there: build it, or give --binary and --library")
            return SKIPPED
    options.binary, options.library = options.binary.resolve(), options.library.resolve()
    prepare()
    directory = options.directory or pathlib.Path(tempfile.mkdtemp(prefix="larder_soak_", dir="/var/tmp"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(f"{directory} is not empty")
        return 2
    directory = directory.resolve()
    say(f"stores and logs: {directory}; seed {options.seed}; {options.minutes:g} min")
    code = run(options, directory)
    if options.directory is None and code == 0 and not options.keep:
        shutil.rmtree(directory)
    return code
