# SPDX-License-Identifier: Apache-2.0
"""SGLang's own host pool, in two halves: pages to be stored lie in the first, pages are read into the second."""

import hashlib

import torch

BATCH = 128  # pages in one call, as SGLang's controller makes them
LAYERS = 4
POISON = 0x5A


class HostPages:
    """A MHATokenToKVPoolHost (page_first) whose pages have `page_bytes` bytes, with `threads` x 128 pages per half."""

    def __init__(self, page_bytes, threads):
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
        from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

        self.page_bytes = page_bytes
        self.threads = threads
        self.page_size = 64 if page_bytes >= 1 << 16 else 4
        width = page_bytes // self.page_size // (2 * LAYERS * 2)  # K and V, of two bytes each
        head_dim = min(64, width)
        shape = {"page_size": self.page_size, "head_num": width // head_dim, "head_dim": head_dim, "layer_num": LAYERS}
        shape |= {"dtype": torch.bfloat16, "device": "cpu", "enable_memory_saver": False, "size": self.page_size}
        (info,) = MHATokenToKVPool(**shape).get_device_pool_infos()
        tokens = 2 * threads * BATCH * self.page_size
        self.pool = MHATokenToKVPoolHost(
            info.buffer_info,
            1.0,
            0,
            self.page_size,
            "page_first",
            pin_memory=False,
            device_capacity_tokens=tokens,
            start_layer=0,
            end_layer=LAYERS - 1,
            host_token_capacity=tokens,
        )
        rows = self.pool.kv_buffer.view(torch.int16).view(2, 2, -1)  # K and V, halves, the rest
        self.source, self.target = rows[:, 0], rows[:, 1]
        self.source.random_(-(1 << 15), 1 << 15)
        self.target.fill_(0)

    def indices(self, thread, is_target):
        """Returns the token slots of one thread's 128 pages, as the controller passes them."""
        first = (self.threads * is_target + thread) * BATCH * self.page_size
        return torch.arange(first, first + BATCH * self.page_size, dtype=torch.int64)

    def renew(self):
        """Changes every word of the source, so that bytes of an earlier turn can not pass for those of this one."""
        self.source += 12345

    def poison(self):
        """Overwrites the target."""
        self.target.view(torch.uint8).fill_(POISON)

    def differences(self, threads):
        """Returns how many of the first `threads` threads did not get the source's bytes."""
        size = BATCH * self.page_bytes // 2 // 2  # words of K, and of V, per thread
        parts = [slice(thread * size, (thread + 1) * size) for thread in range(threads)]
        return sum(not torch.equal(self.source[:, part], self.target[:, part]) for part in parts)


def keys_of(name, first, count):
    """Returns `count` keys as SGLang makes them: 64 hex digits."""
    return [hashlib.sha256(f"{name} {number}".encode()).hexdigest() for number in range(first, first + count)]
