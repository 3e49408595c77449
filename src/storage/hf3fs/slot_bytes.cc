#include "storage/hf3fs/slot_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/defect.h"

namespace larder::hf3fs {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{16} << 10;  // copied, then hashed: two fit the first-level cache

// The checksum that the payload must have.
Result<Checksum128> check_head(const Envelope& wanted, const std::byte* slot) {
  EnvelopeBytes head;
  std::memcpy(head.data(), slot, head.size());
  const Result<Envelope> found = decode_envelope(head);
  if (!found.is_ok()) return found.status();
  if (found->generation != wanted.generation && !defect(Defect::kGenerationIgnored)) {
    return not_found("hf3fs: the slot holds generation " + std::to_string(found->generation) + ", not " +
                     std::to_string(wanted.generation));
  }
  if (defect(Defect::kEnvelopeSkipped)) return found->checksum;
  return verify_head(
      {wanted.pool, wanted.key, wanted.namespace_digest, wanted.layout_fingerprint, wanted.payload_bytes}, head);
}

}  // namespace

void fill_slot(const PageTransfer& transfer, std::byte* slot, std::uint64_t slot_bytes) {
  PayloadHasher hasher;
  std::byte* to = slot + kHeadBytes;
  for (const Segment& piece : transfer.payload) {
    for (std::uint64_t done = 0; done < piece.size;) {
      const std::uint64_t block = std::min(piece.size - done, kBlock);
      std::memcpy(to, piece.data + done, block);
      hasher.update({to, block});
      done += block;
      to += block;
    }
  }
  std::memset(to, 0, static_cast<std::size_t>(slot + slot_bytes - to));
  Envelope envelope = transfer.envelope;
  envelope.checksum = hasher.finish();
  const EnvelopeBytes head = encode_envelope(envelope);
  std::memcpy(slot, head.data(), head.size());
  std::memset(slot + head.size(), 0, kHeadBytes - head.size());
}

Status take_out(const PageTransfer& transfer, const std::byte* slot) {
  const Result<Checksum128> checksum = check_head(transfer.envelope, slot);
  if (!checksum.is_ok()) return checksum.status();
  const std::byte* from = slot + kHeadBytes;
  PayloadHasher hasher;
  for (const Segment& piece : transfer.payload) {
    for (std::uint64_t done = 0; done < piece.size;) {
      const std::uint64_t block = std::min(piece.size - done, kBlock);
      std::memcpy(piece.data + done, from, block);
      hasher.update({piece.data + done, block});
      done += block;
      from += block;
    }
  }
  return defect(Defect::kEnvelopeSkipped) ? Status::ok() : verify_payload(*checksum, hasher.finish());
}

}  // namespace larder::hf3fs
