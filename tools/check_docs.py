#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages can be followed where they are read.

A block that configures a preset does so with what it has installed: the tests need packages that ./quickstart.sh does
not install, so it says -DLARDER_BUILD_TESTS=OFF, or this block or an earlier one of the page calls
tools/install_deps.sh for a whole build. A relative link leads to a file; on a page that is installed, to one that is
installed, too (cmake/larder_package.cmake).
"""

import pathlib
import re

import source_tree

# What component "tools" puts into share/doc/larder.
INSTALLED = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "examples")
OTHER_PAGES = ("python/README.md",)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PRESET = re.compile(r"\bcmake --preset \w")
WHOLE_BUILD = re.compile(r"\binstall_deps\.sh(?! *--(?:build|llama|package|list)\b)")


def is_installed(path):
    return any(path == pathlib.Path(name) or pathlib.Path(name) in path.parents for name in INSTALLED)


def pages():
    found = [pathlib.Path(name) for name in INSTALLED if name.endswith(".md")]
    found += source_tree.files((".md",), ("docs", "examples"))
    return found + [pathlib.Path(name) for name in OTHER_PAGES]


def commands(text):
    """(line, command) of fenced and of indented blocks; lines that end in a backslash are one."""
    is_fenced, begin, joined = False, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            begin = begin or number
            joined += line.removesuffix("\\")
            if not line.endswith("\\"):
                yield begin, joined
                begin, joined = 0, ""


def check_presets(page, text):
    has_packages = False
    for number, command in commands(text):
        has_packages = has_packages or WHOLE_BUILD.search(command.split("#")[0]) is not None
        if PRESET.search(command) and "-DLARDER_BUILD_TESTS=OFF" not in command and not has_packages:
            yield page, number, ("the tests are configured, too: -DLARDER_BUILD_TESTS=OFF, or tools/install_deps.sh "
                                 "without --build before it")


def check_links(page, text):
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:|#", target):
                continue
            there = (source_tree.ROOT / page.parent / target.split("#")[0]).resolve()
            path = there.relative_to(source_tree.ROOT.resolve())
            if not there.exists():
                yield page, number, f"{target} is not there"
            elif is_installed(page) and not is_installed(path):
                yield page, number, f"{target} is not installed with this page: name it without a link"


def main():
    problems = []
    for page in pages():
        text = source_tree.text_of(page)
        problems += check_presets(page, text)
        problems += check_links(page, text)
    source_tree.report("docs", problems)


main()
