#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The soak of `larder proxy` before the real llama-server. See --help, and docs/testing.md."""

import sys

from soak_llama import command

if __name__ == "__main__":
    sys.exit(command.main())
