# SPDX-License-Identifier: Apache-2.0
"""`larder attach` and `larder detach` switch the storage of SGLang's servers: of all or of none, also of a busy one."""

import concurrent.futures
import subprocess

from rig.metadata_server import BINARY
from sglang_server import ADMIN_KEY, check_same, larder_files


def larder(*words):
    """Runs `larder`; returns its exit code and what it printed."""
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
    second = start()
    second.begin()
    with start() as first:
        second.wait_until_up()
        # Two servers want one directory: the second is refused, so the first is put back.
        code, said = larder(*attach, first.url, second.url)
        assert code == 1, said
        assert "held by another process" in said, said
        assert not attached(first) and not attached(second)

        # SGLang takes a storage only while it has no requests, and `larder attach` waits for that.
        early = prompts[2][::-1]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(first.generate, early, 100)
            first.wait_for_log(f"#new-token: {len(early)},")
            status, said = first.ask("/hicache/storage-backend", {"hicache_storage_backend": "file"}, "PUT")
            assert status == 400 and "not idle" in said, said
            code, said = larder(*attach, first.url)
            assert code == 0, said
            assert len(answer.result().tokens) == 100
        assert attached(first) == "dynamic"
        computed = first.ask_all(prompts)
        stored = first.read_back(prompts)
        assert first.generate(early).cached == 0, "SGLang stores what it computes after an attach"

        code, said = larder("detach", first.url)
        assert code == 0, said
        assert not attached(first)
        first.flush()
        without = first.ask_all(prompts)

        # What the first had stored is the second's, now that the first has let go of it.
        code, said = larder(*attach, second.url)
        assert code == 0, said
        other = second.ask_all(prompts)

    for answers in (stored, without, other):
        check_same(computed, answers)
    assert all(answer.tiers["storage"] for answer in other)
    assert not any(answer.tiers["storage"] for answer in without)
