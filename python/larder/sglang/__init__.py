# SPDX-License-Identifier: Apache-2.0
"""Larder as SGLang's L3 storage backend (HiCache), for SGLang 0.5.23.

    --page-size 64 --enable-hierarchical-cache --hicache-storage-backend dynamic \\
    --hicache-storage-backend-extra-config '{
      "backend_name": "larder", "module_path": "larder_sglang", "class_name": "LarderStorage", "interface_v1": 1,
      "hicache_storage_pass_prefix_keys": true, "directory": "/cache/larder", "max_size": "500G"}'

Keys of the extra config, beside SGLang's own:

    backend                    "file"; a name of larder.backends()
    weights_fingerprint        text that names the weights; else it is made of the files in the model's folder,
                               where SGLang has its weights from them
    draft_weights_fingerprint  the same for the draft model
    engine_version             SGLang's version; a constant text keeps the pages over an upgrade, at the operator's risk
    metrics_port               none; the first rank's port of a page for Prometheus, the other ranks have the next ones
    metrics_host               "127.0.0.1"; where that page listens
    timeout_seconds            4.0; of a query and of a read; above 4.5 the log warns
    put_timeout_seconds        5.0; of a write
    rank_directories           false; true: each rank has a store of its own below `directory`, each of `max_size`
    hicache_storage_pass_prefix_keys  false; SGLang's, set it to true: heads of prompts then stay longer than tails

All other keys are options of the store: larder.option_help("file"), larder.option_help(None). An unknown one is an
error that lists the known ones. `python -m larder.sglang check JSON|@FILE` says whether all of it works, before SGLang
loads its model.

Weights that are exchanged at run time are noticed by their `weight_version`: give each its own. After an update
without a new one, clear the storage.

Several ranks (tensor, pipeline, context or data parallel) of one host share one store, through the store option
`share_directory`; its default here is `directory` + ".share", beside it. Servers with other numbers of tensor-parallel
ranks find each other's heads with SGLang's key tp_lcm_size and its host layout page_head.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from larder.sglang.storage import LarderStorage

__all__ = ["LarderStorage"]


def __getattr__(name: str) -> Any:
    """The class needs SGLang, `check` does not: so it is imported when it is asked for."""
    if name != "LarderStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from larder.sglang.storage import LarderStorage

    return LarderStorage
