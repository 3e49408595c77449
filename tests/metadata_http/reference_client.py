#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays the call sequence of the reference's metadata client against URL: an implementation that knows none of ours.

Backs up chains of pages as its batch_set does (reserve, write, confirm or release), reads them back as its batch_get
does, from several processes' point of view, over kept-alive connections, and keeps the bytes of the pages itself: a
page that two keys share is found out. Ends with 0 and "ok", or 1 and what was wrong.
"""

import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request


class Client:
    """The subset of Hf3fsGlobalMetadataClient that the backend calls, one kept-alive connection."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)

    def post(self, endpoint, data):
        self.connection.request("POST", "/" + endpoint, json.dumps(data).encode(),
                                {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        body = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{endpoint}: {response.status} {body!r}")
        return {} if response.status == 204 or not body else json.loads(body)

    def initialize(self, rank, num_pages, namespace="kv"):
        self.post(f"{rank}/initialize", {"num_pages": num_pages, "namespace": namespace})

    def reserve(self, rank, keys, namespace="kv"):
        data = {"keys": keys, "namespace": namespace}
        return [tuple(item) for item in self.post(f"{rank}/reserve_and_allocate_page_indices", data).get("indices")]

    def confirm(self, rank, written, released, namespace="kv"):
        self.post(f"{rank}/confirm_write", {"written_keys_to_confirm": written, "pages_to_release": released,
                                            "namespace": namespace})

    def exists(self, rank, keys, namespace="kv"):
        return self.post(f"{rank}/exists", {"keys": keys, "namespace": namespace}).get("exists", [])

    def get(self, rank, keys, namespace="kv"):
        return self.post(f"{rank}/get_page_indices", {"keys": keys, "namespace": namespace}).get("indices")


def batch_set(client, rank, files, keys, failing=()):
    """As the backend's: the answers per key; the bytes of a page are its key."""
    indices = client.reserve(rank, [(key, "") for key in keys])
    assert len(indices) == len(keys), indices
    results = [index[0] for index in indices]
    written, released = [], []
    for i, (is_written, page) in enumerate(indices):
        if is_written or page == -1:
            continue
        results[i] = keys[i] not in failing
        if results[i]:
            files[rank, page] = keys[i]
            written.append((keys[i], page))
        else:
            released.append(page)
    if written or released:
        client.confirm(rank, written, released)
    return results


def batch_get(client, rank, files, keys):
    pages = client.get(rank, keys)
    assert len(pages) == len(keys), pages
    return [None if page is None else files.get((rank, page)) for page in pages]


def play(url):
    clients = [Client(url) for _ in range(3)]
    files = {}
    for rank in range(2):
        for client in clients:
            client.initialize(rank, 100)
    chains = [[f"{chain:02d}{'f' * 60}{page:02d}" for page in range(10)] for chain in range(8)]
    for number, chain in enumerate(chains):
        for rank in range(2):
            results = batch_set(clients[number % 3], rank, files, chain)
            assert all(results), (chain, results)
    for chain in chains:
        for rank, client in ((0, clients[2]), (1, clients[0])):
            assert client.exists(rank, chain) == [True] * 10
            assert batch_get(client, rank, files, chain) == chain, "a page holds another key's bytes"
    again = batch_set(clients[1], 0, files, chains[0] + ["new"])
    assert again == [True] * 11, again
    failed = batch_set(clients[1], 0, files, ["bad", "good"], failing=("bad",))
    assert failed == [False, True], failed
    assert clients[0].exists(0, ["bad", "good", "nowhere"]) == [False, True, False]
    more = [f"more{i}" for i in range(60)]
    results = batch_set(clients[0], 1, files, more)
    for key, result, found in zip(more, results, batch_get(clients[1], 1, files, more)):
        assert found == (key if result else None), (key, result, found)
    clients[0].post("0/delete_keys", {"keys": ["good"], "namespace": "kv"})
    assert clients[0].exists(0, ["good"]) == [False]
    clients[0].post("0/clear", {"namespace": "kv"})
    assert clients[0].exists(0, chains[1]) == [False] * 10
    try:
        urllib.request.urlopen(urllib.request.Request(url + "/9/exists", b'{"keys":["a"]}', method="POST"), timeout=20)
        raise AssertionError("an unknown rank was answered")
    except urllib.error.HTTPError as error:
        expected = "Rank 9 namespace 'kv' not initialized. Please call /9/initialize first."
        assert error.code == 404 and json.load(error)["detail"] == expected


def main():
    try:
        play(sys.argv[1])
    except (AssertionError, RuntimeError, OSError) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print("ok")
    return 0


sys.exit(main())
