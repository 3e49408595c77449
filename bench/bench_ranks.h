// SPDX-License-Identifier: Apache-2.0
// What it costs the ranks of a model to agree: `larder bench ranks`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace larder {

struct RanksBenchOptions {
  std::vector<std::uint32_t> ranks = {2, 4, 8};     // processes, each a row of the table
  std::vector<std::uint32_t> pending = {0, 1, 16};  // events per step and rank
  std::uint64_t steps = 2000;
  std::uint64_t step_us = 2000;  // a step begins so long after the one before: the model computes
  std::uint32_t words = 4;       // of 64 bits, of an outcome
  // A child's: its rank, the leader's port, and one number of ranks and events.
  std::uint32_t rank = 0;
  std::uint16_t port = 0;
  [[nodiscard]] bool is_child() const { return port != 0; }
};

// One rank's numbers. A call: reporting what has ended, and taking the events of the step.
struct RankCost {
  double call_median_us = 0, call_p99_us = 0;
  double agreed_median_us = 0;  // from a report to the step that applies the event
  std::uint64_t messages = 0;   // outcomes, plans, and how far it is or that it is there
  std::uint64_t bytes = 0;
  [[nodiscard]] std::string to_line() const;
  [[nodiscard]] static Result<RankCost> from_line(const std::string& line);
};

// Prints a table: one row for each number of ranks and of events. 0, or 1: a rank did not do it, and why.
int run_ranks_bench(const RanksBenchOptions& options);

// The command: also 2 on wrong arguments.
int bench_ranks(int argc, char** argv);

}  // namespace larder
