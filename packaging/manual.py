#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual page and the completion of bash from what `larder` says of itself.

    manual.py LARDER FOLDER

Runs LARDER help and the --help of each command, and writes FOLDER/larder.1.gz and FOLDER/larder.bash. The option tables
are those of the program: nothing is listed here. Run by the build (cmake/larder_packaging.cmake).
"""

import argparse
import gzip
import pathlib
import re
import subprocess

# "  serve   serves a model", "  attach, detach   the storage"
LISTED = re.compile(r"^  ([a-z][a-z-]*(?:, [a-z][a-z-]*)*)(?: (?:NAME|COMMAND))?(?: \[COMMAND\])?  +(\S.*)$")
LIST_ROW = re.compile(r"^  [a-z].*\S {2,}\S")
ROW = re.compile(r"^  (\S.*?)(?:\s{2,}(\S.*))?$")  # "  --port UINT=8080    0: any free one"
HEADING = re.compile(r"^(\S.*):$")
# Commands that only choose another one, and those with a second set of options.
CHOOSERS = ("bench", "store")
SECOND_FORMS = {"serve": ["serve", "--model", "x.gguf"]}


class Command:
    """One --help: words, text before the usage, usage, [(heading, [(name, help)])], text after the options."""

    def __init__(self, words, text):
        self.words = words
        about, _, rest = text.partition("\nUsage: ")
        self.about = about.strip()
        self.usage, _, rest = rest.partition("\n")
        self.groups, self.footer = [], ""
        self._read(rest.splitlines())

    def _read(self, lines):
        for index, line in enumerate(lines):
            heading = HEADING.match(line)
            if heading and not line.startswith(("Example", "Exit")):
                self.groups.append((heading.group(1), []))
            elif line.startswith("   ") and self.groups and self.groups[-1][1]:  # help below a name that is long
                name, text = self.groups[-1][1].pop()
                self.groups[-1][1].append((name, (text + " " + line.strip()).strip()))
            elif ROW.match(line) and self.groups:
                name, text = ROW.match(line).groups()
                self.groups[-1][1].append((name, text or ""))
            elif line.strip():
                self.footer = "\n".join(lines[index:]).strip()
                return

    def options(self):
        names = [name for _, rows in self.groups for name, _ in rows]
        return [word for name in names for word in re.findall(r"--[a-z][a-z0-9-]*", name.split(" ")[0])]


def said(larder, *words):
    """Standard output and error; None if the command does not know these words."""
    result = subprocess.run([larder, *words], text=True, capture_output=True, check=False, timeout=60)
    return result.stdout + result.stderr if result.returncode == 0 else None


def listed(text):
    """[(name, what it does)] of a list of commands; "  a, b   text" is two."""
    found = []
    for line in text.splitlines():
        match = LISTED.match(line)
        if match:
            names, about = match.groups()
            found += [(name, about) for name in names.split(", ")]
        elif LIST_ROW.match(line):
            raise SystemExit(f"manual.py: no command is understood here, and so it would be missing: {line!r}")
    return found


def read_commands(larder):
    """(the list of commands, [Command]): a chooser's own commands in place of it."""
    commands = listed(said(larder, "help"))
    found = []
    for name, _ in commands:
        if name in ("help", "version"):
            continue
        words = [[name, sub] for sub, _ in listed(said(larder, "help", name))] if name in CHOOSERS else [[name]]
        words += [SECOND_FORMS[name]] if name in SECOND_FORMS else []
        for each in words:
            text = said(larder, *each, "--help")
            if text and "\nUsage: " in text:
                found.append(Command(each, text))
    return commands, found


def roff(text):
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", escaped)


def manual(version, commands, found):
    out = [f'.TH LARDER 1 "" "larder {version}" "User Commands"', ".SH NAME",
           "larder \\- a prefix cache in three tiers for servers of language models", ".SH SYNOPSIS", ".B larder",
           ".I COMMAND", "[OPTIONS]", ".SH COMMANDS"]
    for name, about in commands:
        out += [".TP", f".B {roff(name)}", roff(about)]
    for command in found:
        out += [f'.SH "LARDER {roff(" ".join(command.words).upper())}"', roff(command.about), ".PP",
                f".B larder {roff(command.usage.removeprefix('larder '))}"]
        for heading, rows in command.groups:
            out += [f'.SS "{roff(heading)}"']
            for name, text in rows:
                out += [".TP", f".B {roff(name)}", roff(text) or "\\&"]
        if command.footer:
            out += [".PP", ".nf", roff(command.footer), ".fi"]
    out += [".SH FILES", ".TP", ".I /etc/larder/*.env", "options of the services", ".TP", ".I /var/lib/larder",
            "what the services keep", ".SH SEE ALSO", "/usr/share/doc/larder, systemctl(1)"]
    return "\n".join(out) + "\n"


BASH = """# bash completion for larder; written by packaging/manual.py
_larder() {
  local cur="${COMP_WORDS[COMP_CWORD]}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="@COMMANDS@"
  else
    case "${COMP_WORDS[1]} ${COMP_WORDS[2]} $COMP_CWORD" in
@CASES@    esac
  fi
  if [[ "$words" == --* && "$cur" != -* ]]; then return; fi  # a value: bash completes names of files
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _larder larder
"""


def completion(commands, found):
    options, children = {}, {}
    for command in found:
        key = tuple(word for word in command.words[:2] if re.fullmatch(r"[a-z][a-z-]*", word))
        options.setdefault(key, []).extend(command.options())
        if len(key) == 2:
            children.setdefault(key[0], []).append(key[1])
    names = " ".join(name for name, _ in commands)
    rows = [f'      "{name} "*" 2") words="{" ".join(subs)}" ;;\n' for name, subs in children.items()]
    rows.append(f'      "help "*" 2") words="{names}" ;;\n')
    for key, words in options.items():
        pattern = f'"{key[0]} "*' if len(key) == 1 else f'"{" ".join(key)} "*'
        rows.append(f'      {pattern}) words="{" ".join(dict.fromkeys(words))}" ;;\n')
    return BASH.replace("@COMMANDS@", names).replace("@CASES@", "".join(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larder", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    larder = arguments.larder.resolve()
    commands, found = read_commands(larder)
    version = said(larder, "version").split()[-1]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = gzip.compress(manual(version, commands, found).encode(), mtime=0)  # the same bytes for the same program
    (arguments.folder / "larder.1.gz").write_bytes(page)
    (arguments.folder / "larder.bash").write_text(completion(commands, found), encoding="utf-8")


main()
