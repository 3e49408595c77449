# SPDX-License-Identifier: Apache-2.0
"""SGLang's own hf3fs backend in its server, with plain files in the place of 3FS and `larder metadata-server`, which is
killed and comes back with its journal."""

import json

from rig import metadata_server
from sglang_server import check_same


def test_pages_are_found_after_the_death_of_the_metadata_server(start, prompts, tmp_path, monkeypatch):
    with metadata_server.MetadataServer(tmp_path / "journal") as index:
        backend = metadata_server.backend(index.url, tmp_path, monkeypatch)
        storage = {
            "hicache_storage_backend": backend.name,
            "hicache_storage_backend_extra_config": json.dumps(backend.config | {"prefetch_threshold": 16}),
        }
        with start(hicache_mem_layout="page_first_direct", hicache_io_backend="direct", **storage) as server:
            computed = server.ask_all(prompts)
            stored = server.read_back(prompts)
            server.flush()
            index.kill()
            without = server.ask_all(prompts)
            server.flush()
            index.start()
            assert index.keys_stored > 0
            again = server.ask_all(prompts)
    for answers in (stored, without, again):
        check_same(computed, answers)
    assert all(answer.tiers["storage"] for answer in again)
    assert not any(answer.tiers["storage"] for answer in without)
