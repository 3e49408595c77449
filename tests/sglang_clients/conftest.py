# SPDX-License-Identifier: Apache-2.0
"""No network, a home of its own, a tokenizer and a data set for SGLang's clients, and servers."""

import json
import os
import pathlib
import random
import string
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import byte_tokenizer
import clients
from larder_server import LarderServer


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """The clients keep the prompts that they have made under the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """Folder of the tokenizer."""
    return byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def conversations_file(tmp_path_factory):
    """A file of conversations in the format of ShareGPT, which the clients would else download."""
    source = random.Random(1)

    def text(length):
        return "".join(source.choices(string.ascii_letters + " ", k=length))

    talks = [{"conversations": [{"value": text(700)}, {"value": text(40)}]} for _ in range(16)]
    path = tmp_path_factory.mktemp("data") / "talks.json"
    path.write_text(json.dumps(talks))
    return path


@pytest.fixture
def server():
    """A server of a hybrid model."""
    with LarderServer("--model", "gdn-tiny") as running:
        yield running


@pytest.fixture
def benchmark(tokenizer, tmp_path, monkeypatch):
    """Runs SGLang's Python client against a server; returns its result."""

    def run(server, *options):
        everywhere = ["--tokenizer", tokenizer, "--cache-report", "--seed", 1, *options]
        return clients.run(clients.PYTHON_CLIENT, server.url, tmp_path, *everywhere, monkeypatch=monkeypatch)

    return run
