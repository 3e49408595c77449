# SPDX-License-Identifier: Apache-2.0
"""The binding itself; larder.Store and larder.Space wrap it. Numbers for enums, indices for pools, 0.0 for timeouts
that the store chooses."""

from typing import Callable, Optional, Sequence

from larder._types import Data, Integers, Key, Keys

class Cancel:
    """A flag that several calls may share: set() ends what has not begun, and the wait for the rest. Any thread."""

    def __init__(self) -> None: ...
    def set(self) -> None: ...

class PageLayout:
    """Where the pages of a host pool lie. Immutable.

    segments: (base, page_stride, size) each: page p's segment is the `size` bytes at ``base + p * page_stride``.
    Page p is the slots [p * slots_per_page, (p + 1) * slots_per_page); `slots` bounds them. No segments: pages are
    markers without bytes. The memory is not kept alive by this object.
    """

    def __init__(self, segments: Sequence[tuple[int, int, int]], slots_per_page: int, slots: int) -> None: ...
    def addresses(self, slot: int) -> list[tuple[int, int]]:
        """(address, size) of each segment of the page that begins at `slot`."""
    @property
    def segment_count(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def slots_per_page(self) -> int: ...
    @property
    def slots(self) -> int: ...

class Store:
    def __init__(
        self,
        backend: str,
        config: str,
        memory: Sequence[tuple[int, int]],
        log: Optional[Callable[[int, str, str], object]],
    ) -> None: ...
    def close(self, timeout: float) -> None: ...
    def add_memory(self, regions: Sequence[tuple[int, int]]) -> None: ...
    def clear(self, timeout: float) -> None: ...
    def text(self, metrics: bool) -> str: ...

class Space:
    def __init__(
        self,
        store: Store,
        page_size: int,
        identity: str,
        adapter: str,
        salt: str,
        ranks: tuple[int, int, int, int, int, int],
        pools: Sequence[tuple[str, int, str, int, int, int]],
    ) -> None: ...
    def close(self) -> None: ...
    def clear(self, timeout: float) -> None: ...
    def digest(self) -> bytes: ...
    def exists(
        self,
        keys: Keys,
        needs: Optional[Sequence[tuple[int, int, int]]],
        timeout: float,
        want_present: bool,
        cancel: Optional[Cancel],
    ) -> tuple[bytes, bytes]: ...
    def get(
        self,
        keys: Keys,
        pool: int,
        slots: Integers,
        layout: PageLayout,
        timeout: float,
        cancel: Optional[Cancel],
    ) -> list[int]: ...
    def put(
        self,
        keys: Keys,
        pool: int,
        slots: Integers,
        layout: PageLayout,
        parent: Optional[Key],
        flags: int,
        timeout: float,
        cancel: Optional[Cancel],
    ) -> list[int]: ...
    def get_pages(
        self, pages: Sequence[tuple[int, Key, None, Data]], timeout: float, cancel: Optional[Cancel]
    ) -> list[int]: ...
    def put_pages(
        self, pages: Sequence[tuple[int, Key, Optional[Key], Data]], flags: int, timeout: float, cancel: Optional[Cancel]
    ) -> list[int]: ...

def page_keys(tokens: Integers, page_size: int, prior: Optional[Key]) -> list[bytes]: ...
def lengths(words: bytes) -> list[int]: ...
def option_help(backend: Optional[str]) -> str: ...
def version() -> str: ...
def abi_version() -> int: ...
def backends() -> str: ...
def code_name(code: int) -> str: ...
def set_error_class(error_class: type[Exception]) -> None: ...
def stop_log() -> None: ...
