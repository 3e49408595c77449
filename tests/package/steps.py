# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder are made of."""

import subprocess
import sys


def run(*command, expect=0, **options):
    """The output; ends the test with it if the exit code is another one."""
    words = [str(word) for word in command]
    result = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    if result.returncode != expect:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(words)}\n{result.stdout}")
    return result.stdout


def need(condition, text):
    if not condition:
        sys.exit("FAILED: " + text)
