#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the operator's page in a real Chromium while requests run: numbers move, a prompt is explained, storage is
attached and detached, nothing is loaded from elsewhere, a page of another origin changes nothing, and a server that
hangs or wants a key does not look like one that is well or down.

  tests/ui/page_test.py LARDER [--screenshots DIRECTORY]

Needs chromium and chromedriver; without them it ends with 77 (skipped), or with 1 if LARDER_TEST_ALL_SERVERS is set.
"""

import argparse
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from browser import Browser, PATIENCE_SECONDS, is_there, need

SKIPPED = 77
WIDE, NARROW = (1280, 1500), (390, 2400)


def ask(url, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


class Load(threading.Thread):
    """Conversations that share their beginnings."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.is_over = url, threading.Event()

    def run(self):
        turn = 0
        while not self.is_over.is_set():
            text = prompt(turn % 5) + f" and then {turn}"
            ask(self.url + "/generate", "POST", {"text": text, "sampling_params": {"max_new_tokens": 8}})
            turn += 1
            time.sleep(0.05)


def prompt(conversation):
    return f"conversation {conversation}: " + "the same words again and again, " * 20


def start_server(larder, *options):
    process = subprocess.Popen([larder, "serve", "--port", "0", "--log-level", "off", *options],
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(r"http://[^ ]*:(\d+)", line)
        if found:
            return process, f"http://127.0.0.1:{found.group(1)}"
    sys.exit("the server did not start")


def numbers_move(browser, url):
    browser.open(url + "/ui")
    browser.wait("the server is healthy", "document.getElementById('health').textContent === 'healthy'")
    first = browser.wait("a hit rate", "/%/.test(document.getElementById('hit_all').textContent) && "
                                       "document.getElementById('hit_all').textContent")
    browser.wait("the hit rate moves", f"document.getElementById('hit_all').textContent !== {json.dumps(first)}")
    browser.wait("a chart of three tiers", "document.querySelectorAll('#chart polygon').length === 3")
    browser.wait("tiers and pools", "document.querySelectorAll('#tiers tbody tr').length >= 4")
    browser.wait("the last requests", "document.querySelectorAll('#recent tbody tr').length >= 10")
    browser.wait("why not more",
                 "/never_seen|diverged|no_checkpoint|all of it/.test(document.getElementById('recent').textContent)")


def a_prompt_is_explained(browser):
    browser.fill("prompt", prompt(1))
    browser.click("explain")
    browser.wait("an explanation", "/can be reused/.test(document.getElementById('why').textContent)")
    browser.wait("pages on the device", "[...document.querySelectorAll('#pages rect.device')]"
                                        ".some((bar) => bar.getBoundingClientRect().width > 10)")
    browser.fill("prompt", "[1, 2, 99999999]")
    browser.click("explain")
    browser.wait("a clear error", "/out of range/.test(document.getElementById('why').textContent)")
    need(not browser.run("return document.getElementById('pages').checkVisibility()"), "no picture of another prompt")
    browser.fill("prompt", prompt(1))
    browser.click("explain")
    browser.wait("the picture again", "document.getElementById('pages').checkVisibility() && "
                                      "/can be reused/.test(document.getElementById('why').textContent)")


def storage_is_attached_and_detached(browser, url, directory):
    browser.fill("extra", json.dumps({"directory": directory, "no_such_option": 1}))
    browser.click("attach")
    browser.wait("a refusal that says why", "/no_such_option/.test(document.getElementById('action').textContent)")
    browser.fill("extra", json.dumps({"directory": directory, "max_size": "1Gi"}))
    browser.click("attach")
    browser.wait("attached", "/^attach: done/.test(document.getElementById('action').textContent)")
    need(json.loads(ask(url + "/hicache/storage-backend"))["hicache_storage_backend"] == "file", "the server has it")
    browser.wait("pages in storage", "/[1-9].* used of 1.0 GiB/.test(document.getElementById('storage').textContent)")


def storage_is_detached(browser, url):
    browser.click("detach")
    browser.wait("detached", "/^detach: done/.test(document.getElementById('action').textContent)")
    need(json.loads(ask(url + "/hicache/storage-backend"))["hicache_storage_backend"] is None, "the server has none")


def nothing_comes_from_elsewhere(browser, url):
    names = browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    need(names, "the page has loaded something")
    foreign = [name for name in names if not name.startswith(url + "/")]
    need(not foreign, f"loaded from elsewhere: {foreign}")
    errors = [line for line in browser.console() if "favicon" not in line and "400" not in line]
    need(not errors, f"the console says: {errors}")


HOSTILE = """<!doctype html><title>another site</title><iframe id="frame" src="URL/ui"></iframe><script>
const tries = [
  fetch('URL/flush_cache', {method: 'POST', mode: 'no-cors'}),
  fetch('URL/flush_cache', {mode: 'no-cors'}),
  fetch('URL/hicache/storage-backend', {method: 'PUT', body: '{"hicache_storage_backend": "memory"}'}),
  fetch('URL/explain', {method: 'POST', body: '{"text": "a"}'}).then((reply) => reply.text()),
  fetch('URL/server_info').then((reply) => reply.text()),
];
Promise.allSettled(tries).then((all) => { window.outcome = all.map((one) => one.status === 'fulfilled' &&
  (typeof one.value === 'string' ? one.value : one.value.type)); });
</script>"""


def another_origin_can_do_nothing(browser, url):
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(HOSTILE.replace("URL", url).encode())

        def log_message(self, *_):
            pass

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    before = json.loads(ask(url + "/explain", "POST", {"text": prompt(1)}))["restore"]["device"]["pages"]
    need(before > 0, "there is something to flush")
    browser.open(f"http://localhost:{site.server_port}/")
    outcome = browser.wait("the other page has tried", "window.outcome")
    need(outcome[0] in (False, "opaque") and outcome[1] in (False, "opaque"), f"it reads no answers: {outcome}")
    need(outcome[2:] == [False, False, False], f"it reads no answers: {outcome}")
    after = json.loads(ask(url + "/explain", "POST", {"text": prompt(1)}))["restore"]["device"]["pages"]
    need(after == before, f"the cache was not flushed: {before} pages before, {after} after")
    need(json.loads(ask(url + "/hicache/storage-backend"))["hicache_storage_backend"] is None, "nothing was attached")
    framed = browser.run("return document.getElementById('frame').contentDocument")
    need(framed is None, "the page is not shown in a frame")
    site.shutdown()


# A page that shows its last numbers as if they were today's is worse than none.
def a_server_that_hangs_is_seen(browser, process):
    process.send_signal(signal.SIGSTOP)
    try:
        browser.wait("it hangs", "document.getElementById('health').textContent === 'no answer' && "
                                 "document.querySelector('main').classList.contains('stale')")
    finally:
        process.send_signal(signal.SIGCONT)
    browser.wait("it is back", "document.getElementById('health').textContent === 'healthy' && "
                               "!document.querySelector('main').classList.contains('stale')")


# A refusal is an answer: the server is not down, and what may be seen is shown.
def keys_that_are_missing_are_named(browser, larder):
    process, url = start_server(larder, "--model", "gdn-tiny", "--api-key", "user", "--admin-api-key", "admin")
    try:
        browser.open(url + "/ui")
        browser.wait("no key", "/server_info: 401.*API key goes above/"
                               ".test(document.getElementById('problem').textContent)")
        need(browser.text("health") == "healthy", f"health: {browser.text('health')}")
        browser.fill("key", "user")
        browser.wait("the key of users", "/recent_requests.*401.*admin key/"
                                         ".test(document.getElementById('problem').textContent)")
        browser.wait("its numbers", "document.querySelectorAll('#tiers tbody tr').length >= 4")
        need(browser.text("health") == "healthy", f"health: {browser.text('health')}")
        browser.fill("admin_key", "admin")
        browser.wait("both keys", "document.getElementById('problem').hidden")
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larder")
    parser.add_argument("--screenshots", type=pathlib.Path)
    given = parser.parse_args()
    if not is_there():
        print("no chromium, or no chromedriver: skipped")
        return 1 if os.environ.get("LARDER_TEST_ALL_SERVERS") else SKIPPED
    with tempfile.TemporaryDirectory() as directory:
        look(given, pathlib.Path(directory))
    print("the operator's page: ok")
    return 0


def look(given, folder):
    process, url = start_server(given.larder)
    browser, load = None, Load(url)
    try:
        browser = Browser(folder)
        load.start()
        numbers_move(browser, url)
        a_prompt_is_explained(browser)
        storage_is_attached_and_detached(browser, url, str(folder / "store"))
        if given.screenshots:
            browser.screenshot(given.screenshots / "ui_wide.png", WIDE)
            browser.screenshot(given.screenshots / "ui_narrow.png", NARROW)
        storage_is_detached(browser, url)
        nothing_comes_from_elsewhere(browser, url)
        a_server_that_hangs_is_seen(browser, process)
        load.is_over.set()
        load.join()
        another_origin_can_do_nothing(browser, url)
        keys_that_are_missing_are_named(browser, given.larder)
    finally:
        load.is_over.set()
        if browser is not None:
            browser.end()
        process.terminate()
        status = process.wait()
    need(status == 0, f"the server ended with {status}")


if __name__ == "__main__":
    sys.exit(main())
