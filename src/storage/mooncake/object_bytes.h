// SPDX-License-Identifier: Apache-2.0
// The bytes of an object: the page's envelope, then its payload. So no object is ever empty, which the store refuses.
//
// Threads: pure. Cost: one pass over the payload, copied and hashed by blocks that fit a cache.
#pragma once

#include <span>

#include "storage/backend.h"

namespace larder::mooncake {

[[nodiscard]] constexpr std::uint64_t object_bytes(std::uint64_t payload) { return kEnvelopeBytes + payload; }

// Writes object_bytes(envelope.payload_bytes) bytes at `to`; fills in the checksum.
void fill_object(Envelope envelope, std::span<const Segment> payload, std::byte* to);

// Copies the payload out. kCorrupt: these are not the bytes of that page; the payload is undefined then.
[[nodiscard]] Status take_object(const ExpectedPage& expected, const std::byte* from, std::span<const Segment> payload);

}  // namespace larder::mooncake
