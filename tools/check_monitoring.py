#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules and dashboard for those who watch servers of Larder (docs/monitoring.md): do they fit the metrics?

  tools/check_monitoring.py              names, links, descriptions, and that each alert has a test; seconds, no network
  tools/check_monitoring.py --promtool   in addition all PromQL, the rules and their tests, with promtool
  tools/check_monitoring.py --larder build/release/larder   in addition what two servers answer to GET /metrics
  tools/check_monitoring.py --metrics FILE...               in addition files with such answers

promtool comes from PATH, or from Debian's package `prometheus`, which is unpacked in build/promtool and not installed
(19 MB, once). Where neither can be had, the status is 77.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

import source_tree

RULES = "packaging/prometheus/larder_rules.yml"
DASHBOARD = "packaging/grafana/larder.json"
TESTS = ("tests/monitoring/rules_test.yml", "tests/monitoring/hit_rate_test.yml")
PAGE = "docs/monitoring.md"
PLUGIN = "python/larder/sglang/metrics_page.py"
SKIPPED = 77
OF_NO_ALERT = {"larder_storage_bytes_total", "larder_storage_service_seconds_bucket", "larder_tier_used_bytes",
               "larder_tier_capacity_bytes", "larder_serve_reused_tokens_total", "larder_serve_prompt_tokens_total"}
FOREIGN = {"up", "probe_success", "ALERTS"}  # of Prometheus and its blackbox exporter
METRIC = re.compile(r"(?<![\w:/-])(?:larder_|sglang:|instance(?:_\w+)?:larder_)[a-z0-9_:]+")
# Names of SGLang and of llama-server keep their colon, which promtool keeps for recording rules.
COLON = re.compile(r"^(sglang|llamacpp):\w+ metric names should not contain ':'$|^llamacpp:")


def registered_names():
    """Names of the metrics in src, literals or put together from literals of the same file, and of SGLang's plug-in."""
    names, sources = set(), {}
    for path in source_tree.files((".cc",), ("src",)):
        if not path.name.endswith("_test.cc"):
            sources[path] = source_tree.text_of(path)
    names.update(re.findall(r"# TYPE (larder_\w+)", source_tree.text_of(PLUGIN)))
    prefixes = {p for text in sources.values() for p in re.findall(r'export_tiers\([^"]*"(larder_\w+)"', text)}
    for text in sources.values():
        names.update(re.findall(r'"((?:larder_|sglang:)[a-z0-9_]+)"', text))
        words = re.findall(r'"([a-z][a-z0-9_]*)"', text)
        for pattern in re.findall(r'format\("(larder_[a-z0-9_]*)\{\}', text):
            names.update(pattern + word for word in words)
        if 'format("{}_{}", prefix' in text:
            names.update(f"{prefix}_{word}" for prefix in prefixes for word in words)
    return names


def unknown_names(path, text, known):
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        for name in METRIC.findall(line):
            plain = re.sub(r"_(bucket|sum|count)$", "", name)
            if name not in known and plain not in known:
                problems.append((path, number, f"{name} is no metric of src and no rule of {RULES}"))
    return problems


def check_kinds(path, text):
    """rate() and increase() are for counters."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"\b(?:rate|increase)\(([\w:]+)", line):
            if not name.endswith(("_total", "_bucket", "_sum", "_count")):
                problems.append((path, number, f"{name} is no counter"))
    return problems


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", source_tree.text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_alerts(text):
    problems = []
    tests = "".join(source_tree.text_of(path) for path in TESTS)
    for block in re.split(r"(?=^      - (?:alert|record): )", text, flags=re.MULTILINE)[1:]:
        name = block.split(":", 1)[1].split()[0]
        number = text[:text.index(f" {name}\n")].count("\n") + 1
        if not block.startswith("      - alert"):
            continue
        for wanted in ("severity: ", "summary: ", "description: ", "runbook: "):
            if wanted not in block:
                problems.append((RULES, number, f"{name} has no {wanted.strip(': ')}"))
        if f'alertname="{name}"' not in tests:
            problems.append((RULES, number, f"{name} fires in no test of tests/monitoring"))
        page, _, anchor = (re.findall(r"runbook: (\S+)", block) or ["#"])[0].partition("#")
        if not (source_tree.ROOT / page).is_file() or anchor not in anchors(page):
            problems.append((RULES, number, f"{name}: there is no {page}#{anchor}"))
    return problems


def panels_of(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def check_dashboard(board):
    problems = []
    ids = [panel["id"] for panel in board["panels"]]
    if len(ids) != len(set(ids)):
        problems.append((DASHBOARD, 1, "two panels have one id"))
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for panel in panels_of(board):
        title = panel["title"]
        if len(panel.get("description", "")) < 30:
            problems.append((DASHBOARD, 1, f"panel '{title}' has no description"))
        for part in [panel, *panel["targets"]]:
            if part["datasource"]["uid"] != "${datasource}":
                problems.append((DASHBOARD, 1, f"panel '{title}' names a data source of its own"))
        for name in re.findall(r"\$(?!__)(\w+)", " ".join(target["expr"] for target in panel["targets"])):
            if name not in variables:
                problems.append((DASHBOARD, 1, f"panel '{title}': there is no variable ${name}"))
    return problems


def check_tree():
    """What needs no promtool. Gives the problems."""
    rules, dashboard = source_tree.text_of(RULES), source_tree.text_of(DASHBOARD)
    known = registered_names() | set(re.findall(r"- record: (\S+)", rules)) | FOREIGN
    problems = check_alerts(rules) + check_dashboard(json.loads(dashboard))
    problems += check_kinds(RULES, rules) + check_kinds(DASHBOARD, dashboard)
    for path in (RULES, DASHBOARD, *TESTS):
        problems += unknown_names(path, source_tree.text_of(path), known)
    healthy = source_tree.text_of(TESTS[0]).split("- name: each trouble")[0]
    for name in sorted(set(METRIC.findall(rules)) - set(re.findall(r"- record: (\S+)", rules))):
        if name not in healthy and name not in OF_NO_ALERT:
            problems.append((TESTS[0], 1, f"{name} is no series of the healthy servers, and {RULES} uses it"))
    page = source_tree.text_of(PAGE).replace("larder_rules.yml", "")
    return problems + [p for p in unknown_names(PAGE, page, known) if not p[2].split()[0].endswith("_")]


def find_promtool():
    """Path of promtool, or None."""
    if shutil.which("promtool"):
        return "promtool"
    folder = source_tree.ROOT / "build/promtool"
    tool = folder / "promtool"
    if not tool.is_file() and shutil.which("apt-get") and shutil.which("dpkg"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            quiet = {"cwd": unpacked, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
            subprocess.run(["apt-get", "download", "-q", "prometheus"], **quiet)
            for package in pathlib.Path(unpacked).glob("prometheus_*.deb"):
                if subprocess.run(["dpkg", "-x", package.name, "."], **quiet).returncode == 0:
                    os.replace(pathlib.Path(unpacked) / "usr/bin/promtool", tool)
    return str(tool) if tool.is_file() else None


def run_promtool(promtool, *arguments, text=None):
    result = subprocess.run([promtool, *arguments], cwd=source_tree.ROOT, input=text, text=True, capture_output=True,
                            check=False)
    return result.returncode, result.stdout + result.stderr


def dashboard_rules():
    """A file of rules with a recording rule for each query of the dashboard, its variables replaced."""
    lines, number = ["groups:", "  - name: dashboard", "    rules:"], 0
    for panel in panels_of(json.loads(source_tree.text_of(DASHBOARD))):
        for target in panel["targets"]:
            number += 1
            query = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "6h")
            query = re.sub(r"\$\{?\w+\}?", ".*", query)
            lines += [f"      - record: dashboard:panel_{panel['id']}_{number}", f"        expr: {json.dumps(query)}"]
    return "\n".join(lines) + "\n", number


def check_with_promtool(promtool):
    problems = []
    rules, count = dashboard_rules()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "dashboard.yml"
        path.write_text(rules, encoding="utf-8")
        code, said = run_promtool(promtool, "check", "rules", str(path))
    if code != 0:
        problems.append((DASHBOARD, 1, said))
    for command, files in (("check", (RULES,)), ("test", TESTS)):
        code, said = run_promtool(promtool, command, "rules", *files)
        if code != 0:
            problems.append((files[0], 1, said))
    print(f"promtool: {count} queries of {DASHBOARD}, {RULES}, its tests: {len(problems)} problem(s)")
    return problems


def check_metrics(promtool, name, text):
    """What promtool says of an answer to GET /metrics, and names in it that registered_names() does not find."""
    _, said = run_promtool(promtool, "check", "metrics", text=text)
    problems = [(name, 1, line) for line in said.splitlines() if line and not COLON.match(line)]
    missing = set(re.findall(r"^# TYPE ((?:larder_|sglang:)\S+)", text, re.MULTILINE)) - registered_names()
    problems += [(name, 1, f"{metric}: not seen in src by this check") for metric in missing]
    print(f"promtool: {name}: {text.count('# TYPE ')} metrics, {len(problems)} problem(s)")
    return problems


def answers_of(larder, *arguments, body=None):
    """Starts a server, sends it one completion if there is a body, and gives what it answers to GET /metrics."""
    process = subprocess.Popen([larder, *arguments, "--host", "127.0.0.1", "--port", "0"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        url = re.search(r"http://[\d.]+:\d+", process.stdout.readline()).group(0)
        if body:
            urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", json.dumps(body).encode()),
                                   timeout=30).read()
        return urllib.request.urlopen(url + "/metrics", timeout=30).read().decode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def check_servers(promtool, larder):
    with tempfile.TemporaryDirectory() as folder:
        store = json.dumps({"directory": os.path.join(folder, "store"), "max_size": "256Mi"})
        text = answers_of(larder, "serve", "--hicache-storage-backend", "file",
                          "--hicache-storage-backend-extra-config", store,
                          body={"prompt": "A page of text, and more. " * 12, "max_tokens": 2})
    return check_metrics(promtool, "larder serve", text) + check_metrics(
        promtool, "larder metadata-server", answers_of(larder, "metadata-server"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--promtool", action="store_true", help="also what promtool says")
    parser.add_argument("--larder", metavar="PATH", help="the command, to start two servers")
    parser.add_argument("--metrics", metavar="FILE", nargs="+", default=[], help="answers to GET /metrics")
    options = parser.parse_args()
    problems = check_tree()
    if options.promtool or options.larder or options.metrics:
        promtool = find_promtool()
        if promtool is None and not problems:
            print("LEFT OUT: there is no promtool in PATH, and Debian's package prometheus could not be downloaded")
            sys.exit(SKIPPED)
        if promtool:
            problems += check_with_promtool(promtool)
            for path in options.metrics:
                problems += check_metrics(promtool, path, pathlib.Path(path).read_text(encoding="utf-8"))
            if options.larder:
                problems += check_servers(promtool, options.larder)
    source_tree.report("monitoring", problems)


main()
