// SPDX-License-Identifier: Apache-2.0
#include "sim/world/simulate.h"

#include <algorithm>
#include <utility>

#include "sim/world/service_line.h"

namespace larder::sim {

Story draw_story(std::uint64_t seed, std::size_t events, const WorldWishes& wishes) {
  Story story;
  story.world = draw_world(seed, wishes);
  Rng rng(seed * 0xbf58476d1ce4e5b9ull + 7);
  story.events.reserve(events);
  for (std::size_t i = 0; i < events; ++i) story.events.push_back(draw_event(rng, story.world));
  return story;
}

Story draw_calm_story(std::uint64_t seed, std::size_t events, const WorldWishes& wishes) {
  Story story;
  story.world = draw_world(seed, wishes);
  story.world.trouble = 0;
  story.world.device_pages = 48;
  story.world.prompt_pages = WorldSpec{}.prompt_pages;  // such a device has no room for the longest ones
  story.world.device_states = 8;
  if (seed % 4 != 0) story.world.write = "write_through", story.world.prefetch = "wait_complete";
  Rng rng(seed * 0xbf58476d1ce4e5b9ull + 7);
  std::vector<Event> part;
  for (std::size_t i = 0; i < events / 3; ++i) {
    part.push_back(draw_event(rng, story.world));
    Event& event = part.back();
    if (event.verb == Verb::kBegin && i % 2 == 0) event.arguments[1] = 0;  // the same prompt each time it comes
  }
  const Event rest{Verb::kTime, {2'000'000}};
  for (const Verb verb : {Verb::kFlush, Verb::kCrash, Verb::kRestart}) {
    story.events.insert(story.events.end(), part.begin(), part.end());
    for (int i = 0; i < 40; ++i) story.events.push_back({Verb::kMove, {static_cast<std::uint64_t>(i), 16}});
    story.events.insert(story.events.end(), {rest, {verb, {}}});
  }
  return story;
}

SimOutcome run_story(const Story& story, std::uint64_t check_every) {
  SimOutcome out;
  SimWorld world(story.world, check_every);
  out.failure = world.begin();
  while (out.failure.empty() && out.took < story.events.size()) out.failure = world.apply(story.events[out.took++]);
  if (out.failure.empty()) out.failure = world.finish();
  out.totals = world.totals();
  out.struck = world.struck();
  return out;
}

namespace {

// The story with one fault in front: the n-th call of `site` fails in way `kind`. Disks fail from opening on: the
// storage is taken away first, and attached twice, so that there is one also when opening it has failed.
Story with_fault(const Story& story, FaultSite site, std::uint64_t rank, std::uint64_t n, std::uint64_t kind) {
  Story out = story;
  std::vector<Event> front;
  switch (site) {
    case FaultSite::kFile:
      front = {{Verb::kDetach, {}}, {Verb::kFileFault, {rank, n, 1, kind}}, {Verb::kAttach, {}}, {Verb::kAttach, {}}};
      break;
    case FaultSite::kCopyOut: front = {{Verb::kCopyFault, {0, n, rank + 1}}}; break;
    case FaultSite::kCopyIn: front = {{Verb::kCopyFault, {1, n, rank + 1}}}; break;
    case FaultSite::kCopyOn: front = {{Verb::kCopyFault, {2, n, rank + 1}}}; break;
    case FaultSite::kStorage: front = {{Verb::kStorageFault, {rank, n, kind}}}; break;
    case FaultSite::kService: front = {{Verb::kServiceFault, {rank, n, 1, kind}}}; break;
    case FaultSite::kPost: front = {{Verb::kPostFault, {rank, n, 1}}}; break;
  }
  out.events.insert(out.events.begin(), front.begin(), front.end());
  return out;
}

}  // namespace

EveryFault run_every_fault(const Story& story, std::uint64_t check_every) {
  constexpr std::array<std::uint64_t, kFaultSiteCount> kKinds = {kFileFaultCount, 1, 1, 1, 4, kLineFaultCount, 1};
  EveryFault out;
  for (std::size_t site = 0; site < kFaultSiteCount; ++site) {
    const std::uint64_t ranks = story.world.ranks;
    for (std::uint64_t choice = 0; choice < ranks * kKinds[site]; ++choice) {
      for (std::uint64_t n = 1;; ++n) {
        Story one = with_fault(story, static_cast<FaultSite>(site), choice % ranks, n, choice / ranks);
        const SimOutcome outcome = run_story(one, check_every);
        out.totals.add(outcome.totals);
        if (!outcome.failure.empty()) {
          out.failure = outcome.failure;
          out.story = std::move(one);
          return out;
        }
        if (outcome.struck == 0) break;  // the story makes fewer calls than n
        ++out.runs[site];
      }
    }
  }
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
