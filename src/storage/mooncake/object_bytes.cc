// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/object_bytes.h"

#include <algorithm>
#include <cstring>

namespace larder::mooncake {
namespace {

constexpr std::size_t kCopiedAtOnce = std::size_t{16} << 10;

// Hashes the copy: what is verified is what the reader gets.
void copy_and_hash(std::byte* to, const std::byte* from, std::size_t bytes, PayloadHasher& hasher) {
  for (std::size_t done = 0; done < bytes; done += kCopiedAtOnce) {
    const std::size_t block = std::min(bytes - done, kCopiedAtOnce);
    std::memcpy(to + done, from + done, block);
    hasher.update({to + done, block});
  }
}

}  // namespace

void fill_object(Envelope envelope, std::span<const Segment> payload, std::byte* to) {
  PayloadHasher hasher;
  std::byte* at = to + kEnvelopeBytes;
  for (const Segment& piece : payload) {
    copy_and_hash(at, piece.data, piece.size, hasher);
    at += piece.size;
  }
  envelope.checksum = hasher.finish();
  const EnvelopeBytes head = encode_envelope(envelope);
  std::memcpy(to, head.data(), head.size());
}

Status take_object(const ExpectedPage& expected, const std::byte* from, std::span<const Segment> payload) {
  const Result<Envelope> found = decode_envelope({from, kEnvelopeBytes});
  if (!found.is_ok()) return found.status();
  LARDER_RETURN_IF_ERROR(verify_fields(expected, *found));
  PayloadHasher hasher;
  from += kEnvelopeBytes;
  for (const Segment& piece : payload) {
    copy_and_hash(piece.data, from, piece.size, hasher);
    from += piece.size;
  }
  return verify_checksum(*found, hasher.finish());
}

}  // namespace larder::mooncake
