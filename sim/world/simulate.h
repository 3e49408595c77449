// Runs stories: one from its seed, one from its text, many; and makes a failing one short.
// Threads: plain functions; several threads may run different stories.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world/sim_world.h"
#include "sim/world/story.h"

namespace larder::sim {

struct SimOutcome {
  std::string failure;   // empty: every rule held
  std::size_t took = 0;  // events of the story until it failed
  SimTotals totals;
};

// The story that follows from `seed`.
[[nodiscard]] Story draw_story(std::uint64_t seed, std::size_t events);
// check_every: events of the simulation between two full comparisons of tree and pools.
[[nodiscard]] SimOutcome run_story(const Story& story, std::uint64_t check_every = 64);
// Leaves out what is not needed for it to fail, by at most `tries` runs. Precondition: it fails.
[[nodiscard]] Story shrink(Story story, std::uint64_t check_every, int tries = 600);

}  // namespace larder::sim
