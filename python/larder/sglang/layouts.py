# SPDX-License-Identifier: Apache-2.0
"""The order of the bytes in a page of SGLang's device memory, which HiCache copies to the host as they are.

Pages of two orders may have one size and one type.
"""

import os
import sys
from typing import Any

_DEFAULTS = ("nhd", "paged_nhd")  # by token, then by head
# By these, index keys of one size and type are rotated or not, or lie in pages of their own kind.
_INDEXER_SWITCHES = (
    "SGLANG_DISABLE_DSA_INDEXER_FUSION",
    "SGLANG_DISABLE_AITER_FUSED_FP8_DSA_INDEXER",
    "SGLANG_HIP_DSV41_INDEX_K_PAGE8",
)


def device_layouts(host_pool: Any) -> list[str]:
    """Of the target's pages and of packed drafts'; empty where all have the default, or SGLang has no other."""
    infos = getattr(host_pool, "_buffer_infos", None) or ()
    said = [getattr(getattr(info, "buffers", None), "layout", None) for info in infos]
    if not any(said):
        said = [getattr(getattr(host_pool, "device_pool", None), "kv_cache_layout", None)]
    if not any(said) and hasattr(host_pool, "head_num"):  # then what SGLang makes its pools by
        is_hnd = _is_on("SGLANG_USE_HND_KVCACHE")
        said = ["hnd" if is_hnd else _switch("SGLANG_AITER_KV_CACHE_LAYOUT", _DEFAULTS[0]).lower()]
    names = [str(getattr(layout, "value", layout)) for layout in said if layout]
    return names if any(name not in _DEFAULTS for name in names) else []


def indexer_orders() -> list[str]:
    """What orders the bytes of an indexer's keys, where it is not the default: their pools do not say it."""
    found = [name for name in _INDEXER_SWITCHES if _is_on(name)]
    # ROCm's kernels may read the keys in tiles. A server whose model has an indexer has loaded this module.
    module = sys.modules.get("sglang.srt.layers.attention.dsa.utils")
    try:
        if getattr(module, "aiter_can_use_preshuffle_paged_mqa", bool)():
            found.append("tiles")
    except Exception:  # as on a machine without such a device
        pass
    try:
        from sglang.srt.runtime_context import get_exec

        is_fused = get_exec().kernel.enable_dsa_fused_indexer
    except Exception:  # not of this SGLang
        is_fused = None
    return found if is_fused is None else [*found, f"fused {bool(is_fused)}"]


def latent_orders() -> dict[str, str]:
    """DeepSeek-V4's pools: of its layouts, these two alone have pages of one size."""
    layout = _switch("SGLANG_DSV4_KV_LAYOUT", "v4").lower()
    return {"deepseek_v4": layout} if layout == "v41_new" else {}


def _is_on(name: str) -> bool:
    return _switch(name, "0").lower() in ("1", "true", "yes", "y")


def _switch(name: str, default: str) -> str:
    """One of SGLang's environment variables."""
    try:
        from sglang.srt.environ import envs

        return str(getattr(envs, name).get())
    except Exception:  # not of this SGLang, or SGLang cannot read its value
        return os.environ.get(name, default)
