# SPDX-License-Identifier: Apache-2.0
"""What a call or a page came to."""

import enum


class Code(enum.IntEnum):
    """What the caller should do next. Of a call, and of each page in it; equal to the C interface's numbers."""

    OK = 0
    INVALID_ARGUMENT = 1  # mend the call; the message says how
    NOT_FOUND = 2  # a miss
    CONFLICT = 3  # the place belongs to another store, process or identity
    OVERLOADED = 4  # a bounded queue is full: later, or do without
    DEADLINE_EXCEEDED = 5  # not there in time; memory that was lent is the caller's again
    CANCELLED = 6  # a Cancel, a clear or the close ended it
    CORRUPT = 7  # stored bytes did not verify: a miss; the page is dropped
    UNAVAILABLE = 8  # disk, peer or directory cannot serve now: after a while
    UNSUPPORTED = 9  # this build or backend cannot do it
    INTERNAL = 10  # a broken invariant: report it


class Error(RuntimeError):
    """A call that could not be made or ended as a whole.

    code: a :class:`Code`. message: what, where and how to mend it.
    """

    code: Code
    message: str

    def __init__(self, code: int, message: str) -> None:
        self.code = Code(code)
        self.message = message
        super().__init__(f"{self.code.name}: {message}")
