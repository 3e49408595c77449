// SPDX-License-Identifier: Apache-2.0
// The joint restore point: the one arithmetic of this project that everybody else gets wrong (DESIGN.md section 1).
//
// Pure functions over presence bitmaps. Used for storage hits, for adoption of partial prefetches, and as the oracle of
// the tree's tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.h"

namespace larder {

// Presence per page index, absolute from position 0. For pools of full and swa: present[i] is page i. For mamba:
// present[i] is the checkpoint at position (i+1)*page_size, i.e. the one keyed by page i's key.
using Presence = std::vector<bool>;

struct PoolPresence {
  PoolName pool;
  Presence present;  // shorter than the query: missing tail counts as absent
};

// Why the answer is not longer (rule 8). With `best` the answer and `reach` the page where component full ends for good
// (its first missing page in any of its pools, or the query's end), the reason is, in this order:
enum class StopReason : std::uint8_t {
  kNone,            // the whole query is a restore point
  kFullMissing,     // reach == best: page `best` is absent in the full anchor
  kSidecarMissing,  // reach == best: page `best` is absent in a sidecar of full, the anchor has it
  kWindowMissing,   // full goes on, but no boundary in (best, reach] has its whole window
  kStateMissing,    // full goes on, and no boundary in (best, reach] whose window is whole has its checkpoint
  // Of a request only: storage, or memory when it began, had more, which was not fetched (too little, too late, no
  // room).
  kNotFetched,
};
[[nodiscard]] std::string_view stop_reason_name(StopReason r);

struct RestorePoint {
  std::uint64_t pages = 0;                // resume at pages * page_size
  StopReason reason = StopReason::kNone;  // the component that bounds it
  PoolName pool = PoolName::kKv;          // when reason != kNone: the pool that fails at the first boundary after
                                          // `pages` that gets as far as this reason; anchors are named before sidecars
};

// Largest p in [0, max_pages] that satisfies *every* pool of the model at once. Pools missing from `presence` count as
// absent everywhere. Cost: O(max_pages x pools), one pass, no allocation beyond a few counters.
[[nodiscard]] RestorePoint largest_restore_point(const ModelSpec& model, std::span<const PoolPresence> presence,
                                                 std::uint64_t max_pages);

// Is page boundary p (in pages) a restore point?
[[nodiscard]] bool is_restore_point(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t p);

}  // namespace larder
