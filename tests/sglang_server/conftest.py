# SPDX-License-Identifier: Apache-2.0
"""No network, models, and servers that end with their test."""

import itertools
import os
import pathlib
import random
import sys

import pytest

HERE = pathlib.Path(__file__).parent

sys.path[:0] = [str(HERE), str(HERE.parent / "sglang")]
os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{sys.prefix}/torch_extensions")
os.environ["HF_HUB_OFFLINE"] = "1"

import checkpoint
from sglang_server import SglangServer


def pytest_collection_modifyitems(config, items):
    """With LARDER_TEST_HALF=0 or 1 half of the tests that start servers of their own: a start takes half a minute."""
    half = os.environ.get("LARDER_TEST_HALF")
    if not half:
        return
    own = [item for item in items if "start" in item.fixturenames]
    others = own[1 - int(half) :: 2]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory):
    """Folder of a model of full attention."""
    return checkpoint.qwen2(tmp_path_factory.mktemp("models") / "qwen2")


@pytest.fixture(scope="session")
def lfm2(tmp_path_factory):
    """Folder of a hybrid model: attention and short convolutions."""
    return checkpoint.lfm2(tmp_path_factory.mktemp("models") / "lfm2")


@pytest.fixture(scope="session")
def mellum(tmp_path_factory):
    """Folder of a model half of whose layers have a sliding window."""
    return checkpoint.mellum(tmp_path_factory.mktemp("models") / "mellum")


@pytest.fixture(scope="session")
def _running(qwen2, tmp_path_factory):
    """Two servers of the model of full attention, without a storage."""
    folder = tmp_path_factory.mktemp("servers")
    servers = [SglangServer(qwen2, folder / f"sglang_{number}.log") for number in range(2)]
    try:
        for server in servers:
            server.begin()
        for server in servers:
            server.wait_until_up()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def servers(_running):
    """The same two for several tests, to save their starts: a test attaches what it wants, and nobody kills them."""
    for server in _running:
        server.flush()
    yield _running
    for server in _running:
        server.detach()


@pytest.fixture
def start(qwen2, tmp_path):
    """Makes servers, which end with the test."""
    made = []

    logs = (tmp_path / f"sglang_{number}.log" for number in itertools.count())

    def make(model=qwen2, **options):
        made.append(SglangServer(model, next(logs), **options))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def prompts():
    """Two conversations of 300 tokens that begin alike, and two others; more than the device has room for, together."""
    source = random.Random(7)

    def text(length):
        return [source.randrange(3, checkpoint.VOCABULARY) for _ in range(length)]

    begin = text(160)
    return [begin + text(140), begin + text(140), text(300), text(420)]
