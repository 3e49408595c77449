# SPDX-License-Identifier: Apache-2.0
"""Imports what a World needs, so that processes forked from one that has it start at once."""

import importlib

MODULES = (
    "sglang.srt.server_args",
    "sglang.srt.configs.mamba_utils",
    "sglang.srt.mem_cache.allocator.swa",
    "sglang.srt.mem_cache.deepseek_v4_memory_pool",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler",
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.mem_cache.rust_tree_core.adapter",
    "sglang.srt.mem_cache.storage",
    "sglang.srt.mem_cache.unified_radix_cache",
    "rig.cases",
)

for name in MODULES:
    importlib.import_module(name)
