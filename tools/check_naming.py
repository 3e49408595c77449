#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files, folders and functions are snake_case; types PascalCase; macros LARDER_...; fields of classes end in _."""

import re

import source_tree

SNAKE = re.compile(r"^_*[a-z][a-z0-9_]*$")
PASCAL = re.compile(r"^[A-Z][A-Za-z0-9]*$")
MACRO = re.compile(r"^(LARDER|TOML|DOCTEST)_[A-Z0-9_]+$")
TYPE_KINDS = ("class", "struct", "enum", "union")
# Spellings that the language or a library asks for.
LANGUAGE_NAMES = re.compile(r"^(operator|~|__anon|main$)")
C_TYPES = re.compile(r"^larder_[a-z]+$")  # what include/larder/larder.h names, where it is defined
STANDARD_TYPES = {"hash", "formatter", "numeric_limits", "rep", "type", "result_type", "value_type", "adl_serializer"}
LIBRARY_NAMES = re.compile(r"^(SetUp|TearDown|SetUpTestSuite|TearDownTestSuite|TestBody|TEST|TEST_F|TEST_P|TYPED_TEST|"
                          r"INSTANTIATE_TEST_SUITE_P|BENCHMARK|PrintTo|Logv|LLVMFuzzer\w+|"
                          r"On(Null|Alias|Scalar|(Document|Sequence|Map)(Start|End)))$")


def file_problems(path):
    parts = list(path.parts[:-1]) + [path.name.split(".")[0]]
    return [(path, 1, f"'{part}' is not snake_case") for part in parts
            if part and not SNAKE.match(part.lstrip("."))]


def tag_problem(tag):
    name, kind = tag["name"], tag["kind"]
    if LANGUAGE_NAMES.match(name) or LIBRARY_NAMES.match(name):
        return None
    if kind in TYPE_KINDS and re.search(r"door/(larder_\w*c\.cc|c_call\.h)$", str(tag["path"])) and C_TYPES.match(name):
        return None
    if kind in TYPE_KINDS and not PASCAL.match(name) and name not in STANDARD_TYPES:
        return f"type '{name}' is not PascalCase"
    if kind == "macro" and not MACRO.match(name):
        return f"macro '{name}' does not begin with LARDER_"
    if kind in ("function", "prototype") and not SNAKE.match(name):
        scope = tag.get("scope", "").split("::")[-1].split("<")[0]
        if name != scope:  # a constructor has its class's name
            return f"function '{name}' is not snake_case"
    return None


def main():
    problems = []
    paths = source_tree.files(source_tree.CPP_SUFFIXES)
    for path in paths + [p for p in source_tree.scripts() if p.suffix]:
        problems += file_problems(path)
    for tag in source_tree.tags(paths):
        problem = tag_problem(tag)
        if problem:
            problems.append((tag["path"], tag["line"], problem))
    source_tree.report("naming", problems)


main()
