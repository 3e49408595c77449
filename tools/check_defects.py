#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each deliberate defect of src/base/defect.h has one row in the table of docs/test_results.md, with its words: the
table says what sees it (tools/defects.py prints the rows). And it has one row in docs/why.md, which says what is known
of it in the field, and how many there are. Each row is of a defect."""

import re

import source_tree

HEADER = "src/base/defect.h"
RESULTS, WHY = "docs/test_results.md", "docs/why.md"


def rows(page, head):
    """[(line, cells)] of the tables of `page` whose first line begins with `head`."""
    found, in_table = [], False
    for number, line in enumerate(source_tree.text_of(page).splitlines(), 1):
        if line.startswith(head):
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|---"):
            found.append((number, [cell.strip() for cell in line.split("|")][1:-1]))
    return found


def check_names(page, table, listed):
    problems, seen = [], {}
    for number, cells in table:
        if cells[0] not in listed:
            problems.append((page, number, f"base/defect.h has no {cells[0]}"))
        elif cells[0] in seen:
            problems.append((page, number, f"{cells[0]} has a row already, line {seen[cells[0]]}"))
        seen.setdefault(cells[0], number)
    return problems + [(page, 1, f"no table has a row for {name}") for name in listed if name not in seen]


def main():
    listed = dict(re.findall(r'X\(k(\w+), "([^"]*)"', source_tree.text_of(HEADER)))
    results, why = rows(RESULTS, "| defect | what it is |"), rows(WHY, "| defect | in the field |")
    problems = check_names(RESULTS, results, listed) + check_names(WHY, why, listed)
    for number, cells in results:
        name, words, caught = (cells + [""] * 3)[:3]
        if name in listed and words != listed[name]:
            problems.append((RESULTS, number, f"{name}: base/defect.h has other words for it"))
        elif not caught or "nothing" in caught:
            problems.append((RESULTS, number, f"{name} is seen by nothing"))
    for page, before, behind in ((WHY, "Each of the", "is one line"), (RESULTS, "all", "are seen")):
        said = re.search(rf"{before} (\d+) {behind}", source_tree.text_of(page))
        if said is None or int(said.group(1)) != len(listed):
            problems.append((page, 1, f"base/defect.h has {len(listed)} defects; the page says another number"))
    source_tree.report("defects", problems)


main()
