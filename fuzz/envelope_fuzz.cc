// SPDX-License-Identifier: Apache-2.0
// Page envelopes (storage/envelope.h): 160 bytes and a payload.
//
// Fed: a mode, then bytes. As they are; or with the header's checksum made right, so that what lies behind it is
// reached; or with the payload's, too, so that the page is whole.
// Checked: refusals are kCorrupt and say why. What decodes is encoded to the same bytes (the reserved ones come back as
// zeros) and decoded to the same fields. A page verifies exactly if its payload has the checksum that the envelope
// names, in one piece or several. Of a whole page any changed byte that the checksums cover is noticed.
#include <xxhash.h>

#include "fuzz/fuzz_input.h"
#include "storage/envelope.h"

namespace larder::fuzz {
namespace {

constexpr std::size_t kHeaderChecksumAt = 12, kPayloadBytesAt = 120, kChecksumAt = 128, kReservedAt = 152;

void seal_header(std::span<std::byte> envelope) {
  store_le<std::uint32_t>(envelope.data() + kHeaderChecksumAt, 0);
  store_le<std::uint32_t>(envelope.data() + kHeaderChecksumAt,
                          static_cast<std::uint32_t>(XXH3_64bits(envelope.data(), kEnvelopeBytes)));
}

// The payload in up to four pieces, some of them perhaps empty.
std::vector<Segment> pieces_of(std::span<std::byte> payload, FuzzInput& input) {
  std::vector<Segment> pieces;
  for (int i = 0; i < 3; ++i) {
    const auto size = static_cast<std::size_t>(input.below(payload.size() + 1));
    pieces.push_back({payload.data(), size});
    payload = payload.subspan(size);
  }
  pieces.push_back({payload.data(), payload.size()});
  return pieces;
}

ExpectedPage expected_of(const Envelope& e, std::uint64_t payload_bytes) {
  return {e.pool, e.key, e.namespace_digest, e.layout_fingerprint, payload_bytes};
}

void check_round_trip(std::span<const std::byte> envelope, const Envelope& decoded) {
  std::vector<std::byte> wanted = copy_of(envelope.first(kEnvelopeBytes));
  store_le<std::uint64_t>(wanted.data() + kReservedAt, 0);
  seal_header(wanted);
  fuzz_check(are_equal(encode_envelope(decoded), wanted), "decode and encode give other bytes");
}

void check_payload(const Envelope& decoded, std::span<const std::byte> envelope, std::span<std::byte> payload,
                   FuzzInput& input) {
  const std::vector<Segment> pieces = pieces_of(payload, input);
  const Segment whole{payload.data(), payload.size()};
  const Checksum128 checksum = payload_checksum({&whole, 1});
  fuzz_check(payload_checksum(pieces) == checksum, "the checksum depends on the pieces");
  PayloadHasher hasher;
  for (const Segment& piece : pieces) hasher.update({piece.data, piece.size});
  fuzz_check(hasher.finish() == checksum, "the hasher's checksum is another");

  const bool is_right = decoded.checksum == checksum && decoded.payload_bytes == payload.size();
  const Status status = verify_page(expected_of(decoded, payload.size()), envelope, pieces);
  fuzz_check(status.is_ok() == is_right, "a page verifies against its checksum, or does not although it should");
  check_explains(status, "verify_page");
}

// Any one changed byte makes a whole page a corrupt one.
void check_damage(const Envelope& decoded, std::span<std::byte> envelope, std::span<std::byte> payload,
                  FuzzInput& input) {
  const ExpectedPage expected = expected_of(decoded, payload.size());
  const Segment whole{payload.data(), payload.size()};
  fuzz_check(verify_page(expected, envelope, {&whole, 1}).is_ok(), "a whole page is refused");
  const auto at = static_cast<std::size_t>(input.below(kEnvelopeBytes + payload.size()));
  std::byte& byte = at < kEnvelopeBytes ? envelope[at] : payload[at - kEnvelopeBytes];
  byte ^= static_cast<std::byte>(1 + input.below(255));
  const Status status = verify_page(expected, envelope, {&whole, 1});
  fuzz_check(status.code() == StatusCode::kCorrupt, "a changed byte is not noticed");
}

void run(FuzzInput input) {
  const std::uint64_t mode = input.below(3);
  FuzzInput choices = input.part(8);
  if (input.empty()) return;
  std::vector<std::byte> bytes = copy_of(input.rest());
  if (bytes.size() < kEnvelopeBytes) {
    fuzz_check(decode_envelope(bytes).status().code() == StatusCode::kCorrupt, "a short envelope is taken");
    return;
  }
  const std::span<std::byte> envelope = std::span(bytes).first(kEnvelopeBytes);
  std::vector<std::byte> payload = copy_of(std::span(bytes).subspan(kEnvelopeBytes));
  if (mode == 2) {
    const Segment whole{payload.data(), payload.size()};
    const Checksum128 checksum = payload_checksum({&whole, 1});
    store_le<std::uint64_t>(envelope.data() + kPayloadBytesAt, payload.size());
    store_le<std::uint64_t>(envelope.data() + kChecksumAt, checksum.low);
    store_le<std::uint64_t>(envelope.data() + kChecksumAt + 8, checksum.high);
  }
  if (mode >= 1) seal_header(envelope);
  const Result<Envelope> decoded = decode_envelope(bytes);
  if (!decoded.is_ok()) {
    fuzz_check(decoded.status().code() == StatusCode::kCorrupt, "a refusal is not kCorrupt");
    check_explains(decoded.status(), "decode_envelope");
    return;
  }
  check_round_trip(envelope, *decoded);
  check_payload(*decoded, envelope, payload, choices);
  if (mode == 2) check_damage(*decoded, envelope, payload, choices);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
