# SPDX-License-Identifier: Apache-2.0
"""What the store's admission policy declines, as SGLang sees it."""

import pytest
from fake_engine import HostPool, slots
from test_sglang import chain, prefix, transfer


def test_what_second_offer_declines_is_no_failure(make_storage, tmp_path):
    """SGLang gives up the rest of a node's backup at the first page that fails."""
    if make_storage.is_fake:
        pytest.skip("needs the real store")
    kv, indexer = HostPool(), HostPool(seed=4, layer_num=1)
    own = {"backend": "file", "directory": str(tmp_path / "d"), "max_size": "64Mi", "admission": "second_offer"}
    storage = make_storage({"kv": kv, "indexer": indexer}, **own)
    keys, every = chain(4), slots(*range(4), page_size=4)
    for expected in (0, 4):
        assert storage.batch_set_v2([transfer("indexer", keys, every)], prefix()) == {"indexer": [True] * 4}
        assert storage.batch_set_v1(keys, every, prefix()) == [True] * 4
        assert storage.batch_exists(keys) == expected
    assert storage.batch_set(chain(2, "flat"), [kv.get_data_page(0)] * 2) is True
    assert storage.batch_exists(chain(2, "flat")) == 0
    assert storage.troubles() == {}
