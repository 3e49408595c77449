// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/slot_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/defect.h"

namespace larder::hf3fs {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{16} << 10;  // copied, then hashed: two fit the first-level cache

// Hashes the copy.
void copy(std::byte* to, const std::byte* from, std::uint64_t bytes, PayloadHasher& hasher) {
  for (std::uint64_t done = 0; done < bytes; done += kBlock) {
    const std::uint64_t block = std::min(bytes - done, kBlock);
    std::memcpy(to + done, from + done, block);
    hasher.update({to + done, block});
  }
}

// The envelope, if it is that of the page that was asked for.
Result<Envelope> read_head(const Envelope& wanted, const std::byte* slot) {
  EnvelopeBytes head;
  std::memcpy(head.data(), slot, head.size());
  Result<Envelope> found = decode_envelope(head);
  if (!found.is_ok()) return found;
  if (found->generation != wanted.generation && !defect(Defect::kGenerationIgnored)) {
    return not_found("hf3fs: the slot holds generation " + std::to_string(found->generation) + ", not " +
                     std::to_string(wanted.generation));
  }
  if (defect(Defect::kEnvelopeSkipped)) return found;
  LARDER_RETURN_IF_ERROR(verify_fields(
      {wanted.pool, wanted.key, wanted.namespace_digest, wanted.layout_fingerprint, wanted.payload_bytes}, *found));
  return found;
}

}  // namespace

void fill_slot(const PageTransfer& transfer, std::byte* slot, std::uint64_t slot_bytes) {
  PayloadHasher hasher;
  std::byte* to = slot + kHeadBytes;
  for (const Segment& piece : transfer.payload) {
    copy(to, piece.data, piece.size, hasher);
    to += piece.size;
  }
  std::memset(to, 0, static_cast<std::size_t>(slot + slot_bytes - to));
  Envelope envelope = transfer.envelope;
  envelope.checksum = hasher.finish();
  const EnvelopeBytes head = encode_envelope(envelope);
  std::memcpy(slot, head.data(), head.size());
  std::memset(slot + head.size(), 0, kHeadBytes - head.size());
}

Status take_out(const PageTransfer& transfer, const std::byte* slot) {
  const Result<Envelope> found = read_head(transfer.envelope, slot);
  if (!found.is_ok()) return found.status();
  PayloadHasher hasher;
  const std::byte* from = slot + kHeadBytes;
  for (const Segment& piece : transfer.payload) {
    copy(piece.data, from, piece.size, hasher);
    from += piece.size;
  }
  return defect(Defect::kEnvelopeSkipped) ? Status::ok() : verify_checksum(*found, hasher.finish());
}

}  // namespace larder::hf3fs
