# SPDX-License-Identifier: Apache-2.0
"""XXH3 (seed 0) in plain Python, for scripts that must not share code with what they check.

Written from the description of the algorithm: 64 bits for 17 to 128 bytes and for more than 240, 128 bits for none, 17
to 128 and more than 240. Run as a program it checks itself against the published test vectors of xxHash.
"""

MASK64 = (1 << 64) - 1
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
STRIPE = 64
STRIPES_PER_BLOCK = (len(SECRET) - STRIPE) // 8


def read64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def folded_product(a, b):
    product = a * b
    return (product & MASK64) ^ (product >> 64)


def avalanche3(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & MASK64
    return h ^ (h >> 32)


def avalanche64(h):
    h ^= h >> 33
    h = h * PRIME64_2 & MASK64
    h ^= h >> 29
    h = h * PRIME64_3 & MASK64
    return h ^ (h >> 32)


def mix16(data, at, secret_at):
    return folded_product(read64(data, at) ^ read64(SECRET, secret_at),
                          read64(data, at + 8) ^ read64(SECRET, secret_at + 8))


def medium64(data):
    length = len(data)
    h = length * PRIME64_1 & MASK64
    for i in range((length - 1) // 32, -1, -1):
        h += mix16(data, 16 * i, 32 * i) + mix16(data, length - 16 * (i + 1), 32 * i + 16)
    return avalanche3(h & MASK64)


def medium128(data):
    length = len(data)
    low, high = length * PRIME64_1 & MASK64, 0
    for i in range((length - 1) // 32, -1, -1):
        front, back = 16 * i, length - 16 * (i + 1)
        low = (low + mix16(data, front, 32 * i)) & MASK64
        low ^= (read64(data, back) + read64(data, back + 8)) & MASK64
        high = (high + mix16(data, back, 32 * i + 16)) & MASK64
        high ^= (read64(data, front) + read64(data, front + 8)) & MASK64
    h_low = (low + high) & MASK64
    h_high = (low * PRIME64_1 + high * PRIME64_4 + length * PRIME64_2) & MASK64
    return avalanche3(h_low), -avalanche3(h_high) & MASK64


def accumulate(lanes, data, at, secret_at):
    for i in range(8):
        value = read64(data, at + 8 * i)
        key = value ^ read64(SECRET, secret_at + 8 * i)
        lanes[i ^ 1] = (lanes[i ^ 1] + value) & MASK64
        lanes[i] = (lanes[i] + (key & 0xFFFFFFFF) * (key >> 32)) & MASK64


def scramble(lanes):
    for i in range(8):
        lane = lanes[i]
        lane ^= lane >> 47
        lane ^= read64(SECRET, len(SECRET) - STRIPE + 8 * i)
        lanes[i] = lane * PRIME32_1 & MASK64


def long_lanes(data):
    lanes = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1]
    last = (len(data) - 1) // STRIPE  # the last stripe is read from the end, and by itself
    for stripe in range(last):
        in_block = stripe % STRIPES_PER_BLOCK
        accumulate(lanes, data, stripe * STRIPE, 8 * in_block)
        if in_block == STRIPES_PER_BLOCK - 1:
            scramble(lanes)
    accumulate(lanes, data, len(data) - STRIPE, len(SECRET) - STRIPE - 7)
    return lanes


def merged(lanes, secret_at, start):
    h = start
    for i in range(4):
        h += folded_product(lanes[2 * i] ^ read64(SECRET, secret_at + 16 * i),
                            lanes[2 * i + 1] ^ read64(SECRET, secret_at + 16 * i + 8))
    return avalanche3(h & MASK64)


def xxh3_64(data):
    if 17 <= len(data) <= 128:
        return medium64(data)
    if len(data) > 240:
        return merged(long_lanes(data), 11, len(data) * PRIME64_1 & MASK64)
    raise ValueError(f"xxh3_64 of {len(data)} bytes is not written")


def xxh3_128(data):
    """(low 64 bits, high 64 bits)"""
    length = len(data)
    if length == 0:
        return (avalanche64(read64(SECRET, 64) ^ read64(SECRET, 72)),
                avalanche64(read64(SECRET, 80) ^ read64(SECRET, 88)))
    if 17 <= length <= 128:
        return medium128(data)
    if length > 240:
        lanes = long_lanes(data)
        return (merged(lanes, 11, length * PRIME64_1 & MASK64),
                merged(lanes, len(SECRET) - STRIPE - 11, ~(length * PRIME64_2) & MASK64))
    raise ValueError(f"xxh3_128 of {length} bytes is not written")


def sanity_buffer(length):
    """The input of xxHash's own test vectors."""
    out, generator = bytearray(), PRIME32_1
    for _ in range(length):
        out.append(generator >> 56)
        generator = generator * 0x9E3779B185EBCA8D & MASK64
    return bytes(out)


def check_self():
    """Raises ValueError unless the published vectors (xxHash, sanity test, seed 0) come out."""
    vectors64 = {24: 0xA3FE70BF9D3510EB, 48: 0x397DA259ECBA1F11, 80: 0xBCDEFBBB2C47C90A, 403: 0xCDEB804D65C6DEA4,
                 512: 0x617E49599013CB6B, 2048: 0xDD59E2C3A5F038E0, 2240: 0x6E73A90539CF2948}
    vectors128 = {0: (0x6001C324468D497F, 0x99AA06D3014798D8), 48: (0xF942219AED80F67B, 0xA002AC4E5478227E),
                  81: (0x5E8BAFB9F95FB803, 0x4952F58181AB0042), 403: (0xCDEB804D65C6DEA4, 0x1B6DE21E332DD73D),
                  512: (0x617E49599013CB6B, 0x18D2D110DCC9BCA1)}
    for length, wanted in vectors64.items():
        if xxh3_64(sanity_buffer(length)) != wanted:
            raise ValueError(f"xxh3_64 of {length} bytes differs from the published value")
    for length, wanted in vectors128.items():
        if xxh3_128(sanity_buffer(length)) != wanted:
            raise ValueError(f"xxh3_128 of {length} bytes differs from the published value")


if __name__ == "__main__":
    check_self()
