// SPDX-License-Identifier: Apache-2.0
// The long loop: an operator attaches, detaches and switches storage while four clients hold conversations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace larder::attach {

struct RoundsPlan {
  std::string model;
  std::size_t rounds = 0;  // each attaches a backend, and detaches or replaces the one before
  std::uint64_t seed = 0;
  bool is_sick = false;  // backends hang, fail, answer late, and lie
};

// Failures are the test's; they name the seed and the round. Uses a directory of its own beneath /tmp.
void run_rounds(const RoundsPlan& plan);

}  // namespace larder::attach
