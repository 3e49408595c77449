#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server whose words nobody reads goes on, and ends when it is told to; without a thread for its log none starts.

    stalled_log.py BINARY

Standard error is a pipe that is full before the server starts. Its lines wait in a queue; what does not fit there is
counted. Once somebody reads, the lines come in their order; a server that ends waits a second at most for that, also
at SIGABRT. Standard output may be the same pipe.
"""

import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

COMMAND = ["serve", "--port", "0", "--model", "gdn-tiny", "--max-total-tokens", "8192", "--threads", "1"]
METADATA_COMMAND = ["metadata-server", "--port", "0"]
REQUESTS = 1000
LINES = 100


def need(condition, text):
    if not condition:
        sys.exit("FAILED: " + text)


def fill(writing):
    """Until not a byte has room. How many there were."""
    os.set_blocking(writing, False)
    filled = 0
    for size in (4096, 1):
        try:
            while True:
                filled += os.write(writing, b"." * size)
        except BlockingIOError:
            pass
    os.set_blocking(writing, True)
    return filled


def full_pipe():
    """Both ends, and how many bytes stand in it."""
    reading, writing = os.pipe()
    return reading, writing, fill(writing)


class Server:
    """With standard error on `errors`, which is closed here."""

    def __init__(self, binary, errors):
        self.process = subprocess.Popen([binary, *COMMAND], stdout=subprocess.PIPE, stderr=errors, text=True)
        os.close(errors)
        line = self.process.stdout.readline()
        need("listening on" in line, f"the server did not start: {line}")
        url = urllib.parse.urlsplit(re.search(r"http://[^\s]+", line).group(0))
        self.connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)

    def ask(self, method, path, headers=None):
        self.connection.request(method, path, headers=headers or {})
        answer = self.connection.getresponse()
        answer.read()
        return answer.status

    def flush(self, times):
        """Each writes a line."""
        for _ in range(times):
            need(self.ask("POST", "/flush_cache") == 200, "a flush failed")

    def refused(self, times):
        for _ in range(times):
            status = self.ask("POST", "/flush_cache", {"X-Forwarded-For": "192.0.2.7"})
            need(status == 400, f"a request from elsewhere was answered with {status}")

    def stop(self):
        self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        self.need_end(0)

    def need_end(self, code):
        output = self.process.communicate(timeout=60)[0]
        need(self.process.returncode == code, f"exit code {self.process.returncode}, not {code}: {output}")

    def is_alone(self):
        """Of its threads only main()'s and the two that write are left, or none: there is nothing more that it logs."""
        return len(os.listdir(f"/proc/{self.process.pid}/task")) <= 3

    def handles(self, number):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status.read(), re.MULTILINE)
        return caught is not None and int(caught.group(1), 16) >> (number - 1) & 1 == 1


def wait_until(what, text):
    end = time.monotonic() + 60
    while not what():
        need(time.monotonic() < end, text)
        time.sleep(0.005)


class Reader:
    """Reads from start() on, on a thread."""

    def __init__(self, reading):
        self.said = b""
        self.reading = reading
        self.thread = threading.Thread(target=self._read)

    def start(self):
        self.thread.start()

    def _read(self):
        with os.fdopen(self.reading, "rb") as pipe:
            self.said = pipe.read()

    def audits(self, filled):
        """Once the server has ended: lines about administrative requests, behind what filled the pipe."""
        self.thread.join(timeout=60)
        need(not self.thread.is_alive(), "standard error stays open")
        return [line for line in self.said[filled:].decode().splitlines() if "server/audit" in line]


def check_stalled_reader(binary):
    reading, writing, _ = full_pipe()
    server = Server(binary, writing)
    try:
        server.refused(REQUESTS)
        server.flush(REQUESTS)
        need(server.ask("GET", "/health") == 200, "/health is not 200")
        server.stop()
    finally:
        server.process.kill()
        os.close(reading)
    print("ok   nobody reads: requests are answered, and SIGTERM ends it")


def check_late_reader(binary):
    reading, writing, filled = full_pipe()
    server = Server(binary, writing)
    reader = Reader(reading)
    try:
        server.flush(LINES)
        reader.start()
        server.refused(10)
        server.flush(1)
        server.stop()
    finally:
        server.process.kill()
    audits = reader.audits(filled)
    answered = [line for line in audits if ": 200 (OK)" in line]
    need(len(answered) == LINES + 1, f"{len(answered)} lines of {LINES + 1} flushes: {audits[-3:]}")
    need(audits.index(answered[LINES - 1]) == LINES - 1, "the order is another one")
    refused = [line for line in audits if "POST" in line and ": 400 (" in line]
    untold = sum(int(number) for number in re.findall(r"(\d+) more (?:before it )?have no line", "\n".join(audits)))
    need(len(refused) + untold == 10, f"{len(refused)} lines of 10 refusals, and {untold} without: {audits[-3:]}")
    print("ok   somebody reads again: every line, in order, the last before the end included")


def check_reader_at_the_end(binary):
    """Somebody reads only when the server has nothing left to do but to write what waits."""
    reading, writing, filled = full_pipe()
    server = Server(binary, writing)
    reader = Reader(reading)
    try:
        server.flush(LINES)
        server.connection.close()
        server.process.send_signal(signal.SIGTERM)
        line = server.process.stdout.readline()
        while line and not line.startswith("stopping:"):
            line = server.process.stdout.readline()
        need(line, "it ended without a word")
        wait_until(server.is_alone, "its threads do not end")
        reader.start()
        server.need_end(0)
    finally:
        server.process.kill()
    audits = reader.audits(filled)
    need(len(audits) == LINES, f"{len(audits)} lines of {LINES} flushes: {audits[-3:]}")
    print("ok   somebody reads when the server is about to end: every line")


def check_fatal_signal(binary):
    for is_read in (True, False):
        reading, writing, filled = full_pipe()
        server = Server(binary, writing)
        reader = Reader(reading)
        try:
            server.flush(LINES)
            server.connection.close()
            need(server.handles(signal.SIGABRT), "nothing handles SIGABRT")
            server.process.send_signal(signal.SIGABRT)
            wait_until(lambda server=server: not server.handles(signal.SIGABRT), "SIGABRT does not come")
            if is_read:
                reader.start()
            server.need_end(-signal.SIGABRT)
        finally:
            server.process.kill()
        if is_read:
            audits = reader.audits(filled)
            need(len(audits) == LINES, f"{len(audits)} lines of {LINES} flushes: {audits[-3:]}")
        else:
            os.close(reading)
    print("ok   SIGABRT: every line that somebody reads, and the end where nobody does")


def check_one_pipe(binary):
    """`2>&1 | reader`, whose reader stalls before the server starts, or once it serves."""
    for command in (COMMAND, METADATA_COMMAND):
        for is_full_at_start in (True, False):
            reading, writing = os.pipe()
            with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.bind(os.path.join(folder, "notify"))
                manager.settimeout(60)
                if is_full_at_start:
                    fill(writing)
                process = subprocess.Popen([binary, *command], stdin=subprocess.DEVNULL, stdout=writing, stderr=writing,
                                           env={**os.environ, "NOTIFY_SOCKET": manager.getsockname()})
                try:
                    said = manager.recv(4096)  # and not its line, which may wait
                    need(said == b"READY=1", f"{command}: the first word is {said}")
                    fill(writing)
                    process.send_signal(signal.SIGTERM)
                    code = process.wait(timeout=60)
                    need(code == 0, f"{command}: exit code {code}")
                finally:
                    process.kill()
            os.close(writing)
            os.close(reading)
    print("ok   nobody reads standard output either: it starts, and SIGTERM ends it")


def check_failed_start(binary):
    reading, writing, _ = full_pipe()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [str(taken.getsockname()[1]) if word == "0" else word for word in COMMAND]
        done = subprocess.run([binary, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writing,
                              timeout=60, check=False)
    need(done.returncode == 1, f"the port is taken, and the exit code is {done.returncode}")
    os.close(writing)
    os.close(reading)
    print("ok   nobody reads why it cannot start: it ends")


def leave_no_room_for_threads():
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 47, hard))  # a thread's stack, more than there are addresses


def check_no_thread(binary):
    """Another start may succeed: not the exit code of a wrong command line."""
    def run(*arguments):
        return subprocess.run([binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60, check=False, preexec_fn=leave_no_room_for_threads)

    # The addresses lie elsewhere then, which not every sanitizer takes.
    is_limited = resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY
    if is_limited or run("version").returncode != 0:
        print("skip no thread for the log: the limit of stacks cannot be raised so far")
        return
    done = run(*COMMAND)
    need(done.returncode == 1 and "the log has no thread: " in done.stderr, f"{done.returncode}: {done.stderr}")
    print("ok   no thread for the log: exit code 1")


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    check_stalled_reader(sys.argv[1])
    check_late_reader(sys.argv[1])
    check_reader_at_the_end(sys.argv[1])
    check_fatal_signal(sys.argv[1])
    check_one_pipe(sys.argv[1])
    check_failed_start(sys.argv[1])
    check_no_thread(sys.argv[1])


main()
