# SPDX-License-Identifier: Apache-2.0
"""What tells one server's pages from another's: weights as they change, their fingerprint, the place among ranks."""

import json

import pytest
from fake_engine import Config, HostPool, slots
from test_sglang import chain, prefix


def test_between_new_weights_and_the_flush_nothing_is_stored(make_storage, engine):
    pool = HostPool()
    storage = make_storage({"kv": pool})
    keys = chain(2)
    engine.serving.weight_version = "2"
    assert storage.batch_set_v1(keys, slots(0, 1, page_size=4), prefix()) == [False, False]
    assert storage.batch_set(keys, [pool.get_data_page(0), pool.get_data_page(4)]) is False
    assert storage.batch_exists(keys) == 0
    assert storage.troubles() == {"set: new weights": 2}
    pool.clear()
    assert storage.batch_set_v1(keys, slots(0, 1, page_size=4), prefix()) == [True, True]
    storage.close()
    assert "clear" not in vars(pool)  # SGLang's own again


def test_an_update_that_is_taken_back_without_a_flush_counts(make_storage, engine):
    pool = HostPool()
    storage = make_storage({"kv": pool})
    keys = chain(2)
    engine.serving.weight_version = "2"
    assert storage.batch_exists(keys) == 0  # whoever sees it
    engine.serving.weight_version = "default"
    assert storage.batch_set_v1(keys, slots(0, 1, page_size=4), prefix()) == [False, False]
    pool.clear()
    assert storage.batch_set_v1(keys, slots(0, 1, page_size=4), prefix()) == [True, True]


def test_a_change_in_any_tensor_changes_the_fingerprint(tmp_path):
    from larder.sglang.weights import weights_fingerprint

    tensors = {
        f"layer.{i}": {"dtype": "U8", "shape": [5000], "data_offsets": [5000 * i, 5000 * i + 5000]} for i in range(40)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    begin = 8 + len(header)
    data = bytearray(len(header).to_bytes(8, "little") + header + bytes(200_000))
    path = tmp_path / "model.safetensors"

    def fingerprint():
        path.write_bytes(data)
        return weights_fingerprint(str(tmp_path), None)

    seen = {fingerprint()}
    for i in range(40):
        data[begin + 5000 * i : begin + 5000 * i + 5000] = bytes([i + 1]) * 5000
        seen.add(fingerprint())
    assert len(seen) == 41
    path.write_bytes((99).to_bytes(8, "little") + b"no header" * 20)
    with pytest.raises(ValueError, match="is no safetensors file"):
        weights_fingerprint(str(tmp_path), None)


def test_every_rank_has_a_port_of_its_own():
    from larder.sglang.ranks import Ranks
    from larder.sglang.settings import _metrics_port

    ports = set()
    for tp in range(2):
        for cp in range(2):
            for pp in range(2):
                for dp in range(2):
                    ranks = Ranks(tp=(tp, 2), pp=(pp, 2), cp=(cp, 2), dp=(dp, 2))
                    ports.add(_metrics_port(ranks, 9000))
    assert ports == set(range(9000, 9016))


@pytest.mark.parametrize(
    "parallel, config, folder, port",
    [
        ({"dp_size": 2, "dp_rank": 1}, {"tp_size": 2, "tp_rank": 1}, "tp1_pp0_cp0_dp1", 9003),
        ({"dp_size": 2, "dp_rank": 0}, {"tp_size": 2}, "tp0_pp0_cp0_dp0", 9000),
        ({"dp_size": 1, "dp_rank": None}, {}, "tp0_pp0_cp0_dp0", 9000),
        ({"attn_dp_size": 2, "dp_rank": None}, {"dp_rank": 1}, "tp0_pp0_cp0_dp1", 9001),
    ],
)
def test_replicas_have_a_store_and_a_port_of_their_own(engine, parallel, config, folder, port):
    """SGLang's storage configuration numbers them with DP attention only."""
    from larder.sglang.settings import read_settings

    vars(engine.parallel).update(parallel)
    extra = {"directory": "/d", "rank_directories": True, "metrics_port": 9000}
    settings = read_settings(Config(extra_config=extra, **config))
    assert (settings.store["directory"], settings.metrics_port) == (f"/d/{folder}", port)
