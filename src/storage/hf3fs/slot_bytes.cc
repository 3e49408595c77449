#include "storage/hf3fs/slot_bytes.h"

#include <cstring>
#include <string>

#include "base/defect.h"

namespace larder::hf3fs {

void fill_slot(const PageTransfer& transfer, std::byte* slot, std::uint64_t slot_bytes) {
  Envelope envelope = transfer.envelope;
  envelope.checksum = payload_checksum(transfer.payload);
  const EnvelopeBytes head = encode_envelope(envelope);
  std::memcpy(slot, head.data(), head.size());
  std::memset(slot + head.size(), 0, kHeadBytes - head.size());
  std::byte* at = slot + kHeadBytes;
  for (const Segment& piece : transfer.payload) {
    if (piece.size != 0) std::memcpy(at, piece.data, piece.size);
    at += piece.size;
  }
  std::memset(at, 0, static_cast<std::size_t>(slot + slot_bytes - at));
}

Status take_out(const PageTransfer& transfer, std::byte* slot) {
  const Envelope& wanted = transfer.envelope;
  const std::span<const std::byte> head(slot, kEnvelopeBytes);
  const Result<Envelope> found = decode_envelope(head);
  if (!found.is_ok()) return found.status();
  if (found->generation != wanted.generation && !defect(Defect::kGenerationIgnored)) {
    return not_found("hf3fs: the slot holds generation " + std::to_string(found->generation) + ", not " +
                     std::to_string(wanted.generation));
  }
  const ExpectedPage expected{wanted.pool, wanted.key, wanted.namespace_digest, wanted.layout_fingerprint,
                              wanted.payload_bytes};
  const Segment staged{slot + kHeadBytes, wanted.payload_bytes};
  if (!defect(Defect::kEnvelopeSkipped)) LARDER_RETURN_IF_ERROR(verify_page(expected, head, {&staged, 1}));
  const std::byte* from = staged.data;
  for (const Segment& piece : transfer.payload) {
    if (piece.size != 0) std::memcpy(piece.data, from, piece.size);
    from += piece.size;
  }
  return Status::ok();
}

}  // namespace larder::hf3fs
