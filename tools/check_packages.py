#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/install.md lists the packages that tools/install_deps.sh installs: the same ones, by the same groups."""

import re
import subprocess

import source_tree

PAGE = "docs/install.md"
GROUPS = ("build", "index", "events", "plot", "test", "llama", "package", "full", "fuzz", "tidy")


def documented():
    """{group: {(line, the alternatives of a package)}} from rows such as  | build | `a` or `b` | why |."""
    found = {}
    for number, line in enumerate(source_tree.text_of(PAGE).splitlines(), 1):
        match = re.match(r"^\| (" + "|".join(GROUPS) + r") \| (`[^|]*`) \|", line)
        if match:
            for cell in match.group(2).split(", "):
                found.setdefault(match.group(1), []).append((number, "|".join(re.findall(r"`([^`]+)`", cell))))
    return found


def main():
    problems = []
    rows = documented()
    for group in GROUPS:
        listed = subprocess.run([source_tree.ROOT / "tools/install_deps.sh", "--list", group], text=True,
                                capture_output=True, check=True).stdout.split()
        for package in listed:
            if package not in [name for _, name in rows.get(group, ())]:
                problems.append((PAGE, 1, f"{package} of group {group} (tools/install_deps.sh) has no row"))
        for number, name in rows.get(group, ()):
            if name not in listed:
                problems.append((PAGE, number, f"{name} is not in group {group} of tools/install_deps.sh"))
    source_tree.report("packages", problems)


main()
