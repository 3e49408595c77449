// SPDX-License-Identifier: Apache-2.0
// The low-level functions are marked deprecated in OpenSSL 3 in favour of EVP, which costs 10-15 % more per page here.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "key/sha256.h"

#include <openssl/sha.h>

#include <new>

namespace larder {
namespace {

SHA256_CTX* context_of(unsigned char* storage) { return std::launder(reinterpret_cast<SHA256_CTX*>(storage)); }

}  // namespace

Sha256::Sha256() {
  static_assert(sizeof(SHA256_CTX) <= sizeof context_ && alignof(SHA256_CTX) <= 8);
  SHA256_Init(new (context_) SHA256_CTX);
}

Sha256& Sha256::update(const void* bytes, std::size_t byte_count) {
  SHA256_Update(context_of(context_), bytes, byte_count);
  return *this;
}

Digest256 Sha256::finish() {
  Digest256 digest;
  static_assert(sizeof digest.bytes == SHA256_DIGEST_LENGTH);
  SHA256_Final(digest.bytes.data(), context_of(context_));
  return digest;
}

Digest256 sha256(std::span<const std::uint8_t> bytes) { return Sha256().update(bytes).finish(); }

Digest256 sha256(std::string_view text) { return Sha256().update(text).finish(); }

}  // namespace larder
