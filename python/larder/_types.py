# SPDX-License-Identifier: Apache-2.0
"""Names of the types that calls take."""

from typing import Any, Sequence, Union

# Whatever has the buffer protocol: bytes, bytearray, memoryview, array, numpy arrays. (Any: before Python 3.12 the
# protocol has no name in the type system.)
Buffer = Any
# 64 hex digits, or 32 bytes.
Key = Union[str, bytes]
# Keys in order, or all of them in one bytes object.
Keys = Union[Sequence[Key], bytes]
# A list of int, or a contiguous buffer of 4- or 8-byte integers.
Integers = Union[Sequence[int], Buffer]
# A buffer, or (address, size).
Segment = Union[Buffer, tuple[int, int]]
Data = Union[None, Buffer, Sequence[Segment]]
