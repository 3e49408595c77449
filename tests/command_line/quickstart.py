#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ./quickstart.sh is made of: its options, how much it compiles at once, which packages it misses, and that keys
of other servers do not disturb `larder quickstart`.

    quickstart.py BINARY

The scripts run in a folder of their own, where the programs that install and build are stand-ins.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPTS = ("quickstart.sh", "tools/quickstart_llama.sh", "tools/build_parts.sh")
STOPPED = 7  # the stand-in of install_deps.sh ends with it
GIB = 1 << 20  # in KiB


def need(condition, text):
    if not condition:
        sys.exit("FAILED: " + text)


def run(*command, **options):
    return subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **options)


def write_program(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def check_jobs(work):
    meminfo = work / "meminfo"
    for available, processors, expected in ((64 * GIB, 8, 8), (3 * GIB, 8, 2), (3 * GIB, 2, 2), (GIB // 2, 8, 1),
                                            (None, 8, 8), (0, 2, 1)):
        line = "" if available is None else f"MemAvailable:   {available} kB\n"
        meminfo.write_text(f"MemTotal:       98765432 kB\nMemFree:           12345 kB\n{line}")
        said = run("bash", "-euo", "pipefail", "-c", '. "$0"; build_jobs "$@"', ROOT / "tools/build_parts.sh", meminfo,
                   processors).stdout
        need(said == f"{expected}\n", f"{available} KiB, {processors} processors: '{said}', not {expected}")
    print("ok   as many compilers as there is memory for")


def options_of(*command):
    """What its help lists: {option: whether a value follows}."""
    text = run(*command, "--help").stdout
    found = re.findall(r"^ +(?:-\w,)?(--[a-z-]+)( [A-Z]\S*)?", text, re.MULTILINE)
    need(len(found) > 3, "a help without options:\n" + text)
    return {name: bool(value) for name, value in found if name != "--help"}


def check_options(binary, work):
    for script in SCRIPTS:
        (work / script).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / script, work / script)
    write_program(work / "tools/install_deps.sh", f"exit {STOPPED}")
    quickstart = work / "quickstart.sh"
    gguf = work / "a model.gguf"
    gguf.write_text("")
    for first, command in (((), ("quickstart",)), (("--llama",), ("bench", "llama"))):
        for word in ("--help", "-h"):
            help_text = run(quickstart, *first, word)
            need(help_text.returncode == 0, f"{first} {word}: {help_text.returncode}: {help_text.stdout}")
        for name, has_value in options_of(binary, *command).items():
            need(name in help_text.stdout, f"the help of quickstart.sh {first} has no {name}:\n{help_text.stdout}")
            if name == "--llama-server":
                continue  # below
            value = str(gguf) if name == "--model" else "-1"
            for words in ([name, value], [f"{name}={value}"]) if has_value else ([name],):
                result = run(quickstart, *first, *words)
                need(result.returncode == STOPPED, f"{first} {words}: {result.returncode}: {result.stdout}")
            if has_value:
                result = run(quickstart, *first, name)
                need(result.returncode == 2 and name in result.stdout, f"{name} without a value: {result.stdout}")
        for words in (["--num-clint", "3"], ["--modle=x"], ["--keep", "-x"]):
            result = run(quickstart, *first, *words)
            need(result.returncode == 2 and "--help" in result.stdout, f"{words}: {result.returncode}: {result.stdout}")
    result = run(quickstart, "--llama", "--model=nowhere.gguf")
    need(result.returncode == 2 and "nowhere.gguf" in result.stdout, "no such model: " + result.stdout)
    print("ok   help and wrong options come before the build")


def check_own_server(work):
    """--model and --llama-server, as one word and as two: they reach `larder bench llama`, relative paths, too."""
    write_program(work / "tools/install_deps.sh", "exit 0")
    write_program(work / "bin/cmake", "exit 0")
    write_program(work / "build/release/larder", 'printf "<%s>" "$@"')
    server, gguf = work / "a server", work / "a model.gguf"
    write_program(server, "exit 0")
    environment = dict(os.environ, PATH=f"{work / 'bin'}:{os.environ['PATH']}")
    for words in (["--model", gguf, "--llama-server", server], [f"--model={gguf}", f"--llama-server={server}"],
                  [f"--model={gguf.name}", f"--llama-server={server.name}"]):
        result = run(work / "quickstart.sh", "--llama", *words, "--server-args", "-b 512", env=environment, cwd=work)
        expected = f"<bench><llama><--llama-server><{server}><--model><{gguf}><--server-args><-b 512>"
        need(result.returncode == 0 and expected in result.stdout, f"{words}: {result.returncode}: {result.stdout}")
    print("ok   a model and a llama-server of one's own")


def check_packages(work):
    environment = dict(os.environ, PATH=f"{work / 'bin'}:{os.environ['PATH']}")
    for program in ("apt-get", "sudo"):
        write_program(work / "bin" / program, f"exit {STOPPED}")
    for status, is_there in (("install ok installed", True), ("hold ok installed", True),
                             ("install ok half-configured", False), ("deinstall ok config-files", False)):
        write_program(work / "bin/dpkg", f'echo "Package: x\nStatus: {status}\nPriority: optional"')
        result = run(ROOT / "tools/install_deps.sh", "--build", env=environment)
        need((result.returncode == 0) == is_there, f"a package of status '{status}': {result.stdout}")
    print("ok   a package on hold is there")


def check_keys(binary):
    environment = dict(os.environ, LARDER_API_KEY="one", LARDER_ADMIN_API_KEY="other")
    result = run(binary, "quickstart", "--num-clients", 1, "--num-rounds", 2, "--request-length", 64,
                 "--output-length", 4, env=environment)
    need(result.returncode == 0 and "everything held" in result.stdout, "with keys exported:\n" + result.stdout)
    print("ok   exported keys do not disturb it")


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="larder_quickstart_") as folder:
        work = pathlib.Path(folder)
        check_jobs(work)
        check_options(binary, work)
        check_own_server(work)
        check_packages(work)
    check_keys(binary)


main()
