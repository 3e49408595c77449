# SPDX-License-Identifier: Apache-2.0
"""What is wrong with models, servers, files and disks is said clearly, and costs no wrong token."""

import os
import signal
import subprocess

import servers
from servers import LLAMA_SERVER, LlamaServer, Proxy, free_port

SERVER = ("-c", 8192, "-np", 1)


def fails(server):
    """Standard error of a proxy that does not start, and its exit code."""
    done = subprocess.run(server.arguments, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_a_server_without_slot_files_is_refused(model, start, tmp_path):
    upstream = start(LlamaServer(model("qwen3next"), *SERVER))
    code, said = fails(Proxy(upstream=upstream.url, slots=tmp_path))
    assert code == 1 and "Start it with `--slot-save-path`" in said, said


def test_another_folder_of_slot_files_is_refused(model, start, tmp_path):
    (tmp_path / "theirs").mkdir()
    upstream = start(LlamaServer(model("qwen3next"), *SERVER, slots=f"{tmp_path}/theirs/"))
    code, said = fails(Proxy(upstream=upstream.url, slots=tmp_path / "ours"))
    assert code == 1 and "--slot-dir must be the folder of llama-server's --slot-save-path" in said, said


def test_transposed_values_are_refused(model):
    code, said = fails(Proxy(model("qwen3next"), *SERVER, "-fa", "off"))
    assert code == 1 and "cannot be cached" in said and "flash attention" in said, said


def test_a_command_that_dies_is_not_waited_for(tmp_path):
    code, said = fails(Proxy(tmp_path / "none.gguf"))
    assert code == 1 and "ended before it served" in said, said


def test_a_proxy_ends_when_its_server_cannot_be_started_again(model, start, tmp_path):
    program = tmp_path / "llama-server"  # serves once
    program.write_text(f'#!/bin/sh\n[ ! -e {tmp_path}/served ] || exit 3\ntouch {tmp_path}/served\n'
                       f'exec {LLAMA_SERVER} "$@"\n')
    program.chmod(0o755)
    proxy = Proxy(model("qwen3next"), *SERVER)
    proxy.arguments[proxy.arguments.index(LLAMA_SERVER)] = str(program)
    start(proxy).complete([1, 2, 3])
    os.kill(proxy.server_pid(), signal.SIGKILL)
    assert proxy.process.wait(60) == 1, proxy.log()
    assert "ended several times in a row" in proxy.log()


def test_a_second_proxy_on_the_same_files_is_refused(model, start, tmp_path):
    slots = tmp_path / "slots"
    slots.mkdir()
    upstream = start(LlamaServer(model("qwen3next"), *SERVER, slots=f"{slots}/"))
    start(Proxy(upstream=upstream.url, slots=slots))
    code, said = fails(Proxy(upstream=upstream.url, slots=slots))
    assert code == 1 and "larder-proxy.lock" in said, said


def other_server(path, port, slots, *more):
    return LlamaServer(path, *SERVER, *more, port=port, slots=f"{slots}/")


def test_another_model_or_cache_type_under_the_same_address_gets_nothing(model, start, tokens, tmp_path):
    slots = tmp_path / "slots"
    slots.mkdir()
    a = tokens(1500, 1)
    for path, more, said in ((model("qwen3next", "seed=2"), (), "another one than before"),
                             (model("qwen3next"), ("-ctk", "q8_0", "-ctv", "q8_0"), "is not as it was")):
        port = free_port()
        upstream = start(other_server(model("qwen3next"), port, slots))
        proxy = start(Proxy(upstream=upstream.url, slots=slots))
        proxy.complete(a)
        proxy.wait_stored()
        upstream.kill()
        changed = start(other_server(path, port, slots, *more))
        expected = changed.complete(a, 8)
        answer = proxy.complete(a, 8)
        assert answer.reused is None, "it went on plainly"
        same = min(answer.certain(), expected.certain())
        assert answer.tokens[:same] == expected.tokens[:same]
        proxy.wait_until(lambda said=said, proxy=proxy: said in proxy.log())  # a line comes after the answer
        proxy.stop()
        changed.stop()


def test_another_model_finds_nothing_in_the_same_store(model, start, tokens, tmp_path):
    a = tokens(1500, 1)
    for path, more in ((model("qwen3next"), ()), (model("qwen3next", "seed=2"), ()),
                       (model("qwen3next"), ("-ctk", "q8_0", "-ctv", "q8_0")),
                       (model("qwen3next"), ("--rope-freq-scale", "0.5"))):
        proxy = start(Proxy(path, *SERVER, *more, store=tmp_path))
        assert proxy.complete(a).reused == 0
        proxy.wait_stored()
        assert proxy.stop() == 0


def test_damaged_pages_are_computed_anew(model, start, tokens, tmp_path):
    store, a = tmp_path / "store", tokens(3000, 1)
    proxy = start(Proxy(model("qwen3next"), *SERVER, store=store))
    before = proxy.complete(a, 8)
    assert proxy.stop() == 0
    for path in store.rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 20:
            data = bytearray(path.read_bytes())
            for at in range(1 << 19, len(data), 1 << 19):  # every sixteenth page or so
                data[at] ^= 1
            path.write_bytes(data)
    proxy = start(Proxy(model("qwen3next"), *SERVER, store=store))
    after = proxy.complete(a, 8)
    assert after.reused < 2944
    same = min(before.certain(), after.certain())
    assert after.tokens[:same] == before.tokens[:same]
    proxy.wait_stored()
    assert proxy.complete(a, 8).reused >= 2944


def test_a_store_and_memory_that_are_full_cost_reuse_only(model, start, tokens, tmp_path):
    proxy = start(Proxy(model("qwen3next"), *SERVER, store=tmp_path,
                        options=("--store-size", "4Mi", "--host-memory", "2Mi")))
    for seed in range(8):
        assert proxy.complete(tokens(1500, seed), 2).reused == 0
        proxy.wait_stored()
    assert proxy.complete(tokens(1500, 7), 2).reused > 0
    proxy.wait_until(lambda: proxy.status()["slots"]["busy"] == 0)  # it is given back after the answer


def test_wrong_options_are_named(tmp_path):
    for arguments, said in (
            (["proxy"], "--upstream URL, or a llama-server to start behind --"),
            (["proxy", "--upstream", "http://127.0.0.1:1"], "--upstream needs --slot-dir"),
            (["proxy", "--upstream", "ftp://x", "--slot-dir", str(tmp_path)], "is not supported"),
            (["proxy", "--host-memory", "much", "--", LLAMA_SERVER], "--host-memory"),
            (["proxy", "--", LLAMA_SERVER, "--port", "7"], "--port behind --")):
        done = subprocess.run([servers.LARDER, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2 and said in done.stderr, (arguments, done.stderr)
