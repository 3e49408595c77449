# SPDX-License-Identifier: Apache-2.0
"""Options that give `larder serve` a storage tier."""

import json
import os
import pathlib

import pytest
from larder_server import BINARY

BACKENDS = ("file", "hf3fs")
FAKE_3FS = pathlib.Path(os.environ.get("LARDER_HF3FS_LIBRARY", pathlib.Path(BINARY).parent / "libhf3fs_api_shared.so"))


def storage_options(backend, folder):
    """Of a tier in `folder`; hf3fs is on the fake of 3FS that a whole build makes. A request waits for all of it."""
    if backend == "file":
        extra = {"directory": str(folder)}
    else:
        if not FAKE_3FS.exists():
            (pytest.fail if os.environ.get("LARDER_TEST_ALL_SERVERS") else pytest.skip)(f"{FAKE_3FS} was not built")
        (folder / "3fs-virt" / "iovs").mkdir(parents=True)
        extra = {"file_path_prefix": str(folder / "pages"), "file_size": "256Mi", "library": str(FAKE_3FS)}
    return ("--hicache-storage-backend", backend, "--hicache-storage-prefetch-policy", "wait_complete",
            "--hicache-storage-backend-extra-config", json.dumps(extra))
