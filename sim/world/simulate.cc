#include "sim/world/simulate.h"

#include <algorithm>
#include <utility>

namespace larder::sim {

Story draw_story(std::uint64_t seed, std::size_t events) {
  Story story;
  story.world = draw_world(seed);
  Rng rng(seed * 0xbf58476d1ce4e5b9ull + 7);
  story.events.reserve(events);
  for (std::size_t i = 0; i < events; ++i) story.events.push_back(draw_event(rng, story.world));
  return story;
}

SimOutcome run_story(const Story& story, std::uint64_t check_every) {
  SimOutcome out;
  SimWorld world(story.world, check_every);
  out.failure = world.begin();
  while (out.failure.empty() && out.took < story.events.size()) out.failure = world.apply(story.events[out.took++]);
  if (out.failure.empty()) out.failure = world.finish();
  out.totals = world.totals();
  return out;
}

Story shrink(Story story, std::uint64_t check_every, int tries) {
  const SimOutcome first = run_story(story, check_every);
  if (!first.failure.empty()) story.events.resize(std::min(story.events.size(), first.took));
  for (std::size_t run = std::max<std::size_t>(story.events.size() / 2, 1); tries > 0;
       run = std::max<std::size_t>(run / 2, 1)) {
    bool is_shorter = false;
    for (std::size_t at = 0; at + run <= story.events.size() && tries > 0; --tries) {
      Story fewer = story;
      const auto begin = fewer.events.begin() + static_cast<std::ptrdiff_t>(at);
      fewer.events.erase(begin, begin + static_cast<std::ptrdiff_t>(run));
      const SimOutcome outcome = run_story(fewer, check_every);
      if (outcome.failure.empty()) {
        at += run;
        continue;
      }
      fewer.events.resize(std::min(fewer.events.size(), outcome.took));
      story = std::move(fewer);
      is_shorter = true;
    }
    if (run == 1 && !is_shorter) break;
  }
  return story;
}

}  // namespace larder::sim
