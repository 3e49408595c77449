# SPDX-License-Identifier: Apache-2.0
"""What the tests share: an engine that is not there, and a LarderStorage on it."""

import types

import pytest

import fake_engine

fake_engine.install()


@pytest.fixture
def engine(monkeypatch):
    """SGLang's runtime context: what a test changes in it, LarderStorage sees."""
    import numpy
    from sglang.srt import runtime_context

    from larder.sglang import tensors

    context = types.SimpleNamespace(
        model=types.SimpleNamespace(
            model_path="m", revision=None, dtype="bfloat16", quantization=None, kv_cache_dtype="auto"
        ),
        serving=types.SimpleNamespace(weight_version="default"),
        spec=types.SimpleNamespace(speculative_draft_model_path=None, speculative_draft_model_revision=None),
        parallel=types.SimpleNamespace(dp_size=1, attn_dp_size=1),
    )
    for name in ("model", "serving", "spec", "parallel"):
        monkeypatch.setattr(runtime_context, f"get_{name}", lambda name=name: getattr(context, name))
    arange = lambda first, count: fake_engine.Tensor(numpy.arange(first, first + count))  # noqa: E731
    monkeypatch.setattr(tensors, "page_slots", arange)
    monkeypatch.setattr(tensors, "empty_like", lambda tensor: fake_engine.Tensor(numpy.empty_like(tensor.array)))
    return context


@pytest.fixture(params=["fake", "memory"])
def make_storage(request, engine, monkeypatch):
    """A function that makes a LarderStorage with pools, on the strict store and on the real one."""
    import larder
    from fake_store import FakeStore
    from larder.sglang import LarderStorage

    made = []
    if request.param == "fake":
        monkeypatch.setattr(larder, "Store", FakeStore)

    def make(pools=None, config=None, **extra):
        extra = {"backend": "memory", "weights_fingerprint": "w", "interface_v1": 1, **extra}
        config = config or fake_engine.Config()
        config.extra_config = extra
        storage = LarderStorage(config, {})
        made.append(storage)
        pools = {"kv": fake_engine.HostPool()} if pools is None else pools
        for name, pool in pools.items():
            if name == "kv":
                storage.register_mem_pool_host(pool)
        for name, pool in pools.items():
            storage.register_mem_host_pool_v2(pool, name)
        storage.on_host_pools_registered()
        return storage

    make.is_fake = request.param == "fake"
    yield make
    for storage in made:
        storage.close()


@pytest.fixture
def fake_storage(make_storage):
    if not make_storage.is_fake:
        pytest.skip("needs the fake store")
    return make_storage()
