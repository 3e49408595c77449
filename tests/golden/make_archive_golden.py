#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden archive, format version 1, archive_v1.larder beside this script.

It knows docs/formats.md, section 6, and none of the code: store_archive_test.cc compares the two.
With --check it writes nothing and fails if the file differs.
"""

import pathlib
import struct
import sys

sys.dont_write_bytecode = True

import xxh3  # noqa: E402

FILE = pathlib.Path(__file__).resolve().parent / "archive_v1.larder"
VERSION = 1
STORE_ID = bytes(range(0xF0, 0x100))
MADE_AT = 0x1122334455667788
KV, INDEXER = 0, 3


def numbered(first, count):
    """first, first + 1, ... as bytes."""
    return bytes((first + i) & 0xFF for i in range(count))


def payload_of(page, length):
    """Bytes that no shift or swap leaves alike."""
    return bytes((page * 37 + i * 7 + (i >> 8)) & 0xFF for i in range(length))


def framed(magic, fields):
    """Magic, version, zeros, checksum, fields."""
    def with_checksum(checksum):
        return magic + struct.pack("<HHIQ", VERSION, 0, 0, checksum) + fields
    return with_checksum(xxh3.xxh3_64(with_checksum(0)))


def checksum_128(payload):
    """Low and high half, as numbers."""
    return xxh3.xxh3_128(payload)


def page(key, parent, fingerprint, pool, payload):
    low, high = checksum_128(payload)
    fields = key + parent + fingerprint + struct.pack("<QQIB", low, high, len(payload), pool)
    return fields + bytes(128 - len(fields))


def group(number, namespace, pages):
    """The head and the payloads; pages are (key, parent, fingerprint, pool, payload)."""
    fields = namespace + struct.pack("<QI", number, len(pages))
    head = framed(b"LARDERAG", fields + bytes(128 - 24 - len(fields)) + b"".join(page(*p) for p in pages))
    return head, b"".join(p[4] for p in pages)


def archive():
    first, second = numbered(0x10, 32), numbered(0x20, 32)
    groups = [
        group(0, numbered(0x40, 32), [(first, bytes(32), numbered(0x60, 32), INDEXER, payload_of(1, 100)),
                                      (first, bytes(32), numbered(0x70, 32), KV, payload_of(2, 3000))]),
        group(1, numbered(0x40, 32), [(second, first, numbered(0x70, 32), KV, b"")]),
        group(2, numbered(0x50, 32), [(numbered(0x30, 32), bytes(32), numbered(0x70, 32), KV, payload_of(3, 300))]),
    ]
    fields = STORE_ID + struct.pack("<Q", MADE_AT)
    out = framed(b"LARDERAR", fields + bytes(128 - 24 - len(fields)))
    out += b"".join(head + payloads for head, payloads in groups)
    checksums = b"".join(head[16:24] for head, _ in groups)
    fields = struct.pack("<QQQQ", 3, 4, 3400, xxh3.xxh3_64(checksums))
    return out + framed(b"LARDERAE", fields + bytes(128 - 24 - len(fields)))


def main():
    xxh3.check_self()
    content = archive()
    if "--check" not in sys.argv[1:]:
        FILE.write_bytes(content)
    elif not FILE.exists() or FILE.read_bytes() != content:
        sys.exit(f"{FILE.name} is not what this script makes")


main()
