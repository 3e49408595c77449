# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the files of the tree, C++ without comments and strings, tags, and the report."""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP_SUFFIXES = (".h", ".cc", ".cu")
CODE_FOLDERS = ("src", "fakes", "sim", "tests", "bench", "examples", "fuzz", "tools", "python", "cmake", "packaging",
                ".ci")


def files(suffixes, folders=CODE_FOLDERS):
    """Paths relative to ROOT, sorted, of the files under `folders` that end in one of `suffixes`."""
    found = []
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts:
                found.append(path.relative_to(ROOT))
    return sorted(found)


def scripts():
    """Shell and python scripts, those at the top and those without a suffix included."""
    found = files((".sh", ".py"))
    found += [path.relative_to(ROOT) for path in ROOT.glob("*.sh")]
    if (ROOT / ".ci/run").is_file():
        found.append(pathlib.Path(".ci/run"))
    return sorted(set(found))


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


_HIDDEN = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"')


def without_comments_and_strings(text):
    """C++ with comments and string contents blanked; lines stay where they are. #include lines keep their names."""

    def blank(match):
        return "\n" * match.group(0).count("\n") if match.group(0).startswith(("/", "R")) else '""'

    lines = [line if not line.lstrip().startswith("#include") else "" for line in text.split("\n")]
    return _HIDDEN.sub(blank, "\n".join(lines))


def tags(paths):
    """universal-ctags entries (dicts) with name, kind, line, end, path, scope for the given files."""
    if not paths:
        return []
    annotations = re.findall(r"#define (LARDER_\w+)", text_of("src/base/thread_annotations.h"))
    command = ["ctags", "--output-format=json", "--fields=+neKSs", "--kinds-C++=+p-d", "--langmap=C++:+.cu.h",
               "--langmap=Sh:+(run)", "-I", ",".join(name + "+" for name in annotations), "-L", "-", "-f", "-"]
    result = subprocess.run(command, input="\n".join(map(str, paths)), cwd=ROOT, text=True, capture_output=True,
                            check=True)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def report(check, problems):
    """Prints `path:line: text` for each problem and ends the process: 0 if there is none."""
    for path, line, text in sorted(set((str(p), l, t) for p, l, t in problems)):
        print(f"{path}:{line}: {text}")
    print(f"{check}: " + ("ok" if not problems else f"{len(problems)} problem(s)"))
    sys.exit(1 if problems else 0)
