// SPDX-License-Identifier: Apache-2.0
#include "key/hmac.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace larder {
namespace {

constexpr std::size_t kHmacBlockBytes = 64;

std::string_view text_of_digest(const Digest256& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace

HmacSha256::HmacSha256(std::string_view key) {
  std::array<unsigned char, kHmacBlockBytes> block{};
  if (key.size() > block.size()) {
    const Digest256 digest = sha256(key);
    std::memcpy(block.data(), digest.bytes.data(), digest.bytes.size());
  } else if (!key.empty()) {
    std::memcpy(block.data(), key.data(), key.size());
  }
  for (unsigned char& byte : block) byte ^= 0x36;
  inner_.update(block.data(), block.size());
  for (unsigned char& byte : block) byte ^= 0x36 ^ 0x5c;
  outer_.update(block.data(), block.size());
}

Digest256 HmacSha256::of(std::initializer_list<std::string_view> pieces) const {
  Sha256 inner = inner_;
  for (const std::string_view piece : pieces) inner.update(piece);
  const Digest256 digest = inner.finish();
  return Sha256(outer_).update(text_of_digest(digest)).finish();
}

bool are_equal_macs(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace larder
