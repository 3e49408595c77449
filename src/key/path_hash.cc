// SPDX-License-Identifier: Apache-2.0
#include "key/path_hash.h"

#include <array>
#include <cstddef>

#include "base/mix.h"
#include "key/sha256.h"

namespace larder {

namespace {

constexpr std::uint64_t kBase = 0x1fb7e151628aed2d;  // odd, so that it has an inverse; 5 modulo 8: of the largest order

constexpr std::uint64_t power(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}
constexpr std::uint64_t kInverse = power(kBase, (std::uint64_t{1} << 62) - 1);  // x^(2^62) is 1 for each odd x
static_assert(kBase * kInverse == 1);

constexpr std::size_t kBlock = 16;
// kPowers[i]: of the token that i others follow in a block; the last one: of what stands before the block.
constexpr auto kPowers = [] {
  std::array<std::uint64_t, kBlock + 1> powers{1};
  for (std::size_t i = 1; i <= kBlock; ++i) powers[i] = powers[i - 1] * kBase;
  return powers;
}();

// No token counts as 0, so that paths of different lengths differ.
constexpr std::uint64_t digit(TokenId token) { return std::uint64_t{token} + 1; }

// What the 1 in each digit() of a block adds up to.
constexpr std::uint64_t kOnes = [] {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) sum += kPowers[i];
  return sum;
}();

// The tokens of a block are multiplied independently of each other.
std::uint64_t grow(std::uint64_t value, std::span<const TokenId> tokens) {
  std::size_t i = 0;
  for (; i + kBlock <= tokens.size(); i += kBlock) {
    const TokenId* const block = tokens.data() + i;
    std::uint64_t sum = kOnes;
#pragma GCC unroll 16
    for (std::size_t k = 0; k < kBlock; ++k) sum += block[k] * kPowers[kBlock - 1 - k];
    value = value * kPowers[kBlock] + sum;
  }
  for (; i < tokens.size(); ++i) value = value * kBase + digit(tokens[i]);
  return value;
}

}  // namespace

PathHash PathHash::of_space(std::string_view adapter, std::string_view salt) {
  const std::uint64_t length = adapter.size();  // where the one ends and the other begins
  Sha256 hash;
  hash.update(&length, sizeof length).update(adapter.data(), adapter.size()).update(salt.data(), salt.size());
  return PathHash(hash.finish().prefix64());
}

void PathHash::append(std::span<const TokenId> tokens) { value_ = grow(value_, tokens); }

void PathHash::remove(std::span<const TokenId> tokens) {
  value_ = (value_ - grow(0, tokens)) * power(kInverse, tokens.size());
}

std::uint64_t PathHash::spread() const { return mix64(value_ + 0x9e3779b97f4a7c15); }

}  // namespace larder
