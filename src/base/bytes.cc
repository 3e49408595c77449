// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

namespace larder {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

// 0..15, or -1.
int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string hex_encode(std::span<const std::uint8_t> bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kHexDigits[byte >> 4]);
    text.push_back(kHexDigits[byte & 15]);
  }
  return text;
}

Status hex_decode(std::string_view text, std::span<std::uint8_t> out) {
  if (text.size() != out.size() * 2) {
    return invalid_argument("hex: expected " + std::to_string(out.size() * 2) + " digits, got " +
                            std::to_string(text.size()));
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = digit_value(text[2 * i]);
    const int low = digit_value(text[2 * i + 1]);
    if (high < 0 || low < 0) return invalid_argument("hex: not a hex digit near position " + std::to_string(2 * i));
    out[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return Status::ok();
}

Result<Digest256> Digest256::from_hex(std::string_view text) {
  Digest256 digest;
  LARDER_RETURN_IF_ERROR(hex_decode(text, digest.bytes));
  return digest;
}

}  // namespace larder
