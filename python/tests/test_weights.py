# SPDX-License-Identifier: Apache-2.0
"""What tells one server's pages from another's: weights as they change, their fingerprint, the place among ranks."""

import builtins
import json
import logging
import types

import pytest
from fake_engine import Config, HostPool, slots
from fake_store import FakeStore
from test_sglang import chain, prefix

import larder


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


def test_a_flush_before_the_update_does_not_count(make_storage, engine, caplog):
    """A trainer that flushes first: what the log says helps."""
    pool = HostPool()
    storage = make_storage({"kv": pool})
    pool.clear()
    engine.serving.weight_version = "run1-2"
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        assert storage.batch_set_v1(chain(1), slots(0, page_size=4), prefix()) == [False]
    assert "A flush before the update does not count: update first, then flush" in caplog.text
    pool.clear()
    assert storage.batch_set_v1(chain(1), slots(0, page_size=4), prefix()) == [True]


def test_a_decode_server_that_offloads_stores_nothing_after_an_update_and_says_so(
    make_storage, engine, monkeypatch, caplog
):
    """Nobody clears its host pool, requests go on through an update, and their prompts come from prefill servers, whose
    weights nobody shows: their later pages depend on those."""
    from sglang.srt import runtime_context

    disagg = types.SimpleNamespace(disaggregation_decode_enable_offload_kvcache=True)
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: disagg, raising=False)
    storage = make_storage()
    engine.serving.weight_version = "run1-2"
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        assert storage.batch_set_v1(chain(1), slots(0, page_size=4), prefix()) == [False]
    assert "until the server is started anew" in caplog.text and "/flush_cache" not in caplog.text
    assert "after its prefill servers have them" in caplog.text


@pytest.mark.parametrize("versions, told", [
    (["default"], 0), (["1"], 1), (["7", "8", "9"], 1), (["run1-7"], 0), (["20261129174500"], 0), (["step 7"], 0),
])  # fmt: skip
def test_a_version_that_is_a_counter_is_told_once(make_storage, engine, monkeypatch, caplog, versions, told):
    """The next training run counts from 1, too."""
    from sglang.srt import runtime_context

    launched = types.SimpleNamespace(weight_version="default")
    monkeypatch.setattr(runtime_context, "get_server_args", lambda: launched, raising=False)
    storage = make_storage()
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        for version in versions:
            engine.serving.weight_version = version
            storage.batch_exists(chain(1))
    lines = [record.getMessage() for record in caplog.records if "bare number" in record.getMessage()]
    assert len(lines) == told and all(f'"run7-{versions[0]}"' in line for line in lines)
    # A clear at the begin of a run would leave the pages of versions that are not open in the store.
    assert all("a weights_fingerprint of its own" in line and "clear" not in line for line in lines)


def test_a_counter_that_the_server_was_started_with_is_the_operators(make_storage, engine, monkeypatch, caplog):
    from sglang.srt import runtime_context

    launched = types.SimpleNamespace(weight_version=3)
    monkeypatch.setattr(runtime_context, "get_server_args", lambda: launched, raising=False)
    engine.serving.weight_version = "3"
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        make_storage().batch_exists(chain(1))
    assert "bare number" not in caplog.text


def test_the_fingerprint_reads_its_samples_and_no_blocks_around_them(tmp_path, monkeypatch):
    """File systems of a network have blocks of 1 MiB and more: a buffered file reads one for each sample."""
    from larder.sglang import weights

    def read_so_far():
        with open("/proc/self/io") as counters:
            return int(counters.readline().split()[1])

    count, size = 16, 4 << 20
    names = {
        f"e{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)
    }
    header = json.dumps(names).encode()
    path = tmp_path / "model.safetensors"
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + count * size)
    monkeypatch.setattr(weights, "open", lambda name, mode: builtins.open(name, mode, 1 << 20), raising=False)
    before = read_so_far()
    weights.weights_fingerprint(str(path), None)
    assert read_so_far() - before < 1 << 20  # of 64 MiB; buffered it is 47


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


CONTEXT_PARALLEL = {  # (tp, cp) of each rank of four, as SGLang numbers them
    "no attention tp": [((rank, 4), (rank, 4)) for rank in range(4)],
    "two in two": [((rank, 4), (rank // 2, 2)) for rank in range(4)],
    "dp attention": [((rank % 2, 2), (rank // 2, 2)) for rank in range(4)],
}


def context_parallel(kind, **more):
    for tp, cp in CONTEXT_PARALLEL[kind]:
        yield Config(tp_rank=tp[0], tp_size=tp[1], attn_cp_rank=cp[0], attn_cp_size=cp[1], **more)


@pytest.mark.parametrize("is_mla", [False, True])
@pytest.mark.parametrize("kind", CONTEXT_PARALLEL)
def test_context_parallel_ranks_are_counted_once(engine, kind, is_mla):
    from larder.sglang.ranks import read_ranks

    engine.parallel.tp_size = 4
    ranks = [read_ranks(config) for config in context_parallel(kind, is_mla_model=is_mla)]
    assert [one.count for one in ranks] == [4] * 4 and sorted(one.number for one in ranks) == [0, 1, 2, 3]
    assert len({one.folder for one in ranks}) == 4


@pytest.mark.parametrize("splits_layers", [False, True])
@pytest.mark.parametrize("kind", CONTEXT_PARALLEL)
def test_context_parallel_ranks_read_what_the_first_has_stored(engine, monkeypatch, kind, splits_layers):
    """SGLang lets the ranks with tp_rank 0 alone store pages that are the same on all."""
    from larder.sglang import LarderStorage

    engine.parallel.tp_size, engine.parallel.enable_dsa_cache_layer_split = 4, splits_layers
    shared = FakeStore("memory", {})
    monkeypatch.setattr(larder, "Store", lambda *args, **options: shared)
    found = []
    for config in context_parallel(kind, is_mla_model=True):
        config.extra_config = {"weights_fingerprint": "w", "interface_v1": 1}
        storage = LarderStorage(config, {})
        storage.register_mem_pool_host(HostPool())
        if config.tp_rank == 0:
            storage.batch_set_v1(chain(3), slots(0, 1, 2, page_size=4), prefix())
        found.append(storage.batch_exists(chain(3)))
    if splits_layers and kind != "dp attention":
        assert 0 in found  # other layers are never taken for these
    else:
        assert found == [3] * 4


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
