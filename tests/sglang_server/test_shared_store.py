# SPDX-License-Identifier: Apache-2.0
"""Two of SGLang's servers share a prefix cache: Larder's backend `mooncake` in each, on one real Mooncake Store."""

import contextlib
import os
import pathlib
import subprocess

import pytest

from sglang_server import free_port, larder_storage, wait_for_port

MOONCAKE = pathlib.Path(os.environ.get("LARDER_MOONCAKE_ENV", "build/mooncake")).absolute()


@pytest.fixture
def master(tmp_path):
    """Address of a master of Mooncake Store."""
    program = MOONCAKE / "bin/mooncake_master"
    if not program.exists():
        pytest.skip("no Mooncake Store: run tools/mooncake_env.sh")
    port, metrics = free_port(), free_port()
    command = [program, "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={metrics}"]
    with (tmp_path / "master.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for_port(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def test_what_one_server_has_computed_the_other_reads(start, prompts, master):
    storage = larder_storage(
        backend="mooncake",
        master_server_address=master,
        protocol="tcp",
        global_segment_size="64Mi",
        python=str(MOONCAKE / "bin/python"),
    )
    with contextlib.ExitStack() as ended:
        second = start(**storage)
        ended.callback(second.kill)
        second.begin()
        first = ended.enter_context(start(**storage))
        computed = [first.generate(prompt) for prompt in prompts]
        first.flush()
        stored = [first.generate(prompt) for prompt in prompts]
        second.wait_until_up()
        shared = [second.generate(prompt) for prompt in prompts]
    for answers in (stored, shared):
        assert all(answer.agrees_with(right) for answer, right in zip(answers, computed, strict=True))
        assert all(answer.tiers["storage"] for answer in answers)
