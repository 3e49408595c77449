# SPDX-License-Identifier: Apache-2.0
"""Two of SGLang's servers share a prefix cache: Larder's backend `mooncake` in each, on one real Mooncake Store."""

import os
import subprocess

import pytest
from rig.metadata_server import ROOT
from sglang_server import check_same, free_port, larder_storage, wait_for_port

MOONCAKE = ROOT / "build" / "mooncake"


@pytest.fixture
def master(tmp_path):
    """Address of a master of Mooncake Store."""
    program = MOONCAKE / "bin/mooncake_master"
    if not program.exists():
        assert not os.environ.get("LARDER_TEST_ALL_SERVERS"), f"{program} is missing"
        pytest.skip("no Mooncake Store: run tools/mooncake_env.sh")
    port, metrics = free_port(), free_port()
    command = [program, "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={metrics}"]
    with (tmp_path / "master.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for_port(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def test_what_one_server_has_computed_the_other_reads(servers, prompts, master):
    storage = larder_storage(
        backend="mooncake",
        master_server_address=master,
        protocol="tcp",
        global_segment_size="64Mi",
        python=str(MOONCAKE / "bin/python"),
    )
    first, second = servers
    first.attach(**storage)
    computed = first.ask_all(prompts)
    check_same(computed, first.read_back(prompts))
    second.attach(**storage)
    shared = second.ask_all(prompts)
    check_same(computed, shared)
    assert all(answer.tiers["storage"] for answer in shared)
