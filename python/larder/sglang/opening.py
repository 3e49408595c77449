# SPDX-License-Identifier: Apache-2.0
"""Opens a store while SGLang's scheduler waits, and closes one for which it does not wait.

A disk may hang, and an open has no deadline of its own. At its start SGLang waits for the store, and the log says why;
at run time no request is served meanwhile, so an attach ends.
"""

import logging
import threading
from typing import Callable, Optional

import larder

logger = logging.getLogger("larder.sglang")

ATTACH_SECONDS = 60.0  # that an attach at run time waits; an index of 100 million pages takes some 20 s
_TELL_SECONDS = 10.0  # after which the log says that an open takes long


def open_store(
    open_it: Callable[[], larder.Store], name: str, limit: Optional[float], who: str = "SGLang waits for it"
) -> larder.Store:
    """What open_it() gives or raises. name: of the store, for messages. limit: seconds, None for no limit. who: waits.

    Raises larder.Error DEADLINE_EXCEEDED: it had not opened by then. When it does, it is closed.
    """
    opening = _Opening(open_it)
    try:
        tell = _TELL_SECONDS if limit is None else min(_TELL_SECONDS, limit)
        if not opening.wait(tell):
            logger.warning(
                "larder: the %s has not opened in %g s, and %s: its disk or its service hangs, or it has very many "
                "pages", name, tell, who,
            )  # fmt: skip
            if not opening.wait(None if limit is None else limit - tell):
                raise larder.Error(
                    int(larder.Code.DEADLINE_EXCEEDED),
                    f"the {name} has not opened in {limit:g} s: its disk or its service hangs, or it has very many "
                    "pages. When it opens it is closed again. Attach it then, or give it at the start of the server, "
                    "which waits for it",
                )
    except BaseException:  # an interrupt, too
        opening.give_up()
        raise
    return opening.result()


def close_later(store: larder.Store) -> None:
    """A store that hangs keeps its directory, its threads and its memory until it answers. Does not return before."""
    while True:
        try:
            store.close(10.0)
            return
        except larder.Error as error:
            if error.code is not larder.Code.DEADLINE_EXCEEDED:
                logger.warning("larder: close: %s", error.message)
                return


class _Opening:
    """open_it() on a thread of its own."""

    def __init__(self, open_it: Callable[[], larder.Store]) -> None:
        self._open_it = open_it
        self._error: Optional[BaseException] = None
        self._lock = threading.Lock()  # of what is below
        self._store: Optional[larder.Store] = None
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="larder-open", daemon=True)
        self._thread.start()

    def wait(self, seconds: Optional[float]) -> bool:
        """Whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> larder.Store:
        """After its end."""
        if self._error is not None:
            raise self._error
        assert self._store is not None
        return self._store

    def give_up(self) -> None:
        """Nobody takes the store: it is closed, on the thread that opens it or on another."""
        with self._lock:
            self._is_given_up = True
            store = self._store
        if store is not None:
            threading.Thread(target=close_later, args=(store,), name="larder-close", daemon=True).start()

    def _run(self) -> None:
        try:
            store = self._open_it()
        except BaseException as error:
            self._error = error
            return
        with self._lock:
            if not self._is_given_up:
                self._store = store
                return
        close_later(store)
