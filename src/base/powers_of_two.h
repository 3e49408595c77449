// SPDX-License-Identifier: Apache-2.0
// Powers of two as doubles, without calls of the C library: the same on every processor.
#pragma once

#include <bit>
#include <cstdint>

namespace larder {

// 2^exponent. Precondition: -1022 <= exponent <= 1023.
[[nodiscard]] constexpr double two_to(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// The exponent of the greatest power of two that is not above `value`. Precondition: value is finite and at least
// 2^-1022.
[[nodiscard]] constexpr int exponent_of(double value) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7ff) - 1023;
}

}  // namespace larder
