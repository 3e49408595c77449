# SPDX-License-Identifier: Apache-2.0
"""The operator's page in a real Chromium, and `larder stat`: of `larder proxy` and of GGUF files."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from servers import LARDER, Proxy, Serve

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "ui"))
import browser as chromium  # noqa: E402

SHELF = "On the first shelf there are jars of plums. " * 20
BATCH = ("-b", 64)


@pytest.fixture
def page(tmp_path):
    if not chromium.is_there():
        if os.environ.get("LARDER_TEST_ALL_SERVERS"):
            pytest.fail("chromium or chromedriver is missing")
        pytest.skip("no chromium, or no chromedriver")
    window = chromium.Browser(tmp_path)
    yield window
    window.end()


def ask_twice(front):
    for question in ("What?", "Where?"):
        status, _, body = front.post("/completion", {"prompt": SHELF + question, "n_predict": 2})
        assert status == 200, body
    front.post("/completion", {"prompt": SHELF, "n_predict": 2, "cache_prompt": False})


def look_at(front, page):
    page.open(front.url + "/larder/ui")
    page.wait("the server is healthy", "document.getElementById('health').textContent === 'healthy'")
    page.wait("a hit rate", "/%/.test(document.getElementById('hit_all').textContent)")
    page.wait("the last requests", "document.querySelectorAll('#recent tbody tr').length === 3")
    page.wait("what was reused", "/[0-9] slot/.test(document.getElementById('recent').textContent)")
    page.wait("why not more", "/never_seen/.test(document.getElementById('recent').textContent)")
    page.wait("one without caching", "/no_caching/.test(document.getElementById('recent').textContent)")
    page.wait("the host", "/host/.test(document.getElementById('tiers').textContent)")
    page.wait("the store", "/file/.test(document.getElementById('storage').textContent)")
    assert page.run("return [...document.querySelectorAll('.whole')].every((part) => !part.checkVisibility())")
    page.fill("prompt", SHELF)
    page.click("explain")
    page.wait("an explanation", "/would be reused/.test(document.getElementById('why').textContent)")
    page.run("window.confirm = () => true")
    page.click("flush")
    page.wait("flushed", "/^flush: done/.test(document.getElementById('action').textContent)")
    names = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert names and all(name.startswith(front.url + "/") for name in names), names
    assert [line for line in page.console() if "favicon" not in line] == []


def stat(front, *more):
    done = subprocess.run([LARDER, "stat", "--url", front.url, *more], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_proxys(page, model, start, tmp_path):
    front = start(Proxy(model("qwen3"), "-c", 4096, "-np", 1, store=tmp_path / "store"))
    ask_twice(front)
    look_at(front, page)
    text = stat(front)
    assert "larder proxy" in text and "larder_proxy_prompt_tokens_total" in text, text
    assert json.loads(stat(front, "--json"))["prompt_tokens"] == front.status()["prompt_tokens"] > 0


def test_that_of_a_gguf_file_which_asks_for_its_key(page, model, start, tmp_path):
    key = tmp_path / "key"
    key.write_text("the key of users\n")
    key.chmod(0o600)
    front = start(Serve(model("qwen3"), "-c", 4096, "-p", 1, *BATCH, "--api-key-file", key, store=tmp_path / "store"))
    page.open(front.url + "/larder/ui")
    page.wait("no key", "/larder.status: 401.*API key/.test(document.getElementById('problem').textContent)")
    page.fill("key", "the key of users")
    page.wait("with the key", "document.getElementById('problem').hidden")
    denied = subprocess.run([LARDER, "stat", "--url", front.url], capture_output=True, text=True, timeout=60)
    assert denied.returncode == 1 and "--api-key-file" in denied.stderr, denied.stderr
    assert "larder serve" in stat(front, "--api-key-file", str(key))


def test_that_of_a_gguf_file(page, model, start, tmp_path):
    front = start(Serve(model("qwen3"), "-c", 4096, "-p", 1, *BATCH, store=tmp_path / "store"))
    ask_twice(front)
    look_at(front, page)
    assert json.loads(stat(front, "--json"))["prompt_tokens"] == front.status()["prompt_tokens"] > 0
