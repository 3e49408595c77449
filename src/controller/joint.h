// SPDX-License-Identifier: Apache-2.0
// Restore points as bit strings, so that ranks can agree on them (rule 7): bit p-1 is set when page boundary p is a
// joint restore point. AND over ranks is then "a restore point on every rank"; a minimum over ranks would not be one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "controller/rank_group.h"
#include "model/restorable_lengths.h"
#include "model/restore_point.h"

namespace larder {

// For presence that comes piece by piece, from page `at` on.
class JointScan {
 public:
  explicit JointScan(std::uint64_t at = 0) : scan_(at) {}
  // The next `pages` pages; `presence` counts from the first of them. Bits beyond at() are added to `bits`.
  void add(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t pages, OutcomeBits& bits);
  [[nodiscard]] std::uint64_t at() const { return scan_.at(); }
  [[nodiscard]] bool is_over() const { return scan_.is_over(); }  // no restore point follows

 private:
  RestorableScan scan_;
};

// Whether full is all that a restore point of the model needs.
[[nodiscard]] inline bool needs_full_alone(const ModelSpec& model) {
  return !model.has(ComponentKind::kSwa) && !model.has(ComponentKind::kMamba);
}

// How far a prompt gets if not all components count: it tells which one lacks where no restore point follows. Pages.
struct Reach {
  std::uint64_t full = 0;    // of full alone, in all of its pools
  std::uint64_t window = 0;  // the largest boundary up to there that has its whole window; without windows as `full`

  [[nodiscard]] Reach within(std::uint64_t pages) const { return {std::min(full, pages), std::min(window, pages)}; }
};
// The same for presence that comes piece by piece, as JointScan. Cost: O(pages of the piece x pools), however many came
// before it.
class ReachScan {
 public:
  explicit ReachScan(std::uint64_t at = 0) : reach_{at, at}, of_full_(at), of_window_(at) {}
  void add(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t pages);
  [[nodiscard]] const Reach& reach() const { return reach_; }

 private:
  Reach reach_;
  RestorableScan of_full_, of_window_;
  OutcomeBits bits_;  // of the last piece; what is before it is of no use any more
};

// Bits for p in (from, to]. Cost: model/restorable_lengths.h, one need for each pool.
[[nodiscard]] OutcomeBits restore_candidates(const ModelSpec& model, std::span<const PoolPresence> presence,
                                             std::uint64_t from, std::uint64_t to);

// Largest p in (from, to] whose bit is set, or `from` if there is none.
[[nodiscard]] std::uint64_t largest_candidate(const OutcomeBits& bits, std::uint64_t from, std::uint64_t to);

}  // namespace larder
