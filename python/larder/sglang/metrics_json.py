# SPDX-License-Identifier: Apache-2.0
"""Prometheus text as the JSON that servers of Larder answer to /metrics?format=json, for programs as `larder stat`.

    {"larder_door_calls_total": {"type": "counter", "help": "...", "series": [{"labels": {"call": "get"}, "value": 7}]},
     "larder_storage_wait_seconds": {"type": "histogram", "help": "...",
         "series": [{"labels": {}, "count": 3, "sum": 7.6, "buckets": [[0.1, 1], [1.0, 2], [null, 3]]}]}}

Buckets are [bound, observations <= bound]; null: infinity. A value that is no finite number is null.
"""

import json
import math
import re
from typing import Any, Optional, Union

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def metrics_json(text: str) -> str:
    """text: as a registry of Larder writes it: each family's HELP and TYPE before its samples."""
    families: dict[str, dict[str, Any]] = {}
    for line in text.split("\n"):
        if line.startswith("# HELP ") or line.startswith("# TYPE "):
            _, word, name, rest = (line.split(" ", 3) + [""])[:4]
            _family(families, name)["help" if word == "HELP" else "type"] = _plain(rest) if word == "HELP" else rest
        elif sample := _SAMPLE.fullmatch(line):
            _add(families, sample.group(1), dict(_labels(sample.group(2) or "")), sample.group(3))
    return json.dumps(families, ensure_ascii=False)


def _family(families: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return families.setdefault(name, {"type": "untyped", "help": "", "series": []})


def _add(families: dict[str, dict[str, Any]], name: str, labels: dict[str, str], value: str) -> None:
    base, _, part = name.rpartition("_")
    if part not in ("bucket", "sum", "count") or families.get(base, {}).get("type") != "histogram":
        _family(families, name)["series"].append({"labels": labels, "value": _number(value)})
        return
    bound = labels.pop("le", "+Inf")
    series = families[base]["series"]
    if not series or series[-1]["labels"] != labels:  # one after the other
        series.append({"labels": labels, "count": 0, "sum": 0, "buckets": []})
    if part == "bucket":
        series[-1]["buckets"].append([_number(bound), _number(value)])
    else:
        series[-1][part] = _number(value)


def _labels(text: str) -> list[tuple[str, str]]:
    return [(name, _plain(value)) for name, value in _LABEL.findall(text)]


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match.group(1) == "n" else match.group(1), text)


def _number(text: str) -> Optional[Union[int, float]]:
    if text.isdecimal():
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
