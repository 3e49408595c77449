#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a service of Type=notify tells systemd: READY=1 once its port answers, STOPPING=1 when a stop has begun. A
terminal that closes (SIGHUP) ends a server in the same order, unless it was started to ignore that (nohup). A signal
ends a server that has yet to start, whatever its start waits for, and a second one a server that is stopping; a stop
ends by itself, too, when an attach hangs. During the delay of a stop /health says so and requests are taken; a second
signal ends it. A stream that is cut off ends with an error.

    service_notify.py BINARY

Runs the servers with sockets of our own in NOTIFY_SOCKET, one with a path and one with an abstract name.
"""

import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

SERVERS = (  # a path of its health, command
    ("/health", ["metadata-server", "--port", "0"]),
    ("/health", ["serve", "--port", "0", "--model", "gdn-tiny"]),
)
UNSHARE = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]


def need(condition, text):
    if not condition:
        sys.exit("FAILED: " + text)


def start(binary, command, notify_socket):
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    if notify_socket is not None:
        environment["NOTIFY_SOCKET"] = notify_socket
    return subprocess.Popen([binary, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def stop(process):
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    need(process.returncode == 0, f"exit code {process.returncode}: {output}{errors}")
    return errors


def check_server(binary, command, health, name, environment_name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(60)
        process = start(binary, command, environment_name)
        try:
            said = manager.recv(4096)
            need(said == b"READY=1", f"{command}: the first word is {said}")
            url = re.search(r"http://\S+", process.stdout.readline()).group(0)
            with urllib.request.urlopen(url + health, timeout=30) as answer:
                need(answer.status == 200, f"{command}: {health} answered {answer.status}")
            manager.setblocking(False)
            try:
                sys.exit(f"FAILED: {command}: said {manager.recv(4096)} while it runs")
            except BlockingIOError:
                pass
            manager.settimeout(60)
            errors = stop(process)
            need("systemd was not told" not in errors, errors)
            said = manager.recv(4096)
            need(said == b"STOPPING=1", f"{command}: the last word is {said}")
        finally:
            process.kill()
    print(f"ok   larder {command[0]}: {environment_name}")


def check_without_a_listener(binary, notify_socket, expected):
    """The server runs as it does without systemd, and says what was wrong, if anything was."""
    process = start(binary, SERVERS[0][1], notify_socket)
    try:
        need("listening on" in process.stdout.readline(), f"NOTIFY_SOCKET {notify_socket}: the server did not start")
        errors = "".join(line for line in stop(process).splitlines(True) if "without --directory" not in line)
        need((expected in errors) if expected else errors == "", f"NOTIFY_SOCKET {notify_socket}: {errors}")
    finally:
        process.kill()
    print(f"ok   NOTIFY_SOCKET {str(notify_socket)[:20]}: goes on")


def check_hangup(binary, command):
    process = start(binary, command, None)
    try:
        need("listening on" in process.stdout.readline(), f"{command}: the server did not start")
        process.send_signal(signal.SIGHUP)
        output, errors = process.communicate(timeout=60)
        need(process.returncode == 0, f"{command}: exit code {process.returncode} after SIGHUP: {output}{errors}")
    finally:
        process.kill()
    process = start("nohup", [binary, *command], None)
    try:
        url = re.search(r"http://\S+", process.stdout.readline()).group(0)
        process.send_signal(signal.SIGHUP)
        with urllib.request.urlopen(url + "/health", timeout=30) as answer:
            need(answer.status == 200, f"{command}: /health answered {answer.status} after a SIGHUP that it ignores")
        stop(process)
    finally:
        process.kill()
    print(f"ok   larder {command[0]}: SIGHUP")


def check_signal_during_start(binary, fifo, command):
    """A file that gives nothing stands for a disk that hangs."""
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start(binary, command, None)
        try:
            with open(fifo, "w", encoding="utf-8"):  # once it reads
                process.send_signal(number)
                output, errors = process.communicate(timeout=60)
            need(process.returncode == -number, f"{command}: {process.returncode} after {number}: {output}{errors}")
        finally:
            process.kill()
    print(f"ok   larder {command[0]}: ends while it starts")


def check_stop_while_an_attach_hangs(binary, fifo, command):
    """What is attached already is closed in order; the stop names what it leaves behind."""
    with tempfile.TemporaryDirectory() as folder:
        storage = ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config",
                   json.dumps({"directory": folder + "/store"})]
        process = start(binary, [*command, *storage], None)
        try:
            url = urllib.parse.urlsplit(re.search(r"http://\S+", process.stdout.readline()).group(0))
            body = json.dumps({"hicache_storage_backend": "memory", "hicache_storage_replace": True,
                               "hicache_storage_backend_extra_config_json": "@" + fifo})
            with socket.create_connection((url.hostname, url.port), timeout=60) as request:
                request.sendall(f"PUT /hicache/storage-backend HTTP/1.1\r\nHost: {url.netloc}\r\n"
                                f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
                writer = open(fifo, "w", encoding="utf-8")  # once it reads
                # A reset: who has left is not waited for.
                request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with writer:
                process.send_signal(signal.SIGTERM)
                output, errors = process.communicate(timeout=100)
            need(process.returncode == 1, f"exit code {process.returncode}: {output}{errors}")
            need("PUT /hicache/storage-backend has not ended: it is left behind" in errors, errors)
            need("stopped" not in output, output)
        finally:
            process.kill()
        process = start(binary, [*command, *storage], None)
        try:
            need("listening on" in process.stdout.readline(), "the store that was left behind cannot be opened")
            stop(process)
        finally:
            process.kill()
    print("ok   larder serve: ends while an attach hangs")


def check_delay(binary, command):
    process = start(binary, [*command, "--stop-delay", "600", "--stop-wait", "7"], None)
    try:
        url = re.search(r"http://\S+", process.stdout.readline()).group(0)
        process.send_signal(signal.SIGTERM)
        while "stopping in 600 s" not in (line := process.stdout.readline()):
            need(line != "", f"{command}: the server ended at the first signal")
        try:
            urllib.request.urlopen(url + "/health", timeout=30)
            sys.exit(f"FAILED: {command}: /health is fine during the delay")
        except urllib.error.HTTPError as error:
            need(error.code == 503 and b"is stopping" in error.read(), f"{command}: /health says {error.code}")
        with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
            need(answer.status == 200, f"{command}: /metrics answered {answer.status} during the delay")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        need(process.returncode == 0, f"{command}: exit code {process.returncode}: {output}{errors}")
        need("open requests have 7 s" in output and "stopped" in output, output)
    finally:
        process.kill()
    print(f"ok   larder {command[0]}: the delay of a stop")


def check_stream_is_cut_off(binary, command):
    process = start(binary, [*command, "--stop-wait", "0"], None)
    try:
        url = re.search(r"http://\S+", process.stdout.readline()).group(0)
        parameters = {"max_new_tokens": 4000, "ignore_eos": True}
        body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": parameters}
        request = urllib.request.Request(url + "/generate", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            need(answer.readline().startswith(b"data: {"), "there is no first event")
            process.send_signal(signal.SIGTERM)
            events = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        need(events[-1] == "data: [DONE]", f"the stream has no end: {events[-1]}")
        need("is stopping" in events[-2] and "error" in json.loads(events[-2][6:]), f"no error: {events[-2]}")
        output, errors = process.communicate(timeout=60)
        need(process.returncode == 0, f"exit code {process.returncode}: {output}{errors}")
        need("open requests were cut off" in errors, errors)
    finally:
        process.kill()
    print("ok   larder serve: a stream that is cut off")


def start_as_first_process(binary, command):
    return subprocess.Popen([*UNSHARE, binary, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def signal_first_process(process, number):
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
    os.kill(int(children.split()[0]), number)


def check_signals_as_first_process(binary, fifo, importing, command):
    """In a container: there the kernel drops a signal whose action is the default one."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        print("skip larder as the first process of a container: unshare is refused here")
        return
    process = start_as_first_process(binary, importing)
    try:
        with open(fifo, "w", encoding="utf-8"):  # once it reads
            signal_first_process(process, signal.SIGTERM)
            output, errors = process.communicate(timeout=60)
        need(process.returncode == 128 + signal.SIGTERM, f"{process.returncode} after SIGTERM: {output}{errors}")
    finally:
        process.kill()
    print("ok   larder as the first process of a container: ends while it starts")
    process = start_as_first_process(binary, command)
    try:
        url = urllib.parse.urlsplit(re.search(r"http://\S+", process.stdout.readline()).group(0))
        with socket.create_connection((url.hostname, url.port), timeout=60) as request:
            # A request whose body does not come: the stop waits for it.
            request.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            need(request.recv(100).startswith(b"HTTP/1.1 100 "), "the server does not want the body")
            signal_first_process(process, signal.SIGTERM)
            while "a second signal ends at once" not in (line := process.stdout.readline()):
                need(line != "", "the server ended at the first signal")
            signal_first_process(process, signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        need(process.returncode == 128 + signal.SIGINT, f"{process.returncode} after SIGINT: {output}{errors}")
    finally:
        process.kill()
    print("ok   larder as the first process of a container: ends at the second signal")


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        for number, (health, command) in enumerate(SERVERS):
            path = f"{folder}/notify{number}"
            check_server(binary, command, health, path, path)
            abstract = f"larder-notify-{os.getpid()}-{number}"
            check_server(binary, command, health, "\0" + abstract, "@" + abstract)
            check_hangup(binary, command)
        fifo = f"{folder}/silent.json"
        os.mkfifo(fifo)
        importing = ["metadata-server", "--port", "0", "--import", fifo]
        check_signal_during_start(binary, fifo, importing)
        check_signals_as_first_process(binary, fifo, importing, SERVERS[1][1])
        check_signal_during_start(binary, fifo, [*SERVERS[1][1], "--hicache-storage-backend", "file",
                                                 "--hicache-storage-backend-extra-config", "@" + fifo])
        check_stop_while_an_attach_hangs(binary, fifo, SERVERS[1][1])
        for _, command in SERVERS:
            check_delay(binary, command)
        check_stream_is_cut_off(binary, SERVERS[1][1])
        check_without_a_listener(binary, None, "")
        check_without_a_listener(binary, "", "")
        check_without_a_listener(binary, f"{folder}/nobody", "systemd was not told READY=1")
        check_without_a_listener(binary, "vsock:2:1234", "systemd was not told READY=1")
        check_without_a_listener(binary, "/" + "x" * 200, "File name too long")


main()
