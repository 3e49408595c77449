# SPDX-License-Identifier: Apache-2.0
"""Describes Larder's storage backend as an operator configures it."""

from . import settings


def describe(directory, **config):
    """Returns the Backend whose file store lies in `directory`."""
    fixed = {"directory": str(directory), "weights_fingerprint": "rig-weights"}
    fixed |= {"max_size": "2G", "staging_bytes": "8Mi"}
    return settings.dynamic("larder_sglang", "LarderStorage", "larder", **(fixed | config))
