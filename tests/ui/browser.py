# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, for tests of pages: needs chromium and chromedriver."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

PATIENCE_SECONDS = 30


def is_there():
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


def need(is_so, what):
    if not is_so:
        raise AssertionError(what)


class Browser:
    """The part of WebDriver (https://www.w3.org/TR/webdriver2/) that this test needs."""

    def __init__(self, folder):
        log = folder / "chromedriver.log"  # a file: a pipe that nobody reads would stop the driver
        with log.open("w") as out:
            self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=out,
                                           stderr=subprocess.STDOUT)
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(r"on port (\d+)\.", log.read_text())):
            need(time.monotonic() < end and self.driver.poll() is None, f"chromedriver: {log.read_text()}")
            time.sleep(0.1)
        self.base = f"http://127.0.0.1:{found.group(1)}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            "--hide-scrollbars"],
                   "binary": shutil.which("chromium")}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options,
                        "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.call("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        self.base += "/" + made["sessionId"]

    def call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"WebDriver {method} {path}: {error.read().decode()[:500]}") from error

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, name):
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def fill(self, name, text):
        self.run("document.getElementById(arguments[0]).value = arguments[1]", name, text)

    def click(self, name):
        self.run("document.getElementById(arguments[0]).click()", name)

    def wait(self, what, script):
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            value = self.run("return " + script)
            if value:
                return value
            time.sleep(0.2)
        raise AssertionError(f"{what}: {script} stayed {value!r}; the page said: {self.text('problem')}")

    def console(self):
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path, size):
        self.call("POST", "/window/rect", {"width": size[0], "height": size[1]})
        time.sleep(1.5)
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def end(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
