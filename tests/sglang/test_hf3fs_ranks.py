# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks of the real SGLang with Larder's backend `hf3fs`, a metadata server and the fake 3FS.

SGLang lets its first rank alone store what all ranks have in common (the KV of MLA models, indexers, DeepSeek-V4's
pools): a store that leaves some of these pages to other ranks loses them.
"""

import pytest
from rig import cases, larder_backend, metadata_server, ranks

PAGES = 6
# Pages that all ranks have in common, and those of each rank, that `cases.ranks_round_trip` stores.
STORED = {
    "mla": (6, 0),  # latent KV
    "mla_mamba": (6, 2),  # latent KV; the states of two nodes
    "dsa": (12, 0),  # latent KV and indexer
    "dsv4": (42, 0),  # seven pools: the marker, the window, C4, its indexer, C128, two states
    "mha": (0, 6),
    "mamba": (0, 8),
}


@pytest.fixture
def server(tmp_path):
    """A metadata server with an empty journal."""
    with metadata_server.MetadataServer(tmp_path / "journal") as running:
        yield running


def expect_pages_stored(server, kinds, count):
    """The index has each page of each kind of model once; the server is started anew."""
    server.stop()
    server.start()
    wanted = sum(STORED[kind][0] + STORED[kind][1] * count for kind in kinds)
    cases.expect(server.keys_stored, wanted, "pages in the index")


@pytest.mark.parametrize("kinds", [("mla", "mla_mamba", "dsa", "dsv4"), ("mha", "mamba")], ids="+".join)
@pytest.mark.parametrize("count", [2, 4])
def test_every_rank_reads_every_page_also_after_a_restart(server, tmp_path, kinds, count):
    """Bit for bit, in the processes that stored the pages and in new ones with a new metadata server."""
    backends = [(kind, larder_backend.describe_hf3fs(tmp_path / kind, server.url)) for kind in kinds]
    everything = [[PAGES] * len(kinds)] * count
    cases.expect(ranks.run(count, cases.ranks_round_trip, backends), everything, "pages restored per rank and kind")
    expect_pages_stored(server, kinds, count)
    cases.expect(ranks.run(count, cases.ranks_restore, backends), everything, "pages restored after a restart")


def test_what_ranks_have_in_common_is_read_by_any_number_of_them(server, tmp_path):
    """Four ranks store; one, then two read: all of MLA and DSA, and no recurrent state, which is divided otherwise."""
    kinds = ("mla", "dsa", "mla_mamba")
    backends = [(kind, larder_backend.describe_hf3fs(tmp_path / kind, server.url)) for kind in kinds]
    ranks.run(4, cases.ranks_round_trip, backends)
    for count in (1, 2):
        restored = ranks.run(count, cases.ranks_restore, backends)
        cases.expect(restored, [[PAGES, PAGES, 0]] * count, f"pages restored by {count} ranks")
