# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang's benchmark clients as `python -m` does, but in this process: their imports alone take ten seconds."""

import importlib.util
import json
import runpy
import sys
import types

PYTHON_CLIENT = "sglang.bench_serving"
RUST_CLIENT = "sglang.benchmark.rust_client"


def stand_in_for_datasets():
    """The Python client imports the package `datasets` for its tables of pictures; nobody here asks for one."""
    if importlib.util.find_spec("datasets") is not None:
        return
    stand_in = types.ModuleType("datasets")

    def load_dataset(*_, **__):
        raise NotImplementedError("the package `datasets` is not installed: this is a stand-in")

    stand_in.load_dataset = load_dataset
    stand_in.__spec__ = importlib.util.spec_from_loader("datasets", None)
    sys.modules["datasets"] = stand_in


def run(module, url, folder, *options, monkeypatch):
    """Runs a client with these options and returns what it wrote to its output file, decoded.

    A client that ends with another status than 0, or writes no result, fails the test.
    """
    stand_in_for_datasets()
    output = folder / "result.jsonl"
    output.unlink(missing_ok=True)
    arguments = ["--base-url", url, "--disable-tqdm", "--output-details", "--output-file", output, *options]
    monkeypatch.setattr(sys, "argv", [module, *map(str, arguments)])
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, f"{module} ended with {ended.code}"
    lines = output.read_text().splitlines()
    assert len(lines) == 1, lines
    return json.loads(lines[0])


def check_figures(result, requests, output_tokens):
    """Every request succeeded, gave as many tokens as were asked for, and all times are there and make sense."""
    assert result["completed"] == requests
    assert result["errors"] == [""] * requests
    assert result["output_lens"] == [output_tokens] * requests
    assert result["total_output_tokens"] == requests * output_tokens
    assert all(result["generated_texts"])
    assert len(result["ttfts"]) == requests
    for kind in ("ttft", "e2e_latency"):
        mean, median, p99 = (result[f"{which}_{kind}_ms"] for which in ("mean", "median", "p99"))
        assert 0 < mean <= p99 and 0 < median <= p99, kind
    assert result["mean_ttft_ms"] < result["mean_e2e_latency_ms"] < result["duration"] * 1e3
    assert min(result["ttfts"]) > 0
    assert result["request_throughput"] > 0 and result["output_throughput"] > 0
