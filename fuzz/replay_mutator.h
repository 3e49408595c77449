// SPDX-License-Identifier: Apache-2.0
// Deterministic mutations of a corpus: what the smoke run has in place of libFuzzer.
//
// Purpose: any compiler, no coverage, the same inputs on every machine for one (corpus, seed). Bit flips, numbers at
// their limits, cuts, repeats, splices of two files.
// Threads: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace larder::fuzz {

inline constexpr std::size_t kMaxInputBytes = std::size_t{64} << 10;
using Bytes = std::vector<std::uint8_t>;

class Mutator {
 public:
  // `corpus` outlives the mutator; without files it begins with an empty input.
  Mutator(const std::vector<Bytes>& corpus, std::uint64_t seed) : corpus_(corpus), rng_(seed) {}
  // One file, changed 1 to 8 times. At most kMaxInputBytes long.
  [[nodiscard]] Bytes next();

 private:
  void change(Bytes& bytes);
  void set_number(Bytes& bytes);
  void move_block(Bytes& bytes);
  void splice(Bytes& bytes);
  [[nodiscard]] const Bytes& any_file();

  const std::vector<Bytes>& corpus_;
  Rng rng_;
};

}  // namespace larder::fuzz
