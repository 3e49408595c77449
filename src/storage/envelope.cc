// SPDX-License-Identifier: Apache-2.0
#include "storage/envelope.h"

#define XXH_STATIC_LINKING_ONLY  // for XXH3_state_t on the stack
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace larder {
namespace {

constexpr char kMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'P', 'G'};
constexpr std::size_t kVersionAt = 8, kPoolAt = 10, kFlagsAt = 11, kHeaderChecksumAt = 12, kKeyAt = 16;
constexpr std::size_t kNamespaceAt = 48, kFingerprintAt = 80, kGenerationAt = 112, kPayloadBytesAt = 120;
constexpr std::size_t kChecksumLowAt = 128, kChecksumHighAt = 136, kGroupAt = 144;

std::uint32_t header_checksum(std::span<const std::byte> bytes) {
  EnvelopeBytes copy;
  std::memcpy(copy.data(), bytes.data(), kEnvelopeBytes);
  store_le<std::uint32_t>(copy.data() + kHeaderChecksumAt, 0);
  return static_cast<std::uint32_t>(XXH3_64bits(copy.data(), copy.size()));
}

void store_digest(std::byte* to, const Digest256& digest) { std::memcpy(to, digest.bytes.data(), digest.bytes.size()); }

Digest256 load_digest(const std::byte* from) {
  Digest256 digest;
  std::memcpy(digest.bytes.data(), from, digest.bytes.size());
  return digest;
}

Checksum128 from_canonical(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

XXH3_state_t* state_of(std::byte* bytes) { return std::launder(reinterpret_cast<XXH3_state_t*>(bytes)); }
const XXH3_state_t* state_of(const std::byte* bytes) {
  return std::launder(reinterpret_cast<const XXH3_state_t*>(bytes));
}

constexpr std::size_t kCopiedAtOnce = std::size_t{16} << 10;  // two fit the first-level cache

void copy_and_hash(std::byte* to, const std::byte* from, std::size_t bytes, PayloadHasher& hasher) {
  for (std::size_t done = 0; done < bytes; done += kCopiedAtOnce) {
    const std::size_t block = std::min(bytes - done, kCopiedAtOnce);
    std::memcpy(to + done, from + done, block);
    hasher.update({to + done, block});
  }
}

Status differs(const char* field) { return corrupt(std::string("page envelope: ") + field + " differs"); }

}  // namespace

PayloadHasher::PayloadHasher() {
  static_assert(sizeof state_ == sizeof(XXH3_state_t) && alignof(PayloadHasher) >= alignof(XXH3_state_t));
  XXH3_128bits_reset(new (state_) XXH3_state_t);
}

void PayloadHasher::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_of(state_), bytes.data(), bytes.size());
}

Checksum128 PayloadHasher::finish() const { return from_canonical(XXH3_128bits_digest(state_of(state_))); }

Checksum128 payload_checksum(std::span<const Segment> payload) {
  // One piece is the common case, and the one-shot call is faster for small pages.
  if (payload.empty()) return from_canonical(XXH3_128bits(nullptr, 0));
  if (payload.size() == 1) return from_canonical(XXH3_128bits(payload[0].data, payload[0].size));
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (const Segment& piece : payload) {
    if (piece.size != 0) XXH3_128bits_update(&state, piece.data, piece.size);
  }
  return from_canonical(XXH3_128bits_digest(&state));
}

Checksum128 gather_payload(std::span<const Segment> payload, std::byte* to) {
  PayloadHasher hasher;
  for (const Segment& piece : payload) {
    copy_and_hash(to, piece.data, piece.size, hasher);
    to += piece.size;
  }
  return hasher.finish();
}

Checksum128 scatter_payload(const std::byte* from, std::span<const Segment> payload) {
  PayloadHasher hasher;
  for (const Segment& piece : payload) {
    copy_and_hash(piece.data, from, piece.size, hasher);
    from += piece.size;
  }
  return hasher.finish();
}

EnvelopeBytes encode_envelope(const Envelope& e) {
  EnvelopeBytes out{};
  std::byte* const to = out.data();
  std::memcpy(to, kMagic, sizeof kMagic);
  store_le<std::uint16_t>(to + kVersionAt, kEnvelopeVersion);
  store_le<std::uint8_t>(to + kPoolAt, static_cast<std::uint8_t>(e.pool));
  store_le<std::uint8_t>(to + kFlagsAt, e.flags);
  store_digest(to + kKeyAt, e.key);
  store_digest(to + kNamespaceAt, e.namespace_digest);
  store_digest(to + kFingerprintAt, e.layout_fingerprint);
  store_le<std::uint64_t>(to + kGenerationAt, e.generation);
  store_le<std::uint64_t>(to + kPayloadBytesAt, e.payload_bytes);
  store_le<std::uint64_t>(to + kChecksumLowAt, e.checksum.low);
  store_le<std::uint64_t>(to + kChecksumHighAt, e.checksum.high);
  store_le<std::uint64_t>(to + kGroupAt, e.group);
  store_le<std::uint32_t>(to + kHeaderChecksumAt, header_checksum(out));
  return out;
}

Result<Envelope> decode_envelope(std::span<const std::byte> bytes) {
  if (bytes.size() < kEnvelopeBytes) return corrupt("page envelope: shorter than 160 bytes");
  const std::byte* const from = bytes.data();
  if (std::memcmp(from, kMagic, sizeof kMagic) != 0) return corrupt("page envelope: no magic");
  if (load_le<std::uint16_t>(from + kVersionAt) != kEnvelopeVersion) return corrupt("page envelope: unknown version");
  if (load_le<std::uint32_t>(from + kHeaderChecksumAt) != header_checksum(bytes)) {
    return corrupt("page envelope: header checksum differs");
  }
  const auto pool = load_le<std::uint8_t>(from + kPoolAt);
  if (pool >= kPoolNumberCount) return corrupt("page envelope: unknown pool " + std::to_string(pool));
  Envelope e;
  e.pool = static_cast<PoolName>(pool);
  e.flags = load_le<std::uint8_t>(from + kFlagsAt);
  e.key = load_digest(from + kKeyAt);
  e.namespace_digest = load_digest(from + kNamespaceAt);
  e.layout_fingerprint = load_digest(from + kFingerprintAt);
  e.generation = load_le<std::uint64_t>(from + kGenerationAt);
  e.payload_bytes = load_le<std::uint64_t>(from + kPayloadBytesAt);
  e.checksum = {load_le<std::uint64_t>(from + kChecksumLowAt), load_le<std::uint64_t>(from + kChecksumHighAt)};
  e.group = load_le<std::uint64_t>(from + kGroupAt);
  return e;
}

Status verify_fields(const ExpectedPage& expected, const Envelope& found) {
  if (found.pool != expected.pool) return differs("pool");
  if (found.key != expected.key) return differs("page key");
  if (found.namespace_digest != expected.namespace_digest) return differs("namespace digest");
  if (found.layout_fingerprint != expected.layout_fingerprint) return differs("layout fingerprint");
  if (found.payload_bytes != expected.payload_bytes) return differs("payload length");
  return Status::ok();
}

Status verify_checksum(const Envelope& found, const Checksum128& payload) {
  return payload == found.checksum ? Status::ok() : differs("payload checksum");
}

Status verify_page(const ExpectedPage& expected, std::span<const std::byte> envelope,
                   std::span<const Segment> payload) {
  LARDER_ASSIGN_OR_RETURN(const Envelope found, decode_envelope(envelope));
  LARDER_RETURN_IF_ERROR(verify_fields(expected, found));
  std::size_t given = 0;
  for (const Segment& piece : payload) given += piece.size;
  if (given != expected.payload_bytes) return differs("length of the buffers");
  return verify_checksum(found, payload_checksum(payload));
}

}  // namespace larder
