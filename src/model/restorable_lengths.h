// SPDX-License-Identifier: Apache-2.0
// Every restorable length of a chain of pages, for pools that are given one by one. The largest one, and why it is not
// larger, for the pools of a ModelSpec: model/restore_point.h.
//
//   length p is restorable  <=>  for each need: ALL_PAGES:         pages [0, p) are present
//                                               TRAILING_PAGES(n): pages [max(0, p - n), p) are present
//
// The set is no interval, and its ranks' sets are joined by AND, not by a minimum (DESIGN: joint restore points).
// RestorableScan: the same, for presence that comes piece by piece.
//
// Threads: pure. Cost: one pass per need, a nanosecond or two per page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/pool_spec.h"
#include "model/restore_point.h"

namespace larder {

struct JointNeed {
  const Presence* present = nullptr;  // a missing tail counts as absent
  HitPolicy policy = HitPolicy::kAllPages;
  std::uint32_t trailing_pages = 0;  // kTrailingPages: 1 or more
};

[[nodiscard]] constexpr std::size_t words_for(std::size_t pages) { return (pages + 63) / 64; }
// What is beyond the words is not set.
[[nodiscard]] constexpr bool has_bit(std::span<const std::uint64_t> words, std::size_t bit) {
  return bit / 64 < words.size() && ((words[bit / 64] >> (bit % 64)) & 1) != 0;
}

// Sets bit p - 1 of `restorable` for each restorable p in [1, pages], and clears the others.
// Precondition: restorable.size() >= words_for(pages). Without needs every length is restorable.
void restorable_lengths(std::span<const JointNeed> needs, std::size_t pages, std::span<std::uint64_t> restorable);

class RestorableScan {
 public:
  // Begins at page `at`; pages before it are present as far as a need looks back, or no answer is wanted there.
  explicit RestorableScan(std::size_t at = 0) : at_(at) {}
  // The next `pages` pages; `present` counts from the first of them. Sets or clears the bits of lengths
  // (at(), at() + pages] in `restorable`, which has the words for them. The same needs in each call.
  void add(std::span<const JointNeed> needs, std::size_t pages, std::span<std::uint64_t> restorable);
  [[nodiscard]] std::size_t at() const { return at_; }     // pages that were looked at
  [[nodiscard]] bool is_over() const { return is_over_; }  // no longer length is restorable: all pages were needed

 private:
  std::size_t at_;
  bool is_over_ = false;
  std::vector<std::uint64_t> runs_;  // of each need: pages present without a gap, up to at_
};

}  // namespace larder
