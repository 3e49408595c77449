# SPDX-License-Identifier: Apache-2.0
"""A plugin of SGLang, found by its entry point in each of the server's processes: what a server needs of a GPU. Copies
between device and host are plain ones (tests/sglang/rig/cpu.py), host memory is not pinned, and a short convolution is
computed with PyTorch. HTTP, scheduler, radix tree, controllers and threads are SGLang's own."""

import torch


def install():
    """Called by SGLang."""
    import short_conv
    import window_attention
    from rig import cpu
    from sglang.srt.mem_cache.pool_host import base

    torch.cpu.Stream.synchronize = lambda self: None  # as a stream of a GPU has it; a CPU's copies are over at once
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # it leaves 10 GiB free, and the pools here have some megabytes
    base.HostKVCache.pin_memory = property(lambda self: False, lambda self, value: None)
    cpu.install()
    short_conv.install()
    window_attention.install()
