# SPDX-License-Identifier: Apache-2.0
"""Describes Larder's storage backend as an operator configures it."""

from . import metadata_server, settings

FAKE_3FS = metadata_server.BINARY.parent / "libhf3fs_api_shared.so"
IDENTITY = {"weights_fingerprint": "rig-weights"}


def describe(directory, **config):
    """Returns the Backend whose file store lies in `directory`."""
    fixed = {"directory": str(directory), "max_size": "2G", "staging_bytes": "8Mi"}
    return settings.dynamic("larder_sglang", "LarderStorage", "larder", **(IDENTITY | fixed | config))


def describe_hf3fs(mount, url, **config):
    """Returns the Backend with pages below `mount` on the fake 3FS, and their index in the metadata server at `url`."""
    (mount / "3fs-virt" / "iovs").mkdir(parents=True, exist_ok=True)  # what a mount of 3FS has, and the fake asks for
    fixed = {
        "backend": "hf3fs",
        "library": str(FAKE_3FS),
        "file_path_prefix": str(mount / "pages"),
        "file_size": "64Mi",
        "numjobs": 1,
        "entries": 8,
        "staging_size": "4Mi",
        "client_timeout": 20,
        "timeout_seconds": 20,
        "metadata_server_url": url,
    }
    return settings.dynamic("larder_sglang", "LarderStorage", "larder", **(IDENTITY | fixed | config))
