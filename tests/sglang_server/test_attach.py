# SPDX-License-Identifier: Apache-2.0
"""`larder attach` and `larder detach` on real servers: while requests run, all servers or none."""

import contextlib
import subprocess
import threading

from rig.metadata_server import BINARY
from sglang_server import ADMIN_KEY, larder_files


def larder(*words):
    """Runs the program; returns its exit code and what it printed."""
    done = subprocess.run(
        [BINARY, *words, "--admin-api-key", ADMIN_KEY], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def attached(server):
    """The name of the storage that a server says it has."""
    status, said = server.ask("/hicache/storage-backend")
    assert status == 200, said
    return said["hicache_storage_backend"]


def test_attach_under_load_and_detach(start, prompts, tmp_path):
    config = larder_files(tmp_path / "store")["hicache_storage_backend_extra_config"]
    attach = ["attach", "--backend", "dynamic", "--extra-config", config]
    with contextlib.ExitStack() as ended:
        second = start()
        ended.callback(second.kill)
        second.begin()
        first = ended.enter_context(start())
        second.wait_until_up()
        # Two servers want one directory: the second is refused, so the first is put back.
        code, said = larder(*attach, first.url, second.url)
        assert code == 1, said
        assert "held by another process" in said, said
        assert not attached(first) and not attached(second)

        # SGLang takes a storage only while it has no requests.
        early = prompts[2][::-1]
        long = threading.Thread(target=first.generate, args=(early, 40))
        long.start()
        first.wait_for_log("Prefill batch")
        code, said = larder(*attach, first.url)
        assert code == 0, said
        long.join()
        assert attached(first) == "dynamic"
        computed = [first.generate(prompt) for prompt in prompts]
        first.flush()
        stored = [first.generate(prompt) for prompt in prompts]
        assert first.generate(early).cached == 0, "SGLang stores only what it computes after an attach"

        code, said = larder("detach", first.url)
        assert code == 0, said
        assert not attached(first)
        first.flush()
        without = [first.generate(prompt) for prompt in prompts]

        # What the first had stored is the second's, now that the first has let go of it.
        code, said = larder(*attach, second.url)
        assert code == 0, said
        other = [second.generate(prompt) for prompt in prompts]

    for answers in (stored, without, other):
        assert all(answer.agrees_with(right) for answer, right in zip(answers, computed, strict=True))
    assert all(answer.tiers["storage"] for answer in stored + other)
    assert not any(answer.tiers["storage"] for answer in without)
