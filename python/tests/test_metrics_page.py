# SPDX-License-Identifier: Apache-2.0
"""The page with metrics of a rank."""

import json
import logging
import threading

import pytest
from test_sglang import chain, transfer


def test_metrics_are_served_until_the_end(make_storage):
    import socket
    import urllib.error
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    storage = make_storage(metrics_port=port)
    url = f"http://127.0.0.1:{port}"
    text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    assert make_storage.is_fake or "larder_door_calls_total" in text
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url + "/elsewhere", timeout=10)
    without = make_storage(metrics_port=port)  # taken: the other ranks' attach does not wait for this one for ever
    assert without.troubles() == {"metrics_port": 1} and without.batch_exists(chain(1)) == 0
    assert 'troubles_total{kind="metrics_port"} 1' in without.store_metrics()
    with pytest.raises(ValueError, match="a port from 1 to 65535"):
        make_storage(metrics_port=0)
    without.close()
    storage.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url + "/metrics", timeout=10)


def test_a_page_whose_port_is_taken_opens_when_the_port_is_free(engine):
    import urllib.request

    from larder.sglang.metrics_page import MetricsPage

    first = MetricsPage("127.0.0.1", 0, lambda: "first 1\n")
    opened = threading.Event()
    second = MetricsPage("127.0.0.1", first.port, lambda: "second 1\n", lambda page: opened.set(), pause=0.01)
    never = MetricsPage("127.0.0.1", first.port, lambda: "never 1\n")
    try:
        assert first.trouble is None and second.trouble is not None and not opened.wait(0.1)
        never.close()  # does not wait for its next try
        first.close()
        assert opened.wait(60) and second.trouble is None
        assert urllib.request.urlopen(f"http://127.0.0.1:{second.port}/metrics", timeout=10).read() == b"second 1\n"
    finally:
        second.close()


def test_a_close_does_not_wait_for_a_name_server(engine, monkeypatch):
    import socket

    from larder.sglang import metrics_page

    real, asked, go_on = socket.getaddrinfo, threading.Event(), threading.Event()
    calls, answers = [], []

    def silent(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 1:
            raise socket.gaierror("no such host")
        asked.set()
        answers.append(go_on.wait(30))
        return real(*arguments, **named)

    monkeypatch.setattr(metrics_page.socket, "getaddrinfo", silent)
    page = metrics_page.MetricsPage("127.0.0.1", 0, lambda: "x 1\n", pause=0.01)
    assert asked.wait(60)
    page.close()
    go_on.set()
    page._thread.join(60)
    assert answers == [True] and not page._thread.is_alive()  # it serves nothing


def test_a_page_whose_owner_fails_at_its_opening_is_closed_all_the_same(engine, monkeypatch):
    from larder.sglang.metrics_page import MetricsPage

    monkeypatch.setattr(threading, "excepthook", lambda what: None)
    told = threading.Event()

    def fail(page):
        told.set()
        raise RuntimeError("of the owner")

    first = MetricsPage("127.0.0.1", 0, lambda: "first 1\n")
    second = MetricsPage("127.0.0.1", first.port, lambda: "second 1\n", fail, pause=0.01)
    first.close()
    assert told.wait(60)
    second.close()


def test_the_metrics_have_the_troubles(make_storage):
    storage = make_storage()
    assert "larder_sglang_troubles_total{" not in storage.store_metrics()
    storage.batch_exists(["no key"])
    storage.batch_exists_v2(chain(1), [transfer("no pool")])
    lines = storage.store_metrics().splitlines()
    assert len(storage.troubles()) == 2
    for kind, count in storage.troubles().items():
        assert f'larder_sglang_troubles_total{{kind="{kind}"}} {count}' in lines
    assert lines[-1] == "larder_sglang_clear_owed 0"


def test_labels_of_metrics_are_quoted():
    from larder.sglang.metrics_page import plugin_metrics

    of = {"cd": ('/m "1"', "v2"), "ab": ("/m", "-")}
    lines = plugin_metrics({'pool "a\\b\n"': 2, "get: corrupt": 1}, True, of, "tp0").splitlines()
    assert [line for line in lines if line[0] != "#"] == [
        'larder_sglang_namespace_info{namespace="ab",model="/m",weight_version="-",rank="tp0"} 1',
        r'larder_sglang_namespace_info{namespace="cd",model="/m \"1\"",weight_version="v2",rank="tp0"} 1',
        'larder_sglang_troubles_total{kind="get: corrupt"} 1',
        r'larder_sglang_troubles_total{kind="pool \"a\\b\n\""} 2',
        "larder_sglang_clear_owed 1",
    ]
    assert [line.split()[:3] for line in lines if line[0] == "#"] == [
        ["#", word, f"larder_sglang_{name}"]
        for name in ("namespace_info", "troubles_total", "clear_owed")
        for word in ("HELP", "TYPE")
    ]


def test_a_namespace_is_named_in_the_log_and_on_the_page(make_storage, engine, caplog):
    with caplog.at_level(logging.INFO, "larder.sglang"):
        storage = make_storage()
        storage.batch_exists(chain(1))
        engine.serving.weight_version = "v2"
        storage.batch_exists(chain(1))
    said = [record.getMessage() for record in caplog.records if "namespace" in record.getMessage()]
    names = [space.namespace for space in storage._spaces._open.values()]
    assert len(set(names)) == 2 and all(len(name) == 64 for name in names)
    assert said == [
        f"larder: namespace {name}: model m, weight_version {version}, rank tp0_pp0_cp0_dp0"
        for name, version in zip(names, ("default", "v2"))
    ]
    rest = 'model="m",weight_version="v2",rank="tp0_pp0_cp0_dp0"} 1'
    assert f'larder_sglang_namespace_info{{namespace="{names[1]}",{rest}' in storage.store_metrics().splitlines()


def test_metrics_as_json(make_storage):
    """As other servers of Larder have it: metrics_json.h."""
    from larder.sglang.metrics_json import metrics_json

    text = (
        '# HELP a_total A \\\\ and\\nB\n# TYPE a_total counter\na_total{k="x \\"} \\n y",l=""} 7\na_total NaN\n'
        "# HELP s Seconds\n# TYPE s histogram\n"
        's_bucket{op="get",le="0.5"} 1\ns_bucket{op="get",le="+Inf"} 3\ns_sum{op="get"} 7.5\ns_count{op="get"} 3\n'
        's_bucket{op="put",le="+Inf"} 0\ns_sum{op="put"} 0\ns_count{op="put"} 0\nbare_count 2\n'
    )
    put = {"labels": {"op": "put"}, "count": 0, "sum": 0, "buckets": [[None, 0]]}
    get = {"labels": {"op": "get"}, "count": 3, "sum": 7.5, "buckets": [[0.5, 1], [None, 3]]}
    assert json.loads(metrics_json(text)) == {
        "a_total": {"type": "counter", "help": "A \\ and\nB", "series": [
            {"labels": {"k": 'x "} \n y', "l": ""}, "value": 7}, {"labels": {}, "value": None}]},
        "s": {"type": "histogram", "help": "Seconds", "series": [get, put]},
        "bare_count": {"type": "untyped", "help": "", "series": [{"labels": {}, "value": 2}]},
    }  # fmt: skip
    if not make_storage.is_fake:
        storage = make_storage()
        storage.batch_exists(chain(1))
        calls = json.loads(metrics_json(storage.store_metrics()))["larder_door_calls_total"]
        assert calls["type"] == "counter" and {"labels": {"call": "exists"}, "value": 1} in calls["series"]


def test_the_page_answers_in_the_format_that_is_asked_for():
    import http.client

    from larder.sglang.metrics_page import MetricsPage

    page = MetricsPage("127.0.0.1", 0, lambda: "x 1\n")
    try:
        client = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
        answers = []
        for query in ("", "?format=text", "?format=json", "?format=yaml"):
            client.request("GET", "/metrics" + query)
            reply = client.getresponse()
            answers.append((reply.status, reply.getheader("Content-Type").partition(";")[0], reply.read()))
        assert answers[0] == answers[1] == (200, "text/plain", b"x 1\n")
        assert answers[2][:2] == (200, "application/json") and json.loads(answers[2][2])["x"]["series"][0]["value"] == 1
        assert answers[3][0] == 400 and "must be text or json" in json.loads(answers[3][2])["error"]["message"]
    finally:
        page.close()


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_metrics_are_served_on_addresses_of_both_kinds(engine, host):
    import socket
    import urllib.request

    from larder.sglang.metrics_page import MetricsPage

    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no address {host}")
    page = MetricsPage(host, 0, lambda: "x 1\n")
    try:
        where = f"[{host}]" if ":" in host else host
        assert urllib.request.urlopen(f"http://{where}:{page.port}/metrics", timeout=10).read() == b"x 1\n"
    finally:
        page.close()


def test_a_client_of_the_metrics_page_that_goes_away_is_not_in_the_log(capfd):
    import http.client
    import socket
    import struct

    from larder.sglang.metrics_page import MetricsPage

    def break_off():
        """Sends a reset; the answer is larger than what the system takes without a reader."""
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        is_gone.set()
        return "x" * (1 << 24)

    is_gone = threading.Event()
    texts = [break_off, lambda: "x 1\n"]
    page = MetricsPage("127.0.0.1", 0, lambda: texts.pop(0)())
    try:
        client = socket.create_connection(("127.0.0.1", page.port))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert is_gone.wait(10)
        other = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
        other.request("GET", "/metrics")
        assert other.getresponse().read() == b"x 1\n"
    finally:
        page.close()
    assert capfd.readouterr().err == ""
