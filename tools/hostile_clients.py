#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a server does under clients that mean no good: prints, for each kind of them, the answers and how long
/health took beside them, and how much memory the server had at most.

  tools/hostile_clients.py --larder build/release/larder [--clients 512] [--megabytes 8]

Starts `larder serve` on a free port (its own small model), and stops it at the end. Ends with 1 if a request got
neither an answer nor a closed connection, or another answer than its kind may get, if /health failed or took longer
than --most-health-ms, or if the server took more than --most-memory-mib.
"""

import argparse
import collections
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time

PIECE = 256 * 1024
PATIENCE_SECONDS = 120


def status_of(connection):
    connection.settimeout(PATIENCE_SECONDS)
    try:
        head = connection.recv(64)
    except OSError:
        return "closed"
    found = re.match(rb"HTTP/1.1 (\d+)", head)
    return found.group(1).decode() if found else "closed"


def ask_health(port, results):
    """Asks /health, each time on a new connection, until told to end. A process of its own, as the clients' threads
    would keep it waiting."""
    milliseconds, failures = [], 0
    while not results.poll():
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            failures += status_of(connection) != "200"
        milliseconds.append(1e3 * (time.monotonic() - begun))
        time.sleep(0.005)
    results.send((sorted(milliseconds), failures))


def large_body(port, size):
    """A prompt of `size` bytes of token ids: more than any context."""
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
    ids = b'{"input_ids":[' + b"1," * ((size - 17) // 2) + b"1"
    body = ids + b" " * (size - len(ids) - 2) + b"]}"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        try:
            connection.sendall(head)
            for at in range(0, size, PIECE):
                connection.sendall(body[at:at + PIECE])
        except OSError:
            pass  # refused while it was sent: the answer is there
        return status_of(connection)


def slow_sender(port, _):
    """A byte of the head every half second, for ten seconds, and then nothing more."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for byte in b"POST /generate HTTP/1.1":
            connection.sendall(bytes([byte]))
            time.sleep(0.5)
    return "left"


def slow_reader(port, _):
    """Asks for /metrics fifty times and reads nothing."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(1)
        try:
            for _ in range(50):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        except OSError:
            pass
        time.sleep(5)
    return "left"


def nested(port, size):
    """Brackets, as deep as the body is long."""
    body = b'{"text":' + b"[" * (size - 8)
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        try:
            connection.sendall(head + body)
        except OSError:
            pass
        return status_of(connection)


# Name, what one client does, the answers that it may get.
KINDS = [("large bodies", large_body, {"400", "503"}), ("nested brackets", nested, {"400", "503"}),
         ("slow senders", slow_sender, {"left"}), ("slow readers", slow_reader, {"left"})]


def memory_mib(process, field):
    text = open(f"/proc/{process.pid}/status", encoding="ascii").read()
    return int(re.search(field + r":\s+(\d+) kB", text).group(1)) // 1024


def attack(port, kind, clients, size):
    answers, lock = collections.Counter(), threading.Lock()

    def one():
        os.nice(10)  # this thread: clients of a real server have processors of their own
        try:
            answer = kind(port, size)
        except OSError as error:
            answer = f"none ({error})"
        with lock:
            answers[answer] += 1

    threads = [threading.Thread(target=one) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def start_server(larder):
    process = subprocess.Popen([larder, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(r"http://[^ ]*:(\d+)", line)
        if found:
            return process, int(found.group(1))
    sys.exit("the server did not start")


def measure(given, name, kind, allowed):
    """One kind of clients against a fresh server. False: something was not as it has to be."""
    process, port = start_server(given.larder)
    try:
        ours, theirs = multiprocessing.Pipe()
        health = multiprocessing.Process(target=ask_health, args=(port, theirs))
        health.start()
        answers = attack(port, kind, given.clients, given.megabytes << 20)
        ours.send("end")
        times, failures = ours.recv()
        health.join()
        memory = memory_mib(process, "VmHWM")
    finally:
        process.terminate()
        status = process.wait()
    text = ", ".join(f"{count} x {answer}" for answer, count in answers.most_common())
    print(f"{given.clients:4} {name:13} {text:44} {times[len(times) // 2]:6.1f} {times[len(times) * 99 // 100]:6.1f} "
          f"{times[-1]:6.1f} ms    {memory} MiB", flush=True)
    return (status == 0 and failures == 0 and times[-1] <= given.most_health_ms and set(answers) <= allowed
            and memory <= given.most_memory_mib)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="build/release/larder")
    parser.add_argument("--clients", type=int, default=512)
    parser.add_argument("--megabytes", type=int, default=8, help="of a large body")
    parser.add_argument("--most-health-ms", type=float, default=1000)
    parser.add_argument("--most-memory-mib", type=int, default=1024)
    given = parser.parse_args()
    print(f"{'clients':18} {'answers':44} {'/health p50, p99, max':26} memory, most")
    is_well = all([measure(given, *kind) for kind in KINDS])
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
