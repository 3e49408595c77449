# SPDX-License-Identifier: Apache-2.0
"""What an engine has loaded, as far as files tell.

A fingerprint is made of files that lie there now, while the engine computes with those that it has loaded. A deployment
may have put others in their place since. So the first fingerprint of a path counts for as long as the engine runs,
through detach and attach; and a first attach at run time refuses files that have changed since the process began.
"""

import os
import threading
import time
from typing import Any, Callable, Iterator, Optional

_lock = threading.Lock()
# The engine, and what was read for it. A process has one engine at a time.
_read_for: tuple[Any, dict[tuple[Any, ...], str]] = (None, {})

_MAX_LINKS = 40  # from one to the next, as the kernel has it


def once(engine: Any, what: tuple[Any, ...], read: Callable[[], str]) -> str:
    """read(), or what it gave at the first call for this engine; with None for an engine it is called each time.

    An exception of read() passes, and nothing is kept.
    """
    global _read_for
    if engine is None:
        return read()
    with _lock:
        if _read_for[0] is not engine:
            _read_for = (engine, {})
        known = _read_for[1]
        if what not in known:
            known[what] = read()
        return known[what]


def changed_since_start(path: str) -> Optional[str]:
    """A file, folder or link that `path` goes through or holds, and that has changed since this process began, or a
    folder around it that has been moved; None: there is none, or `path` is not on this machine (the name of a model on
    a hub)."""
    if not os.path.exists(path):
        return None
    began = process_start()
    for place in _places(path):
        try:
            if os.lstat(place).st_ctime > began:
                return place
        except OSError:  # gone meanwhile, which changes its folder
            continue
    for folder in _folders_around(path):
        try:
            status = os.stat(folder)
        except OSError:
            continue
        # Moved here, perhaps in the place of another. What else becomes of such a folder changes what it holds, too.
        if status.st_ctime > began >= status.st_mtime:
            return folder
    return None


def process_start() -> float:
    """Seconds since 1970."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _places(path: str) -> Iterator[str]:
    yield from _links(path)
    target = os.path.realpath(path)
    yield target
    if os.path.isdir(target):
        for name in sorted(os.listdir(target)):
            file = os.path.join(target, name)
            yield from _links(file)
            if not os.path.isdir(file):
                yield os.path.realpath(file)


def _folders_around(path: str) -> Iterator[str]:
    """The folders that lead to `path`, and to each link on the way; not the root."""
    for place in (*_links(path), os.path.realpath(path)):  # neither has a link before its last name
        folder = os.path.dirname(place)
        while folder != "/":
            yield folder
            folder = os.path.dirname(folder)


def _links(path: str) -> Iterator[str]:
    """The links on the way to `path`, its own and those of its folders."""
    path = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        folder, link = "/", None
        for name in path.split("/"):
            folder = os.path.join(folder, name)
            if os.path.islink(folder):
                link = folder
                break
        if link is None:
            return
        yield link
        path = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link), os.path.relpath(path, link)))
