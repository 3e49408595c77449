# SPDX-License-Identifier: Apache-2.0
"""What an engine has loaded, and what its files have become since."""

import json
import os
import types

import numpy
import pytest
from fake_engine import Config, HostPool, slots
from test_sglang import chain, prefix


def write_model(folder, seed):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    data = numpy.random.default_rng(seed).integers(0, 256, 4096, "u1").tobytes()
    header = json.dumps({"w": {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


@pytest.fixture
def start(engine, tmp_path, monkeypatch):
    """A function that starts a new engine on tmp_path / "model", and answers with a function that attaches a store."""
    from sglang.srt import runtime_context

    from larder.sglang import LarderStorage

    engine.model.model_path = str(tmp_path / "model")
    made = []

    def attach(**extra):
        config = Config()
        config.extra_config = {"directory": str(tmp_path / "store"), "max_size": "64M", "interface_v1": 1, **extra}
        storage = LarderStorage(config, {})
        made.append(storage)
        pool = HostPool()
        storage.register_mem_pool_host(pool)
        storage.register_mem_host_pool_v2(pool, "kv")
        storage.on_host_pools_registered()
        return storage

    def begin():
        server_args = types.SimpleNamespace(weight_version="default")
        monkeypatch.setattr(runtime_context, "get_server_args", lambda: server_args, raising=False)
        return attach

    yield begin
    for storage in made:
        storage.close()


@pytest.fixture
def memory(monkeypatch):
    """SGLang's note of its storage: None until an attach at run time has succeeded."""
    from sglang.srt import runtime_context

    note = types.SimpleNamespace(hicache_storage_backend=None)
    monkeypatch.setattr(runtime_context, "get_memory", lambda: note, raising=False)
    return note


@pytest.fixture
def old_process(monkeypatch):
    """A function that says from when on the process has been there."""
    from larder.sglang import loaded

    return lambda seconds: monkeypatch.setattr(loaded, "process_start", lambda: seconds)


@pytest.mark.parametrize("way", ["overwritten", "link", "moved"])
def test_other_weights_in_the_same_place_are_not_those_of_an_engine_that_runs(start, tmp_path, way):
    """A deployment while it runs: detach and attach do not make the engine one of the new weights."""
    first = write_model(tmp_path / "first", 1)
    model = tmp_path / "model"
    model.symlink_to(first) if way == "link" else first.rename(model)
    attach = start()
    attach().close()
    if way == "overwritten":
        write_model(model, 2)
    elif way == "link":
        model.unlink()
        model.symlink_to(write_model(tmp_path / "second", 2))
    else:
        model.rename(tmp_path / "before")
        write_model(tmp_path / "second", 2).rename(model)
    storage = attach()
    assert storage.batch_set_v1(chain(1), slots(0, page_size=4), prefix()) == [True]
    storage.close()
    storage = attach()
    assert storage.batch_exists(chain(1)) == 1  # of the same engine
    storage.close()
    storage = start()()
    assert storage.batch_exists(chain(1)) == 0
    assert storage.batch_get_v1(chain(1), slots(0, page_size=4)) == [False]


def test_scales_are_those_that_the_engine_has_read(start, engine, tmp_path):
    write_model(tmp_path / "model", 1)
    scales = tmp_path / "scales.json"
    engine.model.quantization_param_path = str(scales)
    texts = []
    for engine_number in range(2):
        attach = start()
        for scale in range(2):
            scales.write_text(f"{engine_number}{scale}")
            storage = attach()
            texts.append(storage._identity.text())
            storage.close()
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_weights_that_cannot_be_read_are_read_anew_at_the_next_attach(start, tmp_path):
    attach = start()
    with pytest.raises(ValueError, match="is no folder"):
        attach()
    write_model(tmp_path / "model", 1)
    attach()


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json", "model", "link", "elsewhere"])
def test_files_that_changed_before_the_first_attach_at_run_time_are_refused(
    start, memory, old_process, engine, tmp_path, changed
):
    """Nobody knows whether the engine has loaded them before or after."""
    real = write_model(tmp_path / "real", 1)
    (tmp_path / "blob").write_bytes((real / "model.safetensors").read_bytes())
    if changed == "elsewhere":  # as in the cache of a hub
        (real / "model.safetensors").unlink()
        (real / "model.safetensors").symlink_to(tmp_path / "blob")
    (tmp_path / "folders").symlink_to(tmp_path)
    (tmp_path / "model").symlink_to("folders/real")
    place = {"model": real, "link": tmp_path / "model", "elsewhere": tmp_path / "blob"}.get(changed, real / changed)
    every = [real, *real.iterdir(), tmp_path / "model", tmp_path / "folders", tmp_path / "blob", tmp_path]
    attach = start()
    old_process(max(os.lstat(one).st_ctime for one in every))
    attach().close()
    attach = start()
    while os.lstat(place).st_ctime <= max(os.lstat(one).st_ctime for one in every if one != place):
        os.utime(place, (1, 1), follow_symlinks=False)  # an old time of change helps nobody
    old_process(os.lstat(place).st_ctime - 1e-6)
    told = f"{place.name}.*has changed since.*Set weights_fingerprint.*or give the update a weight_version"
    with pytest.raises(ValueError, match=told):
        attach()
    attach(weights_fingerprint="w").close()
    engine.serving.weight_version = "step 1"  # its own update has taken them
    attach().close()
    engine.serving.weight_version = "default"
    memory.hicache_storage_backend = "dynamic"  # attached at the start, which has just loaded them
    attach = start()
    attach()


@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_around_the_model_that_was_moved_is_refused(start, memory, old_process, engine, tmp_path, is_link):
    """mv models.new models: nothing in it has changed, and neither has the model's folder."""
    new, models = tmp_path / "models.new", tmp_path / "models"
    (new / "made" / "of").mkdir(parents=True)
    real = write_model(new / "made" / "of" / "real", 1)
    if is_link:  # the link's folder is moved, the model is elsewhere
        real = real.rename(tmp_path / "elsewhere")
        (new / "made" / "of" / "real").symlink_to(real)
    engine.model.model_path = str(models / "made" / "of" / "real")
    every = [*new.rglob("*"), new, tmp_path, real, *real.iterdir()]
    began = max(os.lstat(one).st_ctime for one in every)
    new.rename(models)
    while models.stat().st_ctime <= began:
        models.rename(new).rename(models)
    attach = start()
    old_process(models.stat().st_ctime)
    attach().close()
    attach = start()
    old_process(began)
    with pytest.raises(ValueError, match="/models' has changed since"):
        attach()


def test_scales_that_changed_before_the_first_attach_at_run_time_are_refused(
    start, memory, old_process, engine, tmp_path
):
    write_model(tmp_path / "model", 1)
    scales = tmp_path / "scales.json"
    scales.write_text("1")
    engine.model.quantization_param_path = str(scales)
    attach = start()
    old_process(scales.stat().st_ctime - 1e-6)
    engine.serving.weight_version = "step 1"  # an update of the weights reads no scales
    with pytest.raises(ValueError, match="scales.json.*has changed since.*Set weights_fingerprint"):
        attach()
    attach(weights_fingerprint="w").close()
    attach = start()
    old_process(scales.stat().st_ctime)
    attach()


def test_on_several_machines_what_cannot_be_known_is_a_miss_and_no_refusal(
    start, memory, old_process, engine, tmp_path, caplog
):
    """The ranks of the other machines, which may see no change, would wait for this one for ever."""
    write_model(tmp_path / "model", 1)
    engine.parallel.nnodes = 2
    attach = start()
    old_process(0.0)
    texts = set()
    for _ in range(2):
        storage = attach()
        texts |= {storage._identity.text(), storage._identity.text()}
        assert storage.batch_exists(chain(1)) == 0
        storage.batch_set_v1(chain(1), slots(0, page_size=4), prefix())
        storage.close()
    assert len(texts) == 2
    lines = [record.getMessage() for record in caplog.records if "has changed since" in record.getMessage()]
    assert len(lines) == 2 and all("Set weights_fingerprint" in line for line in lines)
    attach(weights_fingerprint="w").close()
    old_process(os.stat(tmp_path / "model/model.safetensors").st_ctime + 1e9)
    assert '"unknown ' not in attach()._identity.text()  # nothing of it was kept
    memory.hicache_storage_backend = "dynamic"
    attach = start()
    engine.model.model_path = str(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is no folder"):  # at the start all ranks end with this one
        attach()


def test_new_weights_while_it_is_attached_are_new_files(start, memory, old_process, engine, tmp_path):
    write_model(tmp_path / "model", 1)
    write_model(tmp_path / "other", 2)
    attach = start()
    old_process(max(os.stat(tmp_path / "model").st_ctime, os.stat(tmp_path / "model/model.safetensors").st_ctime))
    storage = attach()
    text = storage._identity.text()
    old_process(0.0)
    engine.model.model_path = str(tmp_path / "other")
    assert storage._identity.text() != text


def test_a_model_of_a_hub_is_no_path():
    from larder.sglang.loaded import changed_since_start

    assert changed_since_start("organisation/model") is None


def test_the_process_has_begun_before_now(tmp_path):
    from larder.sglang.loaded import changed_since_start, process_start

    file = tmp_path / "new"
    file.write_text("")
    assert 0 < process_start() < os.stat(file).st_ctime
    assert changed_since_start(str(tmp_path)) in (str(tmp_path), str(file))
