// SPDX-License-Identifier: Apache-2.0
// Bytes: little-endian numbers, hex, and the 256-bit digest.
//
// Everything on disk and on the wire is little-endian. No call here depends on alignment.
// Threads: pure functions and values.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace larder {

static_assert(std::endian::native == std::endian::little, "Larder is built for little-endian machines");

// Reads an unsigned integer from sizeof(T) bytes at `from`.
template <std::unsigned_integral T>
[[nodiscard]] inline T load_le(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Writes sizeof(T) bytes at `to`.
template <std::unsigned_integral T>
inline void store_le(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Two lower-case digits per byte.
[[nodiscard]] std::string hex_encode(std::span<const std::uint8_t> bytes);
// Either case. kInvalidArgument unless `text` is exactly 2 * out.size() hex digits; `out` is then unspecified.
[[nodiscard]] Status hex_decode(std::string_view text, std::span<std::uint8_t> out);

// A SHA-256 digest: a page key, a namespace, a layout fingerprint. All zero by default, which no digest in use equals.
struct Digest256 {
  std::array<std::uint8_t, 32> bytes{};

  friend auto operator<=>(const Digest256&, const Digest256&) = default;
  [[nodiscard]] bool is_zero() const { return *this == Digest256{}; }
  // 64 lower-case digits.
  [[nodiscard]] std::string hex() const { return hex_encode(bytes); }
  // kInvalidArgument unless `text` is 64 hex digits.
  [[nodiscard]] static Result<Digest256> from_hex(std::string_view text);
  // The first 8 bytes as a number: uniform, good for hash tables and sharding.
  [[nodiscard]] std::uint64_t prefix64() const { return load_le<std::uint64_t>(bytes.data()); }
};

}  // namespace larder

template <>
struct std::hash<larder::Digest256> {
  std::size_t operator()(const larder::Digest256& digest) const noexcept { return digest.prefix64(); }
};
