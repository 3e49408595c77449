#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Functions have at most 70 lines, files at most 600, lines at most 120 columns: C++, shell and python.

A class of src declares at most 40 methods, what it overrides and forwards included: a class with more is several rooms
(docs/ARCHITECTURE.md).
"""

import source_tree

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
MAX_COLUMNS = 120
FUNCTION_KINDS = ("function", "method", "member")
MAX_METHODS = 40
FEW_METHODS_FOLDER = "src/"


def method_problems(tags):
    problems = []
    declared = {}  # (path, class with its scope): methods declared between its braces
    classes = [tag for tag in tags if tag["kind"] in ("class", "struct") and "end" in tag]
    for tag in tags:
        if tag["kind"] in ("function", "prototype"):
            declared.setdefault((tag["path"], tag.get("scope", "")), []).append(tag["line"])
    for tag in classes:
        if not tag["path"].startswith(FEW_METHODS_FOLDER):
            continue
        name = "::".join(filter(None, (tag.get("scope"), tag["name"])))
        count = sum(tag["line"] <= line <= tag["end"] for line in declared.get((tag["path"], name), ()))
        if count > MAX_METHODS:
            problems.append((tag["path"], tag["line"], f"{tag['name']} has {count} methods, at most {MAX_METHODS}"))
    return problems


def main():
    problems = []
    paths = source_tree.files(source_tree.CPP_SUFFIXES) + source_tree.scripts()
    for path in paths:
        lines = source_tree.text_of(path).splitlines()
        if len(lines) > MAX_FILE_LINES:
            problems.append((path, len(lines), f"the file has {len(lines)} lines, at most {MAX_FILE_LINES}"))
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                problems.append((path, number, f"{len(line)} columns, at most {MAX_COLUMNS}"))
    tags = source_tree.tags(paths)
    problems += method_problems(tags)
    for tag in tags:
        if tag["kind"] not in FUNCTION_KINDS or "end" not in tag:
            continue
        length = tag["end"] - tag["line"] + 1
        if length > MAX_FUNCTION_LINES:
            text = f"{tag['name']} has {length} lines, at most {MAX_FUNCTION_LINES}"
            problems.append((tag["path"], tag["line"], text))
    source_tree.report("lengths", problems)


main()
