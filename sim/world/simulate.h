// SPDX-License-Identifier: Apache-2.0
// Runs stories: one from its seed, one from its text, many; and makes a failing one short.
// Threads: plain functions; several threads may run different stories.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/world/sim_world.h"
#include "sim/world/story.h"

namespace larder::sim {

struct SimOutcome {
  std::string failure;   // empty: every rule held
  std::size_t took = 0;  // events of the story until it failed
  SimTotals totals;
  std::uint64_t struck = 0;  // faults of the story that have struck
};

// What can fail, one call at a time.
enum class FaultSite : std::uint8_t { kFile, kCopyOut, kCopyIn, kCopyOn, kStorage, kService, kPost };
inline constexpr std::size_t kFaultSiteCount = 7;
inline constexpr std::array<std::string_view, kFaultSiteCount> kFaultSiteWords = {
    "operations of a disk",      "copies from the device",  "copies to the device",
    "copies on the device",      "operations of a storage", "calls to a remote metadata service",
    "tasks given to an executor"};

struct EveryFault {
  std::string failure;                                // empty: every rule held in every run
  Story story;                                        // that failed
  std::array<std::uint64_t, kFaultSiteCount> runs{};  // in which the fault struck
  SimTotals totals;
};

// The story that follows from `seed`, in a world that has what is wished.
[[nodiscard]] Story draw_story(std::uint64_t seed, std::size_t events, const WorldWishes& wishes = {});
// The same in a world where nothing else goes wrong, for run_every_fault(): clients come three times with the same
// prompts, first after memory was emptied, then after the power went.
[[nodiscard]] Story draw_calm_story(std::uint64_t seed, std::size_t events, const WorldWishes& wishes = {});
// check_every: events of the simulation between two full comparisons of tree and pools.
[[nodiscard]] SimOutcome run_story(const Story& story, std::uint64_t check_every = 64);
// Runs the story once for each call that it makes of each site, and for each way to fail: the first call fails, the
// second, and so on, until none is left. Stops at the first failure. The story should be short: the runs are as many as
// its calls.
[[nodiscard]] EveryFault run_every_fault(const Story& story, std::uint64_t check_every = 64);
// Leaves out what is not needed for it to fail, by at most `tries` runs. Precondition: it fails.
[[nodiscard]] Story shrink(Story story, std::uint64_t check_every, int tries = 600);

}  // namespace larder::sim
