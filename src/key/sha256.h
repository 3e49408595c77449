// SPDX-License-Identifier: Apache-2.0
// SHA-256, the one cryptographic hash of the project: page keys, namespace digests, layout fingerprints.
//
// Purpose: a thin value around libcrypto's block function: no allocation, no fetch, no lock, no shared state.
// Measured (OpenSSL 3.0.19 with SHA-NI, `g++ -O2`, best of 7, one 64-token page = 32 + 256 bytes): the low-level calls
// used here take 182 ns, a pre-fetched EVP digest with a reused context 203 ns, EVP_Q_digest 389 ns.
// Threads: confined; any number of objects may work at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"

namespace larder {

class Sha256 {
 public:
  Sha256();

  // Appends bytes to the message.
  Sha256& update(const void* bytes, std::size_t byte_count);
  Sha256& update(std::span<const std::uint8_t> bytes) { return update(bytes.data(), bytes.size()); }
  Sha256& update(std::string_view text) { return update(text.data(), text.size()); }

  // The digest of all bytes appended. The object is spent afterwards.
  [[nodiscard]] Digest256 finish();

 private:
  // Holds libcrypto's SHA256_CTX (checked in sha256.cc), so that its headers stay out of ours.
  alignas(8) unsigned char context_[112];
};

// Digest of one message.
[[nodiscard]] Digest256 sha256(std::span<const std::uint8_t> bytes);
[[nodiscard]] Digest256 sha256(std::string_view text);

}  // namespace larder
