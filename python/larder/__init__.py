# SPDX-License-Identifier: Apache-2.0
"""Larder: pages of a prefix cache at rest, for engines that own their device and host memory.

    import larder

    pools = [larder.Pool("kv", page_bytes=1 << 20, layout="bf16 [page][layer][head][dim]")]
    with larder.Store("file", {"directory": "/cache", "max_size": "200G"}) as store:
        with store.space(page_size=64, identity="my-model @ 3f1c", pools=pools) as space:
            keys = larder.page_keys(tokens, 64)
            resumable = space.exists(keys).best        # pages
            space.get_pages([larder.Page(key, buffer) for key, buffer in zip(keys, buffers)])

This binds the C interface (``include/larder/larder.h``), whose words are used here, too: a *page key* names a prefix of
tokens, a *pool* is one kind of a model's state, a *space* is a model on one rank, the first pool is the *anchor*.

Units: sizes in bytes, times in seconds. Keys: a ``str`` of 64 hex digits or 32 ``bytes``.
Threads: everything from any thread, several at once on one object. Calls release the GIL while they work.
Errors: :class:`Error` for a call that could not be made; what became of each page is a :class:`Code` in a list.
"""

import atexit
from typing import Optional

from larder import _native

# Before larder.store registers its own: what is registered first runs last.
atexit.register(_native.stop_log)

from larder._types import Integers, Key  # noqa: E402
from larder.errors import Code, Error  # noqa: E402
from larder.pages import Exists, HitPolicy, Need, Page, Pool  # noqa: E402
from larder.store import Space, Store  # noqa: E402

_native.set_error_class(Error)

Cancel = _native.Cancel
PageLayout = _native.PageLayout

__version__: str = _native.version()


def page_keys(
    tokens: Integers,
    page_size: int,
    prior: Optional[Key] = None,
) -> list[bytes]:
    """The chain of page keys: key(i) = SHA-256(key(i-1) + tokens of page i as u32 little-endian).

    tokens: a list of ints, or a contiguous buffer of 4- or 8-byte integers (numpy). prior: the key before the first, or
    None for the head of an unseeded chain. Returns ``len(tokens) // page_size`` keys of 32 bytes: a partial last page
    has none. Equal to SGLang's chain.
    """
    return _native.page_keys(tokens, page_size, prior)


def backends() -> list[str]:
    """The names that :class:`Store` knows in this build."""
    return _native.backends().split(",")


def option_help(backend: Optional[str] = None) -> dict[str, tuple[str, str]]:
    """The options of a backend, or with None those that every store has: name -> (default, help)."""
    out = {}
    for line in _native.option_help(backend).splitlines():
        name, default, text = (line.split("\t") + ["", ""])[:3]
        out[name] = (default, text)
    return out


__all__ = [
    "Cancel",
    "Code",
    "Error",
    "Exists",
    "HitPolicy",
    "Need",
    "Page",
    "PageLayout",
    "Pool",
    "Space",
    "Store",
    "backends",
    "option_help",
    "page_keys",
]
