// SPDX-License-Identifier: Apache-2.0
// A rank that is a process: a cache with everything under it, in a group over TCP, with a file store of its own and an
// engine that knows what every byte must be (tests/cache/rank_life.h). It says on standard output, one line each:
//
//   P <port>                          it is the leader, and listens there
//   S <step> <hash>                   what it has decided in that step
//   L <words>                         the group is over, and why; it ends then
//   D <device> <host> <storage>       all steps are done; tokens that requests found, by tier; it ends then
//   ! <text>                          something that must not happen; it ends then
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::ranks_test {

inline constexpr const char* kRankArgument = "--rank-process";

struct RankProcessPlan {
  std::uint32_t rank = 0, ranks = 2;
  std::uint16_t port = 0;   // of the leader; its own: 0
  std::uint64_t seed = 1;   // the same on all ranks
  std::uint64_t steps = 0;  // then it drains, and ends
  test::Shape shape = test::Shape::kAll;
  std::uint64_t silence_ms = 5000;
  std::string directory;  // for what all of them share, and a folder for each
  [[nodiscard]] std::vector<std::string> arguments() const;
};
// The child's main().
int run_rank_process(const std::vector<std::string>& arguments);

}  // namespace larder::ranks_test
