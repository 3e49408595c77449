// SPDX-License-Identifier: Apache-2.0
// What one rank of a group does in tests: the same script of requests on every rank, while copies and storage end when
// this rank's own dice say so. Every decision goes into a log that must be alike on all ranks.
//
// Threads: confined. Lifetime: the group outlives it.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "controller/rank_group.h"
#include "tests/cache/harness.h"

namespace larder::test {

struct RankLifeOptions {
  Shape shape = Shape::kAll;
  // Few operations, a small group, storage that fails on one rank and not on the other, is detached and attached, and
  // an operator who asks one rank.
  bool hard = false;
  std::string directory{};           // of this rank's file store; empty: its storage is in memory
  std::uint32_t poll_budget = 4096;  // pages
};

class RankLife {
 public:
  static constexpr int kDrainSteps = 600;

  // seed: of the script and, with the rank, of the dice.
  RankLife(RankGroup& group, const RankLifeOptions& options, std::uint64_t seed);

  void step(int i);
  // Nothing new begins.
  void drain_step(int i);
  // What is left, and what is wrong: words that are in a log that is right, and FAILURE, INVARIANT, TIMEOUTS.
  [[nodiscard]] std::string end();
  // What was decided since the last call.
  [[nodiscard]] std::string take_log();
  [[nodiscard]] Harness& harness() { return harness_; }
  // Tokens that requests found, by tier, so far.
  [[nodiscard]] const CachedTokens& found() const { return found_; }

 private:
  void log_slots();
  void toggle_storage();
  void explain();
  void begin();
  void move_all(int step);

  const std::uint32_t rank_;
  const bool hard_;
  bool is_attached_ = true;
  Rng script_;  // the same numbers on every rank
  Rng dice_;    // this rank's delays
  Harness harness_;
  std::vector<Harness::Job> jobs_;
  std::vector<std::vector<TokenId>> history_;
  std::ostringstream log_;
  CachedTokens found_;
};

}  // namespace larder::test
