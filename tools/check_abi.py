#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C interface is what was promised: include/larder/larder.h, and the library, against tests/golden/larder_abi.txt.

    check_abi.py                      the header: functions, sizes and places of fields, values (needs a C compiler)
    check_abi.py [--cc CC] LIBRARY    in addition what liblarder.so exports, and its SONAME (needs nm and readelf)
    check_abi.py --update [LIBRARY]   writes the golden file anew, and says what has changed
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = ROOT / "include/larder/larder.h"
GOLDEN = ROOT / "tests/golden/larder_abi.txt"
TITLE = "# The C interface of include/larder/larder.h on 64-bit machines; written by tools/check_abi.py --update.\n"
BREAKS = """
A program that was compiled with the old header would go wrong with this library. Either undo the change, or raise
LARDER_ABI_VERSION in include/larder/larder.h (which is the SONAME, too) and run tools/check_abi.py --update."""
GROWS = """
Programs that were compiled with the old header go on working. If it is meant, run tools/check_abi.py --update."""


def names_of(text):
    """The names that a C declaration without its ';' declares: "uint32_t a, *b, c[3]" -> a, b, c."""
    return [re.search(r"(\w+)\s*(?:\[[^\]]*\])?$", part.strip()).group(1) for part in text.split(",")]


def without_name(parameter):
    """A parameter's type: "const uint8_t *keys" -> "const uint8_t *"."""
    match = re.match(r"(.*?)\b\w+\s*(\[[^\]]*\])?$", parameter.strip())
    return (match.group(1) + ("*" if match.group(2) else "")).strip() if " " in parameter.strip() else parameter.strip()


def signature(result, parameters):
    """Types only, in one spelling: "const char* (uint32_t, larder_store**)"."""
    types = ", ".join(without_name(" ".join(parameter.split())) for parameter in parameters.split(","))
    return re.sub(r"\s+(?=\*)", "", f"{result.strip()} ({types})")


class Header:
    """What stands in the header, by regular expressions: it is written in one plain style."""

    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        self.macros = [name for name, value in re.findall(r"^#define (LARDER_\w+) (\S.*)$", text, re.M)
                       if name != "LARDER_API"]
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        self.structs = {name: sum((names_of(field) for field in body.split(";") if field.strip()), [])
                        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.S)}
        enums = re.findall(r"typedef enum \w+ \{(.*?)\}", text, re.S)
        self.values = [names_of(part.split("=")[0])[0] for body in enums for part in body.split(",") if part.strip()]
        self.functions = {}
        for result, name, parameters in re.findall(r"LARDER_API ([\w\s*]*?)(\w+)\(([^)]*)\);", text):
            self.functions[name] = signature(result, parameters)
        self.callbacks = {name: signature(result, parameters) for result, name, parameters
                          in re.findall(r"typedef ([\w\s*]*?)\(\*(\w+)\)\(([^)]*)\);", text)}


def probe(header, compiler):
    """Lines that a C program says of the structs and values: only the compiler knows them."""
    body = []
    for name, fields in header.structs.items():
        body.append(f'printf("struct {name}: %zu bytes, aligned to %zu\\n", sizeof({name}), _Alignof({name}));')
        body += [f'printf("field {name}.{field}: at %zu, %zu bytes\\n", offsetof({name}, {field}), '
                 f"sizeof((({name} *)0)->{field}));" for field in fields]
    for name in header.values + header.macros:
        body.append(f'printf("value {name}: %lld\\n", (long long)({name}));')
    lines = ["#include <stdio.h>", "#include <larder/larder.h>", "int main(void) {", *body, "return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        binary = pathlib.Path(folder) / "probe"
        command = [compiler, "-std=c11", "-I", HEADER.parent.parent, "-x", "c", "-", "-o", binary]
        subprocess.run(command, input="\n".join(lines), text=True, check=True)
        return subprocess.run([binary], text=True, capture_output=True, check=True).stdout.splitlines()


def entries(lines):
    """"kind name" -> what is said of it."""
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def is_growth(name, old, new, header):
    """A struct that says its own size may have more at its end. (A field that moved is a change of its own.)"""
    fields = header.structs.get(name.removeprefix("struct "), [])
    sizes = [re.match(r"(\d+) bytes, aligned to (\d+)", text) for text in (old, new)]
    return (name.startswith("struct ") and fields[:1] == ["struct_size"] and all(sizes)
            and int(sizes[0].group(1)) <= int(sizes[1].group(1)) and sizes[0].group(2) == sizes[1].group(2))


def differences(old, new, header):
    """(what breaks programs, what does not)."""
    breaks, grows = [], []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None:
            owner = name.removeprefix("field ").split(".")[0]
            is_inside = name.startswith("field ") and f"struct {owner}" in old
            can_grow = header.structs.get(owner, [])[:1] == ["struct_size"]
            (breaks if is_inside and not can_grow else grows).append(f"new:     {name}: {after}")
        elif after is None:
            breaks.append(f"gone:    {name}: {before}")
        elif before != after:
            text = f"changed: {name}: {before}  ->  {after}"
            (grows if is_growth(name, before, after, header) else breaks).append(text)
    return breaks, grows


def library_problems(library, header, version):
    """What the library exports is what the header declares, under the version LARDER_1 and this SONAME."""
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], text=True, capture_output=True, check=True).stdout
    exported = {line.split()[-1] for line in symbols.splitlines() if line.split()[-2] != "A"}
    wanted = {f"{name}@@LARDER_1" for name in header.functions}
    problems = [f"{name} is in the header, and not exported: define it in src/door"
                for name in sorted(wanted - exported)]
    problems += [f"{name} is exported, and not in the header: the linker's map has failed (cmake/larder_package.cmake)"
                 for name in sorted(exported - wanted)]
    dynamic = subprocess.run(["readelf", "-d", library], text=True, capture_output=True, check=True).stdout
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    if soname is None or soname.group(1) != f"liblarder.so.{version}":
        problems.append(f"the SONAME is {soname and soname.group(1)}, and must be liblarder.so.{version}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()

    header = Header(HEADER.read_text(encoding="utf-8"))
    lines = [f"function {name}: {types}" for name, types in sorted(header.functions.items())]
    lines += [f"callback {name}: {types}" for name, types in sorted(header.callbacks.items())]
    lines += probe(header, arguments.cc)
    old = entries(GOLDEN.read_text(encoding="utf-8").splitlines()) if GOLDEN.exists() else {}
    new = entries(lines)
    version = new["value LARDER_ABI_VERSION"]
    breaks, grows = differences(old, new, header)
    problems = library_problems(arguments.library, header, version) if arguments.library else []
    print("".join(text + "\n" for text in breaks + grows + problems), end="")
    if arguments.update:
        GOLDEN.write_text(TITLE + "".join(line + "\n" for line in lines), encoding="utf-8")
    elif breaks and old.get("value LARDER_ABI_VERSION") != version:
        print("LARDER_ABI_VERSION was raised: run tools/check_abi.py --update")
    elif breaks or grows:
        print((BREAKS if breaks else GROWS).strip())
    count = len(problems) + (0 if arguments.update else len(breaks) + len(grows))
    print("abi: " + ("ok" if count == 0 else f"{count} problem(s)"))
    return 1 if count else 0


sys.exit(main())
