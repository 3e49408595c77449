# SPDX-License-Identifier: Apache-2.0
"""`larder attach` and `larder detach` switch the storage of SGLang's servers: of all or of none, also of a busy one."""

import concurrent.futures
import json
import subprocess

from rig.metadata_server import BINARY
from sglang_server import ADMIN_KEY, PAGE, check_same, larder_files
from store_files import damage


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


def test_attach_under_load_and_detach(servers, prompts, tmp_path):
    first, second = servers
    config = larder_files(tmp_path / "store")["hicache_storage_backend_extra_config"]
    attach = ["attach", "--backend", "dynamic", "--extra-config", config]
    # Two servers want one directory: the second is refused, so the first is put back.
    code, said = larder(*attach, first.url, second.url)
    assert code == 1, said
    assert "held by another process" in said, said
    assert not attached(first) and not attached(second)

    # SGLang takes a storage only while it has no requests, and `larder attach` waits for that.
    early = prompts[2][270::-1]  # no other has so many tokens
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


def test_a_wrong_byte_is_another_answer(servers, prompts, tmp_path):
    """What the other tests compare can fail: SGLang's own backend has no checksums."""
    server = servers[0]
    files = {"prefetch_threshold": PAGE, "file_storage_path": str(tmp_path / "files")}
    server.attach(hicache_storage_backend="file", hicache_storage_backend_extra_config=json.dumps(files))
    computed = server.ask_all(prompts)
    server.read_back(prompts)
    server.flush()
    damage(tmp_path / "files")
    damaged = server.ask_all(prompts)
    assert all(answer.tiers["storage"] for answer in damaged), damaged
    assert not any(wrong.agrees_with(right) for wrong, right in zip(damaged, computed))
