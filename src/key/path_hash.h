// SPDX-License-Identifier: Apache-2.0
// A 64-bit hash of a path's tokens that grows and shrinks at its end.
//
//   hash(path + page).remove(page) == hash(path)
//
// A polynomial modulo 2^64 (Karp and Rabin's fingerprint, with a fixed base), so the hash of a prefix follows from that
// of the whole and of what was cut off, which is all that is read. The tree needs that: a leaf that is evicted page by
// page is hashed once, not once for each page.
//
// Two paths with one hash are easily made. So it names paths where a wrong answer costs no more than a wrong
// explanation (why a request missed) or a victim that another would have been, and never decides which bytes are used:
// PageKey does. Equal tokens have equal hashes in every process, whatever its rank. Cost: O(tokens), about a third of a
// nanosecond each.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/strong.h"

namespace larder {

class PathHash {
 public:
  constexpr PathHash() = default;
  // Of the empty path of what an adapter and a salt name. The seed of a namespace's keys would not do: ranks have
  // different ones, and must decide alike (tables of hashes choose their victims by them).
  [[nodiscard]] static PathHash of_space(std::string_view adapter, std::string_view salt);

  void append(std::span<const TokenId> tokens);
  // Precondition: they are its last ones.
  void remove(std::span<const TokenId> tokens);

  // Spread over 64 bits, for tables.
  [[nodiscard]] std::uint64_t spread() const;

  friend constexpr bool operator==(const PathHash&, const PathHash&) = default;

 private:
  explicit constexpr PathHash(std::uint64_t value) : value_(value) {}

  std::uint64_t value_ = 0;
};

}  // namespace larder
