#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each deliberate defect of src/base/defect.h has one row in the table of docs/test_results.md, with its words and its
field, and each row is of a defect: the table says what sees it (tools/defects.py prints the rows)."""

import re

import source_tree

HEADER = "src/base/defect.h"
PAGE = "docs/test_results.md"


def main():
    listed = {name: (words, field) for name, words, field in
              re.findall(r'X\(k(\w+), "([^"]*)",[\s\\]*"([^"]*)"\)', source_tree.text_of(HEADER))}
    problems, seen = [], {}
    in_table = False
    for number, line in enumerate(source_tree.text_of(PAGE).splitlines(), 1):
        if line.startswith("| defect | what it is |"):
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|---"):
            name, words, field, caught = ([cell.strip() for cell in line.split("|")][1:5] + [""] * 4)[:4]
            if name not in listed:
                problems.append((PAGE, number, f"base/defect.h has no {name}"))
            elif name in seen:
                problems.append((PAGE, number, f"{name} has a row already, line {seen[name]}"))
            elif (words, field) != listed[name]:
                problems.append((PAGE, number, f"{name}: base/defect.h has other words for it"))
            elif not caught or "nothing" in caught:
                problems.append((PAGE, number, f"{name} is seen by nothing"))
            seen.setdefault(name, number)
    problems += [(PAGE, 1, f"the table of defects has no row for {name}") for name in listed if name not in seen]
    source_tree.report("defects", problems)


main()
