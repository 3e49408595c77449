# SPDX-License-Identifier: Apache-2.0
"""Weights that SGLang's server takes while it runs (/update_weights_from_disk), with Larder as its storage."""

import checkpoint
from sglang_server import check_same, larder_files


def take_weights(server, folder, version):
    """SGLang flushes its cache then."""
    status, said = server.ask("/update_weights_from_disk", {"model_path": str(folder), "weight_version": version})
    assert status == 200 and said["success"], said


def test_each_version_finds_its_own_pages(servers, qwen2, prompts, tmp_path):
    server = servers[0]
    other = checkpoint.qwen2(tmp_path / "model", seed=1)
    server.attach(**larder_files(tmp_path / "store"))
    old = server.ask_all(prompts)
    server.read_back(prompts)
    try:
        take_weights(server, other, "second")
        new = server.ask_all(prompts)
        stored = server.read_back(prompts)
    finally:
        take_weights(server, qwen2, "default")
    back = server.ask_all(prompts)
    assert not any(answer.tiers["storage"] for answer in new)
    assert not any(one.agrees_with(another) for one, another in zip(old, new, strict=True))
    check_same(new, stored)
    check_same(old, back)
    assert all(answer.tiers["storage"] for answer in back)
