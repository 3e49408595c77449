# SPDX-License-Identifier: Apache-2.0
"""Models of random weights, and servers that end with their test."""

import os
import random
import subprocess

import pytest

import servers


def pytest_collection_modifyitems(config, items):
    """With LARDER_TEST_HALF=0 or 1 every second test: a server has one thread, so two halves go side by side."""
    half = os.environ.get("LARDER_TEST_HALF")
    if half:
        config.hook.pytest_deselected(items=items[1 - int(half) :: 2])
        items[:] = items[int(half) :: 2]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Path of a tiny model of an architecture."""
    folder = tmp_path_factory.mktemp("models")

    def make(architecture, *numbers):
        path = folder / ("-".join([architecture, *numbers]) + ".gguf")
        if not path.exists():
            subprocess.run([servers.WRITE_MODEL, architecture, str(path), *numbers], check=True)
        return path

    return make


@pytest.fixture
def start():
    """Starts servers; they are stopped when the test is over."""
    started = []

    def run(server):
        started.append(server)
        return server.start()

    yield run
    for server in reversed(started):
        server.stop()


@pytest.fixture(scope="session")
def tokens():
    """Random tokens of text, the same ones for the same seed."""

    def draw(count, seed):
        source = random.Random(seed)
        return [source.randrange(256) for _ in range(count)]

    return draw
