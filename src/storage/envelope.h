// SPDX-License-Identifier: Apache-2.0
// The page envelope (rule 1: never wrong bytes): 160 bytes in front of every stored page, on every backend.
//
// Byte layout, little-endian, version 1 (docs/formats.md, golden file in envelope_test.cc):
//   0    8  magic "LARDERPG"
//   8    2  format version (1)
//   10   1  pool (PoolName)
//   11   1  flags (bit 0: last item of its group, i.e. the commit mark)
//   12   4  header checksum: low 32 bits of XXH3-64 over the 160 bytes with this field zero
//   16   32 page key
//   48   32 namespace digest
//   80   32 layout fingerprint of the pool
//   112  8  generation: grows with every write of this store
//   120  8  payload length in bytes
//   128  16 payload checksum: XXH3-128 over the payload
//   144  8  group id (the commit record it belongs to)
//   152  8  reserved, zero
//
// Threads: pure. Cost: header ~30 ns; payload at XXH3 speed (tens of GB/s).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "key/page_key.h"
#include "model/pool_spec.h"
#include "pool/host_pools.h"

namespace larder {

inline constexpr std::size_t kEnvelopeBytes = 160;
inline constexpr std::uint16_t kEnvelopeVersion = 1;
inline constexpr std::uint8_t kEnvelopeCommitMark = 1;  // flags bit 0
using EnvelopeBytes = std::array<std::byte, kEnvelopeBytes>;

struct Checksum128 {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Checksum128&, const Checksum128&) = default;
};
// XXH3-128 over the segments in order.
[[nodiscard]] Checksum128 payload_checksum(std::span<const Segment> payload);

// The same checksum over bytes that come in pieces (recovery reads a payload through a bounded buffer).
// Threads: confined. Cost: no allocation.
class PayloadHasher {
 public:
  PayloadHasher();
  PayloadHasher(const PayloadHasher&) = delete;
  PayloadHasher& operator=(const PayloadHasher&) = delete;
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] Checksum128 finish() const;

 private:
  alignas(64) std::byte state_[576];  // XXH3_state_t: its header stays out of this one
};

// Copies the payload to `to`, in one piece, or back from there. The checksum of what was copied, as it lies now: each
// block is copied and then hashed where it was copied to, while the processor's cache has it. So what is verified is
// what the reader gets, whatever anybody still does to `from`.
[[nodiscard]] Checksum128 gather_payload(std::span<const Segment> payload, std::byte* to);
[[nodiscard]] Checksum128 scatter_payload(const std::byte* from, std::span<const Segment> payload);

struct Envelope {
  PoolName pool = PoolName::kKv;
  std::uint8_t flags = 0;
  PageKey key;
  Digest256 namespace_digest;
  Digest256 layout_fingerprint;
  std::uint64_t generation = 0;
  std::uint64_t payload_bytes = 0;
  Checksum128 checksum;
  std::uint64_t group = 0;
};

[[nodiscard]] EnvelopeBytes encode_envelope(const Envelope& e);
// kCorrupt: magic, version, header checksum or an unknown pool; says which.
[[nodiscard]] Result<Envelope> decode_envelope(std::span<const std::byte> bytes);

// What the reader knows must be there.
struct ExpectedPage {
  PoolName pool;
  PageKey key;
  Digest256 namespace_digest;
  Digest256 layout_fingerprint;
  std::uint64_t payload_bytes;
};
// All but the payload, whose checksum is found.checksum. kCorrupt names the first field that differs.
[[nodiscard]] Status verify_fields(const ExpectedPage& expected, const Envelope& found);
[[nodiscard]] Status verify_checksum(const Envelope& found, const Checksum128& payload);
// Full verification of a loaded page: every field and the payload checksum. kCorrupt names the first that differs.
[[nodiscard]] Status verify_page(const ExpectedPage& expected, std::span<const std::byte> envelope,
                                 std::span<const Segment> payload);

}  // namespace larder
