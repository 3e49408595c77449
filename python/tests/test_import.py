# SPDX-License-Identifier: Apache-2.0
"""The package with a library that is not its own."""

import os
import shutil
import subprocess
import sys

import pytest


def test_a_library_of_another_version_is_named(tmp_path):
    """LD_LIBRARY_PATH and LD_PRELOAD go before what the package names."""
    if shutil.which("gcc") is None:
        pytest.skip("needs a compiler")
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("unsigned larder_abi_version(void) { return 99; }")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, timeout=60)
    first = os.environ.get("LD_PRELOAD")  # of a sanitizer
    environment = {**os.environ, "LD_PRELOAD": f"{first}:{library}" if first else str(library)}
    done = subprocess.run(
        [sys.executable, "-c", "import larder"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "ImportError: liblarder.so has ABI version 99, and larder._native was built for " in done.stderr
    assert "LD_LIBRARY_PATH" in done.stderr
