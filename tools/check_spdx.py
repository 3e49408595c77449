#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first lines, as tools that look for licences read it (spdx.dev)."""

import sys

import source_tree

LINE = "SPDX-License-Identifier: Apache-2.0"


def main():
    paths = source_tree.files(source_tree.CPP_SUFFIXES) + source_tree.scripts()
    missing = [path for path in paths if LINE not in source_tree.text_of(path)[:200]]
    for path in missing:
        print(f"{path}: no line '{LINE}' at its beginning")
    print(f"spdx: {len(missing)} problem(s)" if missing else "spdx: ok")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
