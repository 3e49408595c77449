# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang's own server, `python -m sglang.launch_server`, on the CPU: all of its processes."""

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
ADMIN_KEY = "tests-admin"
PAGE = 16
DEVICE_TOKENS = 1024

_START_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a request was answered."""

    tokens: list
    logprobs: list  # of `tokens`
    cached: int  # tokens of the prompt that were not computed
    tiers: dict  # of `cached`: device, host, storage

    def agrees_with(self, other, tolerance=1e-3):
        """Whether these are the same tokens with the same probabilities, as far as the order of additions goes."""
        if self.tokens != other.tokens:
            return False
        return all(abs(ours - theirs) < tolerance for ours, theirs in zip(self.logprobs, other.logprobs, strict=True))


def check_same(computed, others):
    """Fails unless the answers are those that were computed."""
    for number, (first, answer) in enumerate(zip(computed, others, strict=True)):
        assert answer.agrees_with(first), f"answer {number}: {answer} instead of {first}"


def larder_storage(**config):
    """The options that make Larder the storage of a server, as docs/sglang.md has them."""
    fixed = {
        "backend_name": "larder",
        "module_path": "larder_sglang",
        "class_name": "LarderStorage",
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        "prefetch_threshold": PAGE,
        "timeout_seconds": 60,  # a busy machine makes no misses
        "put_timeout_seconds": 60,
    }
    return {
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": json.dumps(fixed | config),
    }


def larder_files(folder, **config):
    """The same, with a store of files in `folder`."""
    return larder_storage(directory=str(folder), max_size="1G", **config)


def _environment():
    """What lets SGLang's processes run without a GPU."""
    paths = [str(HERE / "stand_ins"), str(HERE.parent / "sglang"), os.environ.get("PYTHONPATH", "")]
    cores = sorted(os.sched_getaffinity(0))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(2)),
        "SGLANG_NCCL_SO_PATH": "/nonexistent",  # ranks talk with gloo
        "SGLANG_MAMBA_CONV_DTYPE": "float32",  # bfloat16 rounds states, and so changes answers
        "TORCHDYNAMO_DISABLE": "1",  # it would compile with triton
    }


def _end_with_parent():
    """In the new process: it ends when the tests are killed. SGLang's other processes end with it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port():
    """A port that nobody listens on, below those that the kernel gives to others meanwhile."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for_port(port):
    """Returns when somebody listens on `port`."""
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens on port {port}"
            time.sleep(0.05)


class SglangServer:
    """A server of the model in folder `model`; a context. `options` are options of sglang.launch_server."""

    def __init__(self, model, log, **options):
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = pathlib.Path(log)
        everywhere = {
            "model_path": model,
            "host": "127.0.0.1",
            "port": self.url.rsplit(":", maxsplit=1)[1],
            "device": "cpu",
            "attention_backend": "torch_native",
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "page_size": PAGE,
            "max_total_tokens": DEVICE_TOKENS,
            "max_running_requests": 8,
            "skip_server_warmup": True,
            "sleep_on_idle": True,
            "admin_api_key": ADMIN_KEY,
            "enable_hierarchical_cache": True,
            "hicache_ratio": 2,
            "hicache_mem_layout": "page_first",
            "hicache_storage_prefetch_policy": "wait_complete",
        } | options
        self.command = [sys.executable, "-m", "sglang.launch_server"]
        for name, value in everywhere.items():
            if value is not False:
                self.command.append(f"--{name.replace('_', '-')}")
            if not isinstance(value, bool):
                self.command.append(str(value))
        self._process = None

    def __enter__(self):
        self.begin()
        self.wait_until_up()
        return self

    def __exit__(self, failed, *_):
        self.kill()
        if failed:
            print(self.log()[-6000:])

    def begin(self):
        """Starts its processes."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env=os.environ | _environment(),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def wait_until_up(self):
        """Returns when it answers; ends it and fails if it does not."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                if self.ask("/health")[0] == 200:
                    return
            time.sleep(0.3)
        self.kill()
        raise AssertionError(f"SGLang's server did not start: {' '.join(self.command)}\n{self.log()[-6000:]}")

    def kill(self):
        """Ends all of its processes at once, as a crash does."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._process = None

    def kill_while_it_answers(self, prompts):
        """Asks all of them at the same time, and kills it when it has answered the first."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            first = pool.submit(self.generate, prompts[0])
            others = [pool.submit(self.generate, prompt, 300) for prompt in prompts[1:]]
            first.result()
            self.kill()
        assert any(other.exception() for other in others), "it had nothing to do any more"

    def attach(self, policy="wait_complete", **storage):
        """Gives it a storage while it runs: options as larder_storage() makes them."""
        body = {
            "hicache_storage_backend": storage["hicache_storage_backend"],
            "hicache_storage_backend_extra_config_json": storage["hicache_storage_backend_extra_config"],
            "hicache_storage_prefetch_policy": policy,
        }
        self._when_idle("/hicache/storage-backend", body, "PUT")

    def detach(self):
        """Takes its storage away, if it has one, and empties device and host."""
        self._when_idle("/hicache/storage-backend", None, "DELETE")
        self.flush()

    def log(self):
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def wait_for_log(self, text):
        """Returns when it has printed `text`."""
        deadline = time.monotonic() + 60
        while text not in self.log():
            assert time.monotonic() < deadline, f"not in the log: {text}"
            time.sleep(0.05)

    def ask(self, path, body=None, method=None):
        """(status, answer), the answer decoded where it is JSON."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        return status, json.loads(text) if text.startswith(("{", "[")) else text

    def generate(self, prompt, tokens=8, **more):
        """The answer to a prompt of token ids, without chance in it."""
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            "return_logprob": True,
        } | more
        status, said = self.ask("/generate", body)
        assert status == 200, f"{said}\n{self.log()[-4000:]}"
        meta = said["meta_info"]
        tiers = meta.get("cached_tokens_details") or {}
        return Answer(
            said["output_ids"],
            [entry[0] for entry in meta["output_token_logprobs"]],
            meta["cached_tokens"],
            {tier: tiers.get(tier, 0) for tier in ("device", "host", "storage")},
        )

    def ask_all(self, prompts, **more):
        """The answers to `prompts`, one after the other."""
        return [self.generate(prompt, **more) for prompt in prompts]

    def ask_together(self, prompts):
        """The answers to `prompts`, asked at the same time."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self.generate, prompts))

    def read_back(self, prompts):
        """The answers after device and host were emptied. A flush drops what SGLang has not handed to its storage yet;
        such prompts are computed and stored once more."""
        for _ in range(5):
            self.flush()
            answers = self.ask_all(prompts)
            if all(answer.tiers["storage"] for answer in answers):
                return answers
        raise AssertionError(f"not in the storage: {answers}\n{self.log()[-4000:]}")

    def flush(self):
        """Empties device and host."""
        self._when_idle("/flush_cache", {}, "POST")

    def _when_idle(self, *request):
        """What SGLang refuses as long as it works."""
        deadline = time.monotonic() + 60
        while True:
            status, said = self.ask(*request)
            if status == 200:
                return
            assert time.monotonic() < deadline, f"{said}\n{self.log()[-4000:]}"
            time.sleep(0.2)
