# SPDX-License-Identifier: Apache-2.0
"""Descriptions: of a storage backend, and of the rank that uses it."""

import dataclasses
import json

import torch

# The options --dtype and --kv-cache-dtype for each type of the KV cache.
DTYPES = {
    torch.bfloat16: ("bfloat16", "auto"),
    torch.float16: ("float16", "auto"),
    torch.float8_e4m3fn: ("bfloat16", "fp8_e4m3"),
    torch.float8_e5m2: ("bfloat16", "fp8_e5m2"),
}


@dataclasses.dataclass(frozen=True)
class Backend:
    """Which storage backend the factory has to make: its name and its extra config."""

    name: str
    config: dict = dataclasses.field(default_factory=dict)

    def json(self):
        """Returns the extra config as the server's option has it; prefixes of any length are fetched."""
        return json.dumps({"prefetch_threshold": 1} | self.config)


def dynamic(module, cls, backend_name="rig", **config):
    """Returns the description of a backend class that the factory imports."""
    fixed = {"backend_name": backend_name, "module_path": module, "class_name": cls, "interface_v1": 1}
    return Backend("dynamic", fixed | config)


def file_backend(folder, **config):
    """Returns the description of SGLang's own backend that keeps pages in files."""
    return Backend("file", {"file_storage_path": str(folder)} | config)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a World is made of; `group` is the gloo group of all ranks, when there is more than one."""

    kind: str = "mha"
    layout: str = "page_first"
    core: str = "rust"
    dtype: torch.dtype = torch.bfloat16
    page_size: int = 16
    pages: int = 40
    heads: int | None = None  # of the whole model, divided among the ranks; None: some on each rank
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    model_name: str = "rig-model"
    seed: int = 0
    group: object = None
    server_args: dict = dataclasses.field(default_factory=dict)
