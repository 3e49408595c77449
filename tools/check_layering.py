#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Includes point left, data moves right. No exceptions list.

A file of src/X includes its own folder, base/ and folders left of X. src/ includes nothing of sim/, tests/, bench/,
fakes/ and examples/ (src/cli may include bench/ and sim/). A fake library includes itself, base/ and the headers
*_abi.h that say what it stands in for. src/controller names no storage backend. The core's headers stay free of JSON,
HTTP and logging libraries. A test beside the code may use sim/, and otherwise obeys the rule of its folder. Every
header that any file includes is there, also where no ordinary build compiles that file (fuzz/, CUDA).
"""

import re

import source_tree

ORDER = ("base", "key", "model", "pool", "policy", "tree", "transfer", "storage", "metadata", "controller", "config",
         "door", "events", "engine", "server", "cli")
BESIDE = ("sim", "fakes", "tests", "bench", "examples", "fuzz", "python", "tools")
CORE = ORDER[:ORDER.index("controller") + 1]
BANNED_IN_CORE_HEADERS = re.compile(r"^(nlohmann|boost|spdlog|httplib|toml|yaml-cpp|simdjson|CLI|fmt)\b")
BACKEND = re.compile(r"storage/(memory|file|hf3fs|plugin|mooncake|nixl|object|redis|s3)\b")
GENERATED = ("fuzz_targets.inc",)
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def include_problem(path, target):
    """Why a file of src/ may not include `target`; None if it may."""
    folder, first = path.parts[1], target.split("/")[0]
    is_test = path.name.endswith("_test.cc")
    if first in BESIDE:
        allowed = (is_test and first in ("sim", "tests")) or (folder == "cli" and first in ("bench", "sim"))
        return None if allowed else f"src/{folder} must not include {first}/"
    if first in ORDER and ORDER.index(first) > ORDER.index(folder):
        return f"{folder}/ must not include {first}/, which is to its right ({target})"
    if "/" not in target or first not in ORDER:
        return f'"{target}": write project includes from src/ ("{folder}/...")'
    return None


def file_problems(path):
    folder = path.parts[1]
    if folder not in ORDER:
        return [(path, 1, f"folder src/{folder} is not in the order {' '.join(ORDER)}")]
    problems = []
    for number, line in enumerate(source_tree.text_of(path).splitlines(), 1):
        if folder == "controller" and BACKEND.search(line):
            problems.append((path, number, "controller/ must not name a storage backend"))
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        if quote == '"':
            problem = include_problem(path, target)
            if problem:
                problems.append((path, number, problem))
        elif path.suffix == ".h" and folder in CORE and BANNED_IN_CORE_HEADERS.match(target):
            problems.append((path, number, f"a core header must not include <{target}>"))
    return problems


def fake_problems(path):
    problems = []
    for number, line in enumerate(source_tree.text_of(path).splitlines(), 1):
        match = INCLUDE.match(line)
        if not match or match.group(1) != '"':
            continue
        target = match.group(2)
        if not target.startswith(("/".join(path.parts[:2]) + "/", "base/")) and not target.endswith("_abi.h"):
            problems.append((path, number, f"a fake must not include {target}"))
    return problems


def missing_headers(path):
    """Includes in quotes of no file: beside it, at the top, in src/, include/, or that of a storage plugin."""
    problems = []
    for number, line in enumerate(source_tree.text_of(path).splitlines(), 1):
        match = INCLUDE.match(line)
        if not match or match.group(1) != '"' or match.group(2) in GENERATED:
            continue
        places = (path.parent, "", "src", "include", "src/storage/plugin")
        if not any((source_tree.ROOT / place / match.group(2)).is_file() for place in places):
            problems.append((path, number, f"there is no {match.group(2)}"))
    return problems


def main():
    problems = []
    for path in source_tree.files(source_tree.CPP_SUFFIXES + (".c",)):
        problems += missing_headers(path)
    for path in source_tree.files(source_tree.CPP_SUFFIXES, ("fakes",)):
        problems += fake_problems(path)
    for path in source_tree.files(source_tree.CPP_SUFFIXES, ("src",)):
        problems += file_problems(path)
    source_tree.report("layering", problems)


main()
