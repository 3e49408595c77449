// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/slot_bytes.h"

#include <cstring>
#include <string>

#include "base/defect.h"
#include "storage/backend.h"

namespace larder::hf3fs {
namespace {

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
  Envelope envelope = transfer.envelope;
  envelope.checksum = gather_payload(transfer.payload, slot + kHeadBytes);
  const std::uint64_t end = kHeadBytes + payload_bytes(transfer.payload);
  std::memset(slot + end, 0, slot_bytes - end);
  const EnvelopeBytes head = encode_envelope(envelope);
  std::memcpy(slot, head.data(), head.size());
  std::memset(slot + head.size(), 0, kHeadBytes - head.size());
}

Status take_out(const PageTransfer& transfer, const std::byte* slot) {
  LARDER_ASSIGN_OR_RETURN(const Envelope found, read_head(transfer.envelope, slot));
  const Checksum128 copied = scatter_payload(slot + kHeadBytes, transfer.payload);
  return defect(Defect::kEnvelopeSkipped) ? Status::ok() : verify_checksum(found, copied);
}

}  // namespace larder::hf3fs
