# SPDX-License-Identifier: Apache-2.0
"""The storage backends that are compared, called as SGLang's controller calls them."""

import ctypes
import os
import types

MODEL = "bench-model"
FILL_BATCH = 128


def storage_config(**extra):
    """Returns what SGLang tells a backend about the server."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name=MODEL,
        extra_config=extra,
    )


class Side:
    """A backend with a host pool. `operations`: what is measured of it.

    set, get and exists are SGLang's own functions of the controller, with as much of a controller as they look at.
    """

    def __init__(self, name, backend, host, operations):
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

        self.name = name
        self.backend = backend
        self.operations = operations
        self.host = host
        self.info = HiCacheStorageExtraInfo()
        self.operation = types.SimpleNamespace(request_id="bench", is_terminated=lambda: False)
        self.controller = types.SimpleNamespace(
            storage_backend=backend, storage_host_pool=host.pool, page_size=host.page_size
        )

    def exists(self, keys):
        """Returns the number of leading keys that are stored."""
        return self.backend.batch_exists(keys, self.info)

    def close(self):
        """Lets go of the store."""


class FileSide(Side):
    """SGLang's `file` backend: pages go through flat copies. sync: "fsync", "syncfs" or "none"."""

    def __init__(self, name, host, folder, operations, sync="fsync", **extra):
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile

        backend = HiCacheFile(storage_config(file_storage_path=str(folder), **extra))
        super().__init__(name, backend, host, operations)
        self.folder = str(folder)
        self.sync = sync

    def set(self, keys, indices):
        """Stores pages; they survive a power cut when it returns, unless sync is "none"."""
        from sglang.srt.managers.cache_controller import HiCacheController

        done = HiCacheController._generic_page_set(self.controller, keys, indices, self.info)
        if self.sync == "fsync":
            for key in keys:
                _fsync(self.path(key))
            _fsync(self.folder)
        elif self.sync == "syncfs":
            _syncfs(self.folder)
        return done

    def get(self, keys, indices):
        """Reads pages; returns how many."""
        from sglang.srt.managers.cache_controller import HiCacheController

        return HiCacheController._generic_page_get(self.controller, self.operation, keys, indices, self.info)

    def path(self, key):
        """Returns the file of a key."""
        return os.path.join(self.folder, f"{self.backend._get_suffixed_key(key)}.bin")

    def fill(self, keys):
        """Makes the files of `keys` as `set` does, but for the exchange of names at the end: it is not measured."""
        data = bytes(self.host.page_bytes)
        for key in keys:
            handle = os.open(self.path(key), os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(handle, data)
            os.close(handle)
        _syncfs(self.folder)

    def evict_from_page_cache(self, keys):
        """Lets the kernel forget the data of these files."""
        for key in keys:
            handle = os.open(self.path(key), os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


class LarderSide(Side):
    """Larder's backend. Answers a set only after the disk has it (store option `fsync`: "group")."""

    def __init__(self, name, host, folder, operations, **extra):
        from larder.sglang import LarderStorage

        fixed = {"weights_fingerprint": "bench", "interface_v1": 1, "timeout_seconds": 60, "put_timeout_seconds": 60}
        if folder is not None:
            fixed |= {"directory": str(folder), "fsync": "group"}
        backend = LarderStorage(storage_config(**(fixed | extra)), {})
        super().__init__(name, backend, host, operations)
        backend.register_mem_pool_host(host.pool)
        backend.register_mem_host_pool_v2(host.pool, "kv")
        backend.on_host_pools_registered()
        self.folder = folder

    def set(self, keys, indices):
        """Stores pages."""
        from sglang.srt.managers.cache_controller import HiCacheController

        return HiCacheController._page_set_zero_copy(self.controller, keys, indices, self.info)

    def get(self, keys, indices):
        """Reads pages; returns how many."""
        from sglang.srt.managers.cache_controller import HiCacheController

        return HiCacheController._page_get_zero_copy(self.controller, self.operation, keys, indices, self.info)

    def fill(self, keys):
        """Stores pages with any bytes."""
        indices = self.host.indices(0, False)
        for first in range(0, len(keys), FILL_BATCH):
            some = keys[first : first + FILL_BATCH]
            done = self.backend.batch_set_v1(some, indices[: len(some) * self.host.page_size], self.info)
            if not all(done):
                raise RuntimeError(f"{self.name}: {done.count(False)} pages were not stored: {self.backend.troubles()}")

    def evict_from_page_cache(self, keys):
        """Lets the kernel forget the data of the store's files."""
        for folder, _, files in os.walk(self.folder):
            for name in files:
                handle = os.open(os.path.join(folder, name), os.O_RDONLY)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)

    def close(self):
        """Closes the store."""
        self.backend.close()


def _fsync(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _syncfs(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", path)
    finally:
        os.close(handle)
