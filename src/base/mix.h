// SPDX-License-Identifier: Apache-2.0
// Spreads a number over 64 bits, for hash tables and sampling. No cryptography: who chooses the input chooses the
// output.
#pragma once

#include <cstdint>

namespace larder {

// Finalizer of splitmix64 (Vigna): every input bit reaches every output bit, and no two inputs have one output.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace larder
