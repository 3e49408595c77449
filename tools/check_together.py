#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of a library are compiled together (LARDER_UNITY), so what two of them have in unnamed namespaces must not
share a name: of equal functions the compiler complains, of overloads it takes the one that fits better without a word.

Prints each such name with its places. Files of larder_compile_alone (CMakeLists.txt) are left out.
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = [*sorted((ROOT / "src").iterdir()), ROOT / "bench", ROOT / "sim", ROOT / "sim" / "world"]
TESTS = sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir())
# A function, constant or type that begins in the first column. (Aliases that differ are errors.)
FUNCTION = re.compile(r"^(?:template <.*> )?[A-Za-z_][\w:<>,&*\s\[\]]*?[\s&*](\w+)\((?!\*)")
NAMED = re.compile(
    r"^(?:constexpr|const|class|struct|enum|static)\b[^=({;]*?\b(\w+)(?:\[\w*\])?\s*(?:final\s*)?(?::[^:]|[={;]|$)"
)
NOT_NAMES = {"if", "for", "while", "switch", "return", "namespace", "static_assert", "defined", "TEST", "TEST_P"}


def alone() -> set[pathlib.Path]:
    text = (ROOT / "CMakeLists.txt").read_text()
    listed = re.search(r"larder_compile_alone\(([^)]*)\)", text)
    return {ROOT / name for name in listed.group(1).split()} if listed else set()


def unnamed(path: pathlib.Path):
    """Yields (line number, name) of what the file has in unnamed namespaces."""
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line == "namespace {":
            inside = True
        elif line == "}  // namespace":
            inside = False
        elif inside and line[:1] not in " #/}":
            found = FUNCTION.match(line) or NAMED.match(line)
            names = {found.group(1)} if found else set()
            if line.startswith("constexpr") and "(" not in line.split("=")[0]:
                names.update(re.findall(r"\b(k[A-Z]\w*)(?:\[\w*\])? =", line))
            yield from ((number, name) for name in sorted(names - NOT_NAMES))


def targets():
    """Yields the source files of each target."""
    for folder in LIBRARIES:
        found = set(folder.glob("*.cc") if folder.name in ("sim", "bench", "world") else folder.rglob("*.cc"))
        tests = {path for path in found if path.name.endswith("_test.cc")}
        yield {path for path in found - tests if "libllama" not in path.parts}
        yield tests
    for folder in TESTS:
        yield set(folder.rglob("*.cc"))


def main() -> int:
    left_out, clashes = alone(), 0
    for files in targets():
        places = collections.defaultdict(dict)
        for path in sorted(files - left_out):
            space = re.findall(r"^namespace (\w[\w:]*) \{", path.read_text(), re.M)
            for number, name in unnamed(path):
                places["::".join(space[:1]), name].setdefault(path, number)
        for (space, name), at in sorted(places.items()):
            if len(at) > 1:
                clashes += 1
                where = ", ".join(f"{path.relative_to(ROOT)}:{number}" for path, number in at.items())
                print(f"check_together: {space}::{name} is in unnamed namespaces of {where}")
    if clashes:
        print("check_together: give one of them another name, or both one place; see the head of this file")
    else:
        print("together: ok")
    return 1 if clashes else 0


if __name__ == "__main__":
    sys.exit(main())
