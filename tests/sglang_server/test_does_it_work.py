# SPDX-License-Identifier: Apache-2.0
"""What docs/sglang.md tells an operator to look at ("Does it work?") is there, and says that pages were read."""

import json
import subprocess
import sys
import urllib.request

from sglang_server import free_port, larder_files


def check(storage, model):
    """`python -m larder.sglang check` of the config that SGLang gets."""
    config = storage["hicache_storage_backend_extra_config"]
    words = [sys.executable, "-m", "larder.sglang", "check", config, "--model-path", str(model)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_what_an_operator_looks_at(start, qwen2, prompts, tmp_path):
    port = free_port()
    storage = larder_files(tmp_path / "store", metrics_port=port)
    done = check(storage, qwen2)
    assert done.returncode == 0 and done.stdout.endswith("it works\n"), done
    with start(qwen2, **storage) as server:
        server.ask_all(prompts[:1])
        server.read_back(prompts[:1])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?format=json", timeout=60) as reply:
            families = json.load(reply)
        read = {
            series["labels"]["result"]: series["value"] for series in families["larder_door_get_pages_total"]["series"]
        }
        assert read["read"] > 0
        (space,) = families["larder_sglang_namespace_info"]["series"]
        assert space["labels"]["model"] == str(qwen2)
        assert f"larder: namespace {space['labels']['namespace']}: model {qwen2}" in server.log()
        done = check(storage, qwen2)
        assert done.returncode == 1 and "check before its start" in done.stderr, done
