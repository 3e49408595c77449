#!/usr/bin/env python3
"""Functions have at most 70 lines, files at most 600, lines at most 120 columns: C++, shell and python."""

import source_tree

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
MAX_COLUMNS = 120
FUNCTION_KINDS = ("function", "method", "member")


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
    for tag in source_tree.tags(paths):
        if tag["kind"] not in FUNCTION_KINDS or "end" not in tag:
            continue
        length = tag["end"] - tag["line"] + 1
        if length > MAX_FUNCTION_LINES:
            text = f"{tag['name']} has {length} lines, at most {MAX_FUNCTION_LINES}"
            problems.append((tag["path"], tag["line"], text))
    source_tree.report("lengths", problems)


main()
