// Every restorable length of a chain of pages, for pools that are given one by one. The largest one, and why it is not
// larger, for the pools of a ModelSpec: model/restore_point.h.
//
//   length p is restorable  <=>  for each need: ALL_PAGES:         pages [0, p) are present
//                                               TRAILING_PAGES(n): pages [max(0, p - n), p) are present
//
// The set is no interval, and its ranks' sets are joined by AND, not by a minimum (DESIGN: joint restore points).
// Threads: pure. Cost: one pass per need, a nanosecond or two per page.
#pragma once

#include <cstdint>
#include <span>

#include "model/pool_spec.h"
#include "model/restore_point.h"

namespace larder {

struct JointNeed {
  const Presence* present = nullptr;  // a missing tail counts as absent
  HitPolicy policy = HitPolicy::kAllPages;
  std::uint32_t trailing_pages = 0;  // kTrailingPages: 1 or more
};

[[nodiscard]] constexpr std::size_t words_for(std::size_t pages) { return (pages + 63) / 64; }

// Sets bit p - 1 of `restorable` for each restorable p in [1, pages], and clears the others.
// Precondition: restorable.size() >= words_for(pages). Without needs every length is restorable.
void restorable_lengths(std::span<const JointNeed> needs, std::size_t pages, std::span<std::uint64_t> restorable);

}  // namespace larder
