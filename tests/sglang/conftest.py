# SPDX-License-Identifier: Apache-2.0
"""Lets the tests find the rig, and the rig the tools that SGLang calls; the settings hold for child processes too."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent

sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{sys.prefix}/torch_extensions")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_configure():
    """Keeps SGLang's log to warnings."""
    from rig import world

    world.quiet()
