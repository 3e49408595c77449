#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of the file store, format version 2, in file_store_v2/ beside this script.

It knows docs/formats.md, section 5, and none of the code: segment_format_test.cc compares the two.
With --check it writes nothing and fails if a file differs.
"""

import pathlib
import struct
import sys

sys.dont_write_bytecode = True

import xxh3  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent / "file_store_v2"
VERSION = 2
BLOCK = 4096
STORE_ID = bytes(range(0xF0, 0x100))
SEGMENT = 1
RECORD_START = BLOCK
KV, INDEXER = 0, 3


def numbered(first, count):
    """first, first + 1, ... as bytes."""
    return bytes((first + i) & 0xFF for i in range(count))


def payload_of(page, length):
    """Bytes that no shift or swap leaves alike."""
    return bytes((page * 37 + i * 7 + (i >> 8)) & 0xFF for i in range(length))


def rounded(number, to):
    return -(-number // to) * to


def padded(data, to):
    return data + bytes(rounded(len(data), to) - len(data))


def with_checksum(data):
    """The checksum field, bytes 16 to 24, is zero so far."""
    return data[:16] + struct.pack("<Q", xxh3.xxh3_64(data)) + data[24:]


def start_of(magic):
    return magic + struct.pack("<H6xQ", VERSION, 0)


def segment_header():
    fields = start_of(b"LARDERSG") + STORE_ID + struct.pack("<QQQ", SEGMENT, 1_700_000_000, 7)
    return padded(with_checksum(padded(fields, 128)), BLOCK)


# (key, parent, generation, payload, identity, group); the second page, of 0 bytes, stands in front of one that starts
# at a block: its own offset is a multiple of 64 only.
PAGES = (
    (numbered(0x10, 32), bytes(32), 7, payload_of(0, 100), 0, 0),
    (numbered(0x30, 32), numbered(0x10, 32), 9, b"", 1, 0),
    (numbered(0x50, 32), numbered(0x10, 32), 8, payload_of(2, 16484), 0, 1),
)
# (namespace digest, layout fingerprint, pool), in the order of first use
IDENTITIES = (
    (numbered(0x80, 32), numbered(0xA0, 32), KV),
    (numbered(0x80, 32), numbered(0xC0, 32), INDEXER),
)


def identity_bytes():
    return b"".join(namespace + layout + struct.pack("<B15x", pool) for namespace, layout, pool in IDENTITIES)


def page_bytes(page, offset, group):
    key, parent, generation, payload, identity, _ = page
    low, high = xxh3.xxh3_128(payload)
    return key + parent + struct.pack("<QQQQIII20x", low, high, generation, offset, len(payload), identity, group)


def places(head_bytes):
    """Offsets of the payloads, and the end of the last one."""
    offsets, end = [], RECORD_START + head_bytes
    for page in PAGES:
        offset = rounded(end, BLOCK if len(page[3]) >= 16384 else 64)
        offsets.append(offset)
        end = offset + len(page[3])
    return offsets, end


def record(offsets, head_bytes, record_bytes):
    fields = start_of(b"LARDERRC") + STORE_ID
    fields += struct.pack("<QQQQQIIQ", SEGMENT, RECORD_START, record_bytes, head_bytes, BLOCK, len(PAGES),
                          len(IDENTITIES), 0)
    table = b"".join(page_bytes(page, offset, page[5]) for page, offset in zip(PAGES, offsets))
    data = with_checksum(padded(padded(fields, 128) + identity_bytes() + table, 64))
    for page, offset in zip(PAGES, offsets):
        data += bytes(offset - RECORD_START - len(data)) + page[3]
    return padded(data, BLOCK)


def footer_and_trailer(offsets, start):
    footer_bytes = 128 + 80 * len(IDENTITIES) + 128 * len(PAGES)
    fields = start_of(b"LARDERFT") + STORE_ID
    fields += struct.pack("<QQQQQIII", SEGMENT, start, footer_bytes, 9, 1, len(PAGES), len(IDENTITIES), 1)
    table = b"".join(page_bytes(page, offset, 0) for page, offset in zip(PAGES, offsets))
    footer = with_checksum(padded(fields, 128) + identity_bytes() + table)
    fields = start_of(b"LARDERTR") + STORE_ID + struct.pack("<QQQ", SEGMENT, start, footer_bytes)
    return padded(footer, BLOCK) + padded(with_checksum(padded(fields, 128)), BLOCK)


def segment():
    head_bytes = rounded(128 + 80 * len(IDENTITIES) + 128 * len(PAGES), 64)
    offsets, end = places(head_bytes)
    record_bytes = rounded(end - RECORD_START, BLOCK)
    whole = record(offsets, head_bytes, record_bytes)
    assert len(whole) == record_bytes
    return segment_header() + whole + footer_and_trailer(offsets, RECORD_START + record_bytes)


def cleared():
    entries = numbered(0x80, 32) + struct.pack("<Q", 77) + bytes(32) + struct.pack("<Q", 5)
    return with_checksum(start_of(b"LARDERCL") + struct.pack("<Q", 2) + entries)


def format_text():
    return f"larder file store\nformat_version = {VERSION}\nstore_id = {STORE_ID.hex()}\nvolume = 3\n".encode()


def main():
    xxh3.check_self()
    files = {f"segment-{SEGMENT:016x}.larder": segment(), "CLEARED": cleared(), "FORMAT": format_text()}
    differing = []
    for name, data in files.items():
        path = FOLDER / name
        if "--check" not in sys.argv[1:]:
            FOLDER.mkdir(exist_ok=True)
            path.write_bytes(data)
        elif not path.is_file() or path.read_bytes() != data:
            differing.append(name)
    if differing:
        sys.exit("golden files differ from docs/formats.md: " + ", ".join(differing))


main()
