# SPDX-License-Identifier: Apache-2.0
"""What every soak has besides its servers: options, signals, a folder, threads that end, samples, the last words.

A soak is a class derived from Frame, and a program is main(). tools/soak_llama uses both, too.
"""

import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from soak import children, http, ledger
from soak.clock import CLOCK

SKIPPED = 77
PROGRESS_SECONDS = 10
OPEN_FILES = 65536  # the 3FS library refuses to load when there may be 2^24
END_SECONDS = 120  # for clients, and trouble in progress, to end
LIMITS = (("minutes", 0.05, 10_000), ("clients", 1, 64), ("rate", 0.1, 1000), ("trouble", 0.2, 600),
          ("conversations", 1, 1000), ("turns", 1, 12))


class Frame:
    """A derived class has:

    processes      those that are sampled
    logs           children whose logs are shown after a failure
    binaries       names of the options that are paths of what it runs
    ok             the last line when nothing failed
    play()         all of it, until it is over
    progress()     a line meanwhile
    full(seconds)  the tables at the end
    end_children()
    replay(options), static: the command that runs the same again
    """

    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.ledger = ledger.Ledger(options.keep_going)
        self.spawner, self.ports = children.Spawner(), children.Ports()

    def wait(self):
        """Until time is over, or something failed."""
        line = ProgressLine()
        seconds = self.options.minutes * 60
        while self.ledger.seconds() < seconds:
            if self.ledger.is_over.wait(min(PROGRESS_SECONDS, max(0.01, seconds - self.ledger.seconds()))):
                break
            line.show(self.progress())
        line.end()
        self.ledger.is_over.set()

    def join(self, threads):
        limit = CLOCK.now() + END_SECONDS
        for thread in threads:
            thread.join(max(0, limit - CLOCK.now()))
            if thread.is_alive():
                self.ledger.fail(f"{thread.name} did not end: it waits for a server")

    def check_store(self, name, store):
        done = subprocess.run([str(self.options.binary), "store", "fsck", str(store)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        if done.returncode != 0:
            self.ledger.fail(f"{name}: larder store fsck: {done.returncode}\n{done.stdout[-2000:]}")

    def write_samples(self):
        with open(self.directory / "samples.txt", "w", encoding="utf-8") as out:
            out.write("process life seconds rss_kib descriptors threads\n")
            for process in self.processes:
                for life in process.lives:
                    for s in life.samples:
                        out.write(f"{process.name} {life.number} {s.seconds - self.ledger.begun:.1f} {s.rss_kib} "
                                  f"{s.descriptors} {s.threads}\n")

    def print_failures(self):
        for text in self.ledger.failures:
            print(f"FAIL {text}")
        print("\nthe last lines of each log:")
        for child in self.logs:
            print(f"  {child.log_path}\n{child.log_tail(6)}")
        print(f"\nagain: {self.replay(self.options)}")

    def run(self):
        """The exit code."""
        begun = CLOCK.now()
        interrupted = False
        try:
            self.play()
        except (children.DidNotStart, http.Failed, subprocess.CalledProcessError) as error:
            self.ledger.fail(str(error))
        except KeyboardInterrupt:
            interrupted = True
            self.ledger.is_over.set()
            say("\ninterrupted")
        finally:
            self.end_children()
            self.write_samples()
        print("\n" + self.full(CLOCK.now() - begun))
        binaries = ", ".join(str(getattr(self.options, name)) for name in self.binaries)
        print(f"\nseed {self.options.seed}, {self.ledger.seconds():.0f} s, {binaries}")
        if self.ledger.failures:
            self.print_failures()
            return 1
        if interrupted:
            return 130
        print(self.ok)
        return 0


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


# ---- options


def add_options(add, minutes, rate, conversations):
    """Those that every soak has; the numbers are defaults. add: add_argument of a parser."""
    add("--minutes", type=float, default=minutes, help=f"how long trouble lasts; a minute more in all ({minutes})")
    add("--seed", type=int, default=1, help="of prompts and trouble; what overlaps what is up to the machine (1)")
    add("--directory", type=pathlib.Path, default=None,
        help="stores and logs; must be new or empty (a temporary one, removed if all went well)")
    add("--keep", action="store_true", help="keep the temporary directory in any case")
    add("--clients", type=int, default=6, help="conversations at once (6)")
    add("--rate", type=float, default=rate, help=f"requests per second of all clients together, at most ({rate})")
    add("--trouble", type=float, default=None, help="mean seconds between two events for a server (less in a short "
        "soak, so that everything happens)")
    add("--conversations", type=int, default=conversations,
        help=f"scripts per model; each is held again and again ({conversations})")
    add("--turns", type=int, default=6, help="turns of a conversation (6)")
    add("--keep-going", action="store_true", help="go on after a failure")
    add("--corrupt-token", action="store_true", help="take one token for another one: the soak must fail")
    add("--self-test", action="store_true", help="only check the soak's own judgements; starts no server")


def check_options(parser, options):
    for name, low, high in LIMITS:
        if not low <= getattr(options, name) <= high:
            parser.error(f"--{name}: from {low} to {high}")


def replay_words(options, program, binaries):
    """The command that runs the same again."""
    words = [f"tools/{program}.py", f"--minutes {options.minutes:g}", f"--seed {options.seed}"]
    for name in ("clients", "rate", "trouble", "conversations", "turns"):
        words.append(f"--{name} {getattr(options, name):g}")
    words += [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in binaries]
    if options.corrupt_token:
        words.append("--corrupt-token")
    return words


# ---- the program


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


def main(options, soak_class, name):
    """The exit code of the soak `name`."""
    for option in soak_class.binaries:
        path = getattr(options, option)
        if not path.is_file():
            print(f"SKIPPED: {path} is not there: build it, or give --{option.replace('_', '-')}")
            return SKIPPED
        setattr(options, option, path.resolve())
    prepare()
    directory = options.directory or pathlib.Path(tempfile.mkdtemp(prefix=f"larder_{name}_", dir="/var/tmp"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(f"{directory} is not empty")
        return 2
    directory = directory.resolve()
    say(f"stores and logs: {directory}; seed {options.seed}; {options.minutes:g} min")
    CLOCK.start()
    code = soak_class(options, directory).run()
    if options.directory is None and code == 0 and not options.keep:
        shutil.rmtree(directory)
    return code
