// SPDX-License-Identifier: Apache-2.0
// Deterministic random numbers: xoshiro256** seeded by splitmix64.
//
// Purpose: every random choice (sampling of candidates, simulation, tests) comes from a seed that can be printed and
// replayed. The sequence of a seed is part of the contract: it is the same on every machine and build.
// Threads: confined; one Rng belongs to one owner. fork() makes an independent child for another owner.
// Not for secrets. Cost: ~1 ns per number.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace larder {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) {
    for (auto& word : state_) word = split_mix(seed);
  }

  [[nodiscard]] std::uint64_t next_u64() {
    const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate_left(state_[3], 45);
    return result;
  }

  // Uniform in [0, n). Precondition: n > 0. Unbiased (rejection; less than two draws on average).
  [[nodiscard]] std::uint64_t below(std::uint64_t n) {
    assert(n > 0);
    const std::uint64_t reject_under = (0 - n) % n;
    for (;;) {
      const std::uint64_t draw = next_u64();
      if (draw >= reject_under) return draw % n;
    }
  }

  // Uniform in [low, high], both ends included. Precondition: low <= high, and not the full 64-bit range.
  [[nodiscard]] std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }

  // Uniform in [0, 1), 53 bits.
  [[nodiscard]] double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

  // True with probability numerator / denominator. Precondition: denominator > 0.
  [[nodiscard]] bool chance(std::uint64_t numerator, std::uint64_t denominator) {
    return below(denominator) < numerator;
  }

  // Fisher-Yates, in place.
  template <class T>
  void shuffle(std::span<T> items) {
    for (std::size_t left = items.size(); left > 1; --left) {
      std::swap(items[left - 1], items[static_cast<std::size_t>(below(left))]);
    }
  }

  // A generator whose sequence is independent of what this one gives next.
  [[nodiscard]] Rng fork() { return Rng(next_u64()); }

  using result_type = std::uint64_t;  // UniformRandomBitGenerator, for <random> distributions in tests
  [[nodiscard]] static constexpr std::uint64_t min() { return 0; }
  [[nodiscard]] static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }
  std::uint64_t operator()() { return next_u64(); }

 private:
  static constexpr std::uint64_t rotate_left(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  static std::uint64_t split_mix(std::uint64_t& seed) {
    std::uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  std::uint64_t state_[4];
};

}  // namespace larder
