// SPDX-License-Identifier: Apache-2.0
// The ranks of a simulated world as a group.
//
// All ranks run on one thread, the leader first, so its plan is there whenever a follower of the same mind asks for it.
// A follower that finds none takes a step that the leader did not take: they have decided differently. The group in one
// process would wait for that plan until its clock moves, and a simulated clock never does; here it is the world's
// failure, and the group is over.
//
// Threads: confined. Lifetime: the clock outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/rank_group.h"

namespace larder::sim {

// fail: told what happened, when a rank has parted from the others.
[[nodiscard]] std::vector<std::unique_ptr<RankGroup>> make_simulated_rank_group(
    std::uint32_t ranks, Clock& clock, std::size_t max_outstanding,
    const std::function<void(const std::string&)>& fail);

}  // namespace larder::sim
