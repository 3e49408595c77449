#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The soak: real processes, clients that check every token, and trouble. See --help, and docs/testing.md."""

import sys

from soak import command

if __name__ == "__main__":
    sys.exit(command.main())
