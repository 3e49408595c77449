// SPDX-License-Identifier: Apache-2.0
#include "key/path_hash.h"

#include <array>
#include <cstddef>

#include "base/mix.h"

namespace larder {

namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t kModulus =
    (std::uint64_t{1} << 61) - 1;  // a Mersenne prime: reduced by a shift and an addition
constexpr std::uint64_t kUnseeded = 0x243f6a8885a308d3 % kModulus;
constexpr std::uint64_t kBase = 0x1fb7e151628aed2a % kModulus;

constexpr std::uint64_t reduce(Wide x) {
  const Wide folded = (x & kModulus) + (x >> 61);
  const auto once = static_cast<std::uint64_t>((folded & kModulus) + (folded >> 61));
  return once >= kModulus ? once - kModulus : once;
}
constexpr std::uint64_t times(std::uint64_t a, std::uint64_t b) { return reduce(Wide{a} * b); }
constexpr std::uint64_t power(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1, base = times(base, base)) {
    if ((exponent & 1) != 0) result = times(result, base);
  }
  return result;
}

constexpr std::size_t kBlock = 32;
// kPowers[i]: of the token that i others follow in a block; the last one: of what stands before the block.
constexpr auto kPowers = [] {
  std::array<std::uint64_t, kBlock + 1> powers{1};
  for (std::size_t i = 1; i <= kBlock; ++i) powers[i] = times(powers[i - 1], kBase);
  return powers;
}();
constexpr std::uint64_t kInverse = power(kBase, kModulus - 2);  // Fermat
static_assert(times(kBase, kInverse) == 1);

// No token counts as 0, so that paths of different lengths differ.
constexpr std::uint64_t digit(TokenId token) { return std::uint64_t{token} + 1; }

// What the 1 in each digit() of a block adds up to.
constexpr Wide kOnes = [] {
  Wide sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) sum += kPowers[i];
  return sum;
}();

// A block for each reduction: its tokens are multiplied independently of each other, about one in a cycle, and added in
// two chains. The sum stays below 2^123.
std::uint64_t grow(std::uint64_t value, std::span<const TokenId> tokens) {
  std::size_t i = 0;
  for (; i + kBlock <= tokens.size(); i += kBlock) {
    const TokenId* const block = tokens.data() + i;
    Wide even = Wide{value} * kPowers[kBlock] + kOnes, odd = 0;
    for (std::size_t k = 0; k < kBlock; k += 2) {
      even += Wide{block[k]} * kPowers[kBlock - 1 - k];
      odd += Wide{block[k + 1]} * kPowers[kBlock - 2 - k];
    }
    value = reduce(even + odd);
  }
  for (; i < tokens.size(); ++i) value = reduce(Wide{value} * kBase + digit(tokens[i]));
  return value;
}

}  // namespace

PathHash PathHash::of_namespace(const std::optional<PageKey>& seed) {
  if (!seed) return PathHash(kUnseeded);
  return PathHash(seed->prefix64() % kModulus);
}

void PathHash::append(std::span<const TokenId> tokens) { value_ = grow(value_, tokens); }

void PathHash::remove(std::span<const TokenId> tokens) {
  const std::uint64_t tail = grow(0, tokens);
  value_ = times(value_ + (value_ < tail ? kModulus : 0) - tail, power(kInverse, tokens.size()));
}

std::uint64_t PathHash::spread() const { return mix64(value_ + 0x9e3779b97f4a7c15); }

}  // namespace larder
