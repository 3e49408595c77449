# SPDX-License-Identifier: Apache-2.0
"""What LarderStorage makes of its configuration: settings, the identity of pages, errors that say what to set."""

import json
import logging
import os
import sys
import types

import pytest
from fake_engine import Config

import larder


def make(engine, config=None, **extra):
    from larder.sglang import LarderStorage

    config = config or Config()
    config.extra_config = {"backend": "memory", "interface_v1": 1, "weights_fingerprint": "w", **extra}
    return LarderStorage(config, {})


@pytest.mark.parametrize(
    "extra, text",
    [
        ({"bakend": "memory"}, "bakend"),
        ({"backend": "nothing"}, "nothing"),
        ({"backend": ""}, "backend"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": "2"}, "timeout_seconds"),
        ({"put_timeout_seconds": True}, "put_timeout_seconds"),
        ({"rank_directories": 1}, "rank_directories"),
        ({"rank_directories": True}, "directory"),
        ({"rank_directories": True, "directory": 3}, "directory is 3"),
        ({"backend": "file", "directory": "~/larder"}, "directory is '~/larder'; .* write the whole path"),
        ({"backend": "file", "directory": "/d:~x/larder"}, "directory is"),
        ({"backend": "file", "directory": "/d", "share_directory": "~/d.share"}, "share_directory is"),
        ({"weights_fingerprint": None}, "weights_fingerprint"),
        ({"weights_fingerprint": 3}, "weights_fingerprint"),
        ({"backend": "file", "directory": "/proc/nothing/here"}, ""),
    ],
)
def test_what_cannot_work_is_an_error_at_construction(engine, extra, text):
    with pytest.raises((ValueError, larder.Error), match=text or None):
        make(engine, **extra)


@pytest.mark.parametrize("host", ["10.0.0..5", ".", "a" * 70, "a\0b", 3])
def test_a_host_of_metrics_that_can_be_none_is_an_error(engine, host):
    with pytest.raises(ValueError, match="metrics_host is"):
        make(engine, metrics_port=9000, metrics_host=host)


@pytest.mark.parametrize("host", ["x y", "*", "no.such.host.invalid"])
def test_a_host_that_nobody_knows_is_trouble_and_no_error(engine, host):
    storage = make(engine, metrics_port=9000, metrics_host=host)
    storage.close()
    assert storage.troubles() == {"metrics_port": 1}


def test_a_construction_that_fails_late_leaves_the_store_to_the_next(engine, tmp_path, monkeypatch):
    from larder.sglang import storage

    def fail(*arguments):
        raise RuntimeError("late")

    extra = {"backend": "file", "directory": str(tmp_path / "store"), "max_size": "64M"}
    with monkeypatch.context() as patch:
        patch.setattr(storage, "WeightGuard", fail)
        with pytest.raises(RuntimeError, match="late") as kept:
            make(engine, **extra)
    make(engine, **extra).close()
    del kept


@pytest.mark.parametrize("seconds, told", [(4, 0), (4.5, 0), (4.6, 1)])
def test_patience_beyond_that_of_sglang_is_told(engine, caplog, seconds, told):
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        make(engine, timeout_seconds=seconds).close()
    assert len([r for r in caplog.records if "the server ends" in r.getMessage()]) == told


@pytest.mark.parametrize(
    "extra, text",
    [
        ({"weight_fingerprint": "w"}, "'weight_fingerprint'; did you mean 'weights_fingerprint'.*Its keys: backend"),
        ({"metric_port": 9000}, "did you mean 'metrics_port'"),
        ({"timeout_second": 3}, "did you mean 'timeout_seconds'"),
        ({"prefetch_treshold": 3}, "did you mean 'prefetch_threshold'"),
        ({"InterfaceV1": 1}, "did you mean 'interface_v1'"),
        ({"DIRECTORY": "/d", "backend": "file"}, "did you mean 'directory'"),
        ({"max_size ": "1G"}, "did you mean 'max_size'"),
        ({"segment_size": "1G"}, "'segment_size' belongs to \"backend\": \"file\", and the backend is 'memory'"),
        ({"zzz": 1}, r"no key 'zzz'\. Its keys: .*of backend 'memory': max_size"),
    ],
)
def test_a_misspelt_key_is_an_error_that_names_the_right_one(engine, extra, text):
    with pytest.raises(ValueError, match=text):
        make(engine, **extra)


def test_the_path_that_sglang_adds_is_no_error(engine, caplog):
    """--file-storage-path is put into the extra config of every backend."""
    with caplog.at_level(logging.INFO, "larder.sglang"):
        make(engine, file_storage_path="/mnt/hicache").close()
    lines = [record for record in caplog.records if "file_storage_path" in record.message]
    assert [line.levelno for line in lines] == [logging.INFO] and "has no effect" in lines[0].message


def test_a_plugin_has_keys_of_its_own(engine):
    with pytest.raises(larder.Error, match="library"):
        make(engine, backend="plugin", anything=1)


def test_a_context_that_is_not_there_is_an_error_at_construction(engine):
    del engine.model.kv_cache_dtype
    engine.serving.weight_version = None
    with pytest.raises(ValueError, match="kv_cache_dtype, weight_version.*weights_fingerprint"):
        make(engine, weights_fingerprint=None)
    make(engine).close()


def test_a_draft_model_without_a_fingerprint_is_an_error_at_construction(engine):
    engine.spec.speculative_draft_model_path = "no/draft"
    with pytest.raises(ValueError, match="draft_weights_fingerprint"):
        make(engine)
    make(engine, draft_weights_fingerprint="d").close()
    engine.spec.speculative_draft_model_path = engine.model.model_path
    make(engine).close()


@pytest.fixture
def model_folder(tmp_path, engine):
    header = json.dumps({"w": {"dtype": "U8", "shape": [100000], "data_offsets": [0, 100000]}}).encode()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(100000))
    engine.model.model_path = str(tmp_path)
    return tmp_path


def identity_of(engine):
    storage = make(engine)
    storage.close()
    return storage._identity.text()


def fingerprint(engine):
    storage = make(engine, weights_fingerprint=None)
    storage.close()
    return json.loads(storage._identity.text())["weights"]


def test_the_fingerprint_follows_the_files(engine, model_folder):
    first = fingerprint(engine)
    assert first == fingerprint(engine)
    data = bytearray((model_folder / "a.safetensors").read_bytes())
    data[-10] ^= 1
    (model_folder / "a.safetensors").write_bytes(data)
    second = fingerprint(engine)
    (model_folder / "config.json").write_text('{"rope_theta": 1}')
    third = fingerprint(engine)
    assert len({first, second, third}) == 3
    engine.model.model_path = str(model_folder / "a.safetensors")
    fingerprint(engine)
    (model_folder / "b.safetensors").write_bytes(b"\xff" * 100)
    engine.model.model_path = str(model_folder)
    with pytest.raises(ValueError, match="b.safetensors"):
        fingerprint(engine)


@pytest.mark.parametrize("load_format, told", [
    ("remote_instance", "--load-format remote_instance"), ("presharded", "--load-format presharded"),
    ("remote", "--load-format remote"), ("expert_pack", "--load-format expert_pack"), ("private", "--load-format"),
    ("rdma", "--load-format"), ("npcache", "--load-format"), (object, "--load-format"), (None, None), ("auto", None),
    ("AUTO", None), ("sharded_state", None), ("runai_streamer", None), ("layered", None), ("flash_rl", None),
    ("dummy", None), ("pt", None),
])  # fmt: skip
def test_weights_that_may_come_from_elsewhere_need_a_name(engine, model_folder, load_format, told):
    """The files in the model's folder say nothing of them."""
    engine.model.load_format = load_format
    if told is None:
        fingerprint(engine)
        return
    with pytest.raises(ValueError, match=f"{told}.*Set weights_fingerprint in the extra config"):
        make(engine, weights_fingerprint=None)
    make(engine).close()
    engine.model.load_format = "auto"
    engine.spec.speculative_draft_model_path = str(model_folder)
    engine.spec.speculative_draft_load_format = load_format
    with pytest.raises(ValueError, match=f"{told}.*Set draft_weights_fingerprint in the extra config"):
        make(engine, weights_fingerprint=None)
    make(engine, weights_fingerprint=None, draft_weights_fingerprint="d").close()


def test_the_files_that_a_format_takes_are_those_that_count(engine, model_folder):
    """SGLang takes safetensors where there are any, unless it is told otherwise."""
    seen = {}
    for content in (b"1", b"2"):
        (model_folder / "a.pt").write_bytes(content * 1000)
        for engine.model.load_format in ("auto", "pt"):
            seen.setdefault(engine.model.load_format, set()).add(fingerprint(engine))
    assert [len(seen[name]) for name in ("auto", "pt")] == [1, 2]


def test_weights_that_a_daemon_keeps_need_a_name(engine, model_folder):
    """Of files that lay there when it began; one that ends with its server does not keep them."""
    for engine.model.weight_cache_mode in ("off", "daemon"):
        fingerprint(engine)
    engine.model.weight_cache_mode = "client"
    with pytest.raises(ValueError, match="--weight-cache-mode client.*Set weights_fingerprint in the extra config"):
        make(engine, weights_fingerprint=None)
    make(engine).close()


@pytest.mark.parametrize(
    "config, extra, expected",
    [
        (Config(), {}, {"directory": "/d/larder"}),
        (Config(tp_size=2), {}, {"directory": "/d/larder", "share_directory": "/d/larder.share"}),
        (Config(pp_size=2), {"share_directory": "/s"}, {"directory": "/d/larder", "share_directory": "/s"}),
        (
            Config(tp_size=2, tp_rank=1),
            {"rank_directories": True, "max_size": "1T"},
            {"directory": "/d/larder/tp1_pp0_cp0_dp0", "max_size": "1T"},
        ),
    ],
)
def test_where_ranks_have_their_store(engine, config, extra, expected):
    from larder.sglang.settings import read_settings

    config.extra_config = {"directory": "/d/larder", "module_path": "m", "class_name": "c", "allocator": "shm", **extra}
    assert read_settings(config).store == expected


@pytest.mark.parametrize(
    "config, share",
    [
        (Config(), "80%"),
        (Config(tp_size=2), "40%"),
        (Config(tp_size=3, tp_rank=2), "26%"),
        (Config(tp_size=4, pp_size=2), "10%"),
        (Config(tp_size=4, pp_size=2, attn_cp_size=2), "10%"),  # tp counts the context parallel ranks, too
        (Config(tp_size=100), "1%"),
    ],
)
def test_ranks_with_stores_of_their_own_divide_the_disks(engine, config, share):
    """Each has the whole disk to itself, as far as its store can see."""
    from larder.sglang.settings import read_settings

    config.extra_config = {"directory": "/d/larder", "rank_directories": True}
    assert read_settings(config).store["max_size"] == share


def test_replicas_with_stores_of_their_own_divide_the_disks_too(engine):
    from larder.sglang.settings import read_settings

    engine.parallel.dp_size, engine.parallel.dp_rank = 4, 1
    config = Config(tp_size=2, extra_config={"directory": "/d/larder", "rank_directories": True})
    assert read_settings(config).store["max_size"] == "10%"
    config.extra_config["backend"] = "plugin"
    assert "max_size" not in read_settings(config).store


def test_data_parallel_ranks_share_too(engine):
    from larder.sglang.settings import read_settings

    engine.parallel.attn_dp_size = 2
    config = Config(extra_config={"directory": "/a/:/b"})
    assert read_settings(config).store["share_directory"] == "/a.share"


def test_ranks_on_3fs_need_one_index(engine):
    """Each rank's own would be the same directory: the second rank finds it locked."""
    from larder.sglang.settings import read_settings

    def read(config, **extra):
        config.extra_config = {"backend": "hf3fs", "file_path_prefix": "/3fs/pages", **extra}
        return read_settings(config).store

    for config in (Config(tp_size=2), Config(pp_size=2, pp_rank=1), Config(dp_rank=1)):
        for extra in ({}, {"metadata_server_url": ""}, {"metadata_directory": "none"}):
            with pytest.raises(ValueError, match="several ranks on hf3fs need one page index.*metadata_server_url"):
                read(config, **extra)
        assert read(config, metadata_server_url="http://host:18000")["metadata_server_url"] == "http://host:18000"
        assert read(config, share_directory="/run/larder")["share_directory"] == "/run/larder"
    assert read(Config()) == {"file_path_prefix": "/3fs/pages"}
    assert read(Config(tp_lcm_size=4)) == {"file_path_prefix": "/3fs/pages"}


def test_rank_directories_do_not_fit_replicated_kv(engine):
    with pytest.raises(ValueError, match="rank_directories does not fit"):
        make(engine, Config(is_mla_model=True, tp_size=2), rank_directories=True, directory="/d")


def test_sglang_finds_the_class():
    import larder_sglang

    from larder.sglang import LarderStorage

    assert larder_sglang.LarderStorage is LarderStorage


def test_how_weights_are_read_does_not_change_the_pages(engine):
    text = identity_of(engine)
    for config in ("{}", {}, '{"enable_multithread_load": true}', "no JSON", "[1]", None):
        engine.model.model_loader_extra_config = config
        assert identity_of(engine) == text


def test_scales_of_the_cache_are_told_apart_by_what_the_file_says(engine, tmp_path):
    """The server multiplies what it reads from the cache with them: the same bytes are other numbers then."""
    path = tmp_path / "scales.json"
    engine.model.quantization_param_path = str(path)
    texts = [identity_of(engine)]
    for scale in (1.0, 2.0, 1.0):
        path.write_text(json.dumps({"kv_cache": {"scaling_factor": {"0": {"0": scale}}}}))
        texts.append(identity_of(engine))
    assert texts[1] == texts[3] and len(set(texts)) == 3


def test_experts_of_other_weights_are_told_apart(engine, monkeypatch):
    """ktransformers' weights take the place of some of the model's; without them the identity is what it was."""
    from sglang.srt import runtime_context

    text = identity_of(engine)
    moe = types.SimpleNamespace(kt_weight_path=None, kt_method="AMXINT4")
    context = types.SimpleNamespace(moe=moe)
    monkeypatch.setattr(runtime_context, "get_exec", lambda: context, raising=False)
    assert identity_of(engine) == text
    texts = {text}
    for moe.kt_weight_path, moe.kt_method in (("a", "AMXINT4"), ("b", "AMXINT4"), ("b", "AMXINT8")):
        texts.add(identity_of(engine))
    moe.kt_max_deferred_experts_per_token = 4  # their work is added a layer later: other KV
    texts.add(identity_of(engine))
    assert len(texts) == 5


def evenly(layers, rank, size):
    """As SGLang divides the layers of a model among stages, where it is given a list or can divide evenly."""
    given = os.environ.get("SGLANG_PP_LAYER_PARTITION")
    counts = [int(count) for count in given.split(",")] if given else [layers // size] * size
    if len(counts) != size or sum(counts) != layers:
        raise ValueError("another model's list")
    return sum(counts[:rank]), sum(counts[: rank + 1])


@pytest.mark.parametrize("layers", [48, None])
def test_a_stage_with_other_layers_is_another_one(engine, monkeypatch, layers):
    """Hybrid models' pools number their layers from 0 on in each stage. layers: None: SGLang does not say how many."""
    from sglang.srt import runtime_context

    def identity(rank, size, partition):
        with monkeypatch.context() as patch:
            patch.delenv("SGLANG_PP_LAYER_PARTITION", raising=False)
            if partition:
                patch.setenv("SGLANG_PP_LAYER_PARTITION", partition)
            storage = make(engine, Config(pp_rank=rank, pp_size=size))
            storage.close()
            return json.loads(storage._identity.text())

    if layers:
        model = types.SimpleNamespace(num_hidden_layers=layers)
        monkeypatch.setattr(runtime_context, "process_model_config", lambda: model, raising=False)
    utils = types.SimpleNamespace(get_pp_indices=evenly)
    monkeypatch.setitem(sys.modules, "sglang.srt.distributed.utils", utils)
    even, other = identity(1, 4, None), identity(1, 4, "13,12,12,11")
    assert even != other
    assert {key for key in even if even[key] != other[key]} == {"pp_layers"}
    assert "pp_layers" not in identity(0, 1, None) and identity(0, 1, None) == identity(0, 1, "48")
    if layers:
        assert even["pp_layers"] == [12, 24] and other["pp_layers"] == [13, 25]
        assert identity(1, 4, "12,12,12,12") == even
        assert identity(1, 4, "1,2")["pp_layers"] == "1,2"


@pytest.mark.parametrize(
    "config, extra, machines, told",
    [
        ({"is_mla_model": True, "tp_size": 2}, {}, 1, "nothing is restorable on the others"),
        ({"is_mla_model": True}, {}, 1, None),
        ({"tp_size": 2}, {}, 1, None),
        ({}, {"backend": "file"}, 2, "the server has 2"),
        ({}, {"backend": "file"}, 1, None),
        ({}, {}, 2, None),
    ],
)
def test_stores_that_some_ranks_cannot_reach_are_told(engine, caplog, tmp_path, config, extra, machines, told):
    engine.parallel.nnodes = machines
    if extra:
        extra = {**extra, "directory": str(tmp_path / "store"), "max_size": "64M"}
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        make(engine, Config(**config), **extra).close()
    lines = [r.getMessage() for r in caplog.records if "the backend is" in r.getMessage()]
    assert len(lines) == (told is not None) and all(told in line for line in lines)


@pytest.mark.parametrize("splits, is_mla, told", [(True, True, 1), (False, True, 0), (True, False, 0)])
def test_layers_of_context_parallel_ranks_that_nobody_stores_are_told(engine, caplog, splits, is_mla, told):
    engine.parallel.tp_size, engine.parallel.enable_dsa_cache_layer_split = 2, splits
    config = Config(tp_size=2, tp_rank=1, attn_cp_size=2, attn_cp_rank=1, is_mla_model=is_mla)
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        make(engine, config).close()
    assert len([r for r in caplog.records if "enable-dsa-cache-layer-split" in r.getMessage()]) == told


def test_a_draft_model_that_is_quantized_otherwise_is_another_one(engine):
    engine.spec.speculative_draft_model_path = "draft-model"
    drafts = []
    for target, draft in ((None, None), ("fp8", "fp8"), ("fp8", None), (None, "fp8"), ("fp8", "awq")):
        engine.model.quantization, engine.spec.speculative_draft_model_quantization = target, draft
        storage = make(engine, draft_weights_fingerprint="d")
        storage.close()
        drafts.append(storage._identity.draft)
    assert drafts[0] == drafts[1]  # the target's is in the identity
    assert len(set(drafts)) == 4
