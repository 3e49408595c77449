// SPDX-License-Identifier: Apache-2.0
// The simulator itself: stories are text, replay exactly, and end well; and it sees what it is there to see.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/log.h"
#include "engine/text_file.h"
#include "sim/world/real_last_words.h"
#include "sim/world/simulate.h"
#include "sim/world/small_models.h"
#include "tests/support/brief.h"

namespace larder::sim {
namespace {

class Sim : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }  // injected faults make thousands of warnings
  void TearDown() override { set_log_level(LogLevel::kInfo); }
};

TEST_F(Sim, StoriesAreText) {
  const Story story = draw_story(3, 200);
  const Result<Story> parsed = parse_story(to_text(story));
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().to_string();
  EXPECT_EQ(to_text(*parsed), to_text(story));
  EXPECT_EQ(parsed->events.size(), 200u);
}

TEST_F(Sim, BadStoriesAreRefusedByLineAndWord) {
  const struct {
    const char* text;
    const char* says;
  } kBad[] = {
      {"world model=full\nbegin\njump", "line 3: 'jump' is not one of world, begin, move"},
      {"begin more=few", "line 1: 'few' is not a whole number"},
      {"begin more", "line 1: NAME=VALUE is expected, not 'more'"},
      {"flush job=1", "line 1: 'flush' has no 'job'"},
      {"world wheels=4", "a world has no 'wheels'"},
      {"begin\nworld storage=files", "line 2: 'storage=files' is not one of memory file hf3fs"},
      {"world model=huge", "line 1: "},
      {"time us=99999999999999999999999", "is not a whole number"},
  };
  for (const auto& bad : kBad) {
    const Result<Story> parsed = parse_story(bad.text);
    ASSERT_FALSE(parsed.is_ok()) << bad.text;
    EXPECT_NE(parsed.status().message().find(bad.says), std::string::npos) << parsed.status().message();
  }
  WorldSpec world;
  world.model = "no-such-model";
  EXPECT_NE(run_story({world, {}}).failure, "");
  world.model = "full";
  world.ranks = 0;
  EXPECT_NE(run_story({world, {}}).failure, "");
  world.ranks = 1;
  world.eviction = "arc";
  EXPECT_NE(run_story({world, {}}).failure.find("'eviction=arc' is not one of"), std::string::npos);
}

// The same story, the same run: event for event.
TEST_F(Sim, RunsReplay) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const Story story = draw_story(seed, 400);
    const SimOutcome first = run_story(story), second = run_story(story);
    EXPECT_EQ(first.failure, second.failure) << "seed " << seed;
    EXPECT_EQ(first.totals.events, second.totals.events) << "seed " << seed;
    EXPECT_EQ(first.totals.device_tokens, second.totals.device_tokens) << "seed " << seed;
    EXPECT_EQ(first.totals.storage_tokens, second.totals.storage_tokens) << "seed " << seed;
    EXPECT_EQ(first.totals.checked_pages, second.totals.checked_pages) << "seed " << seed;
  }
}

TEST_F(Sim, WorldsOfManySeedsEndWell) {
  const std::uint64_t worlds = support::is_brief() ? 60 : 200;
  SimTotals totals;
  LastWords last_words;
  for (std::uint64_t seed = 1; seed <= worlds; ++seed) {
    last_words.set("\nthe process ended in the world of seed " + std::to_string(seed) + " with 600 events\n");
    const SimOutcome outcome = run_story(draw_story(seed, 600));
    ASSERT_EQ(outcome.failure, "") << "replay: larder sim --first " << seed << " --seeds 1 --events 600";
    totals.add(outcome.totals);
  }
  std::printf("%llu worlds, %llu events\n", static_cast<unsigned long long>(totals.stories),
              static_cast<unsigned long long>(totals.events));
  EXPECT_GT(totals.finished, worlds);
  EXPECT_GT(totals.device_tokens, 0u);
  EXPECT_GT(totals.host_tokens, 0u);
  EXPECT_GT(totals.storage_tokens, 0u);
  EXPECT_GT(totals.crashes, 0u);
  EXPECT_GT(totals.checked_pages, worlds);
  EXPECT_GT(totals.late_loads, 0u);
  EXPECT_GT(totals.forks, 0u);
  EXPECT_GT(totals.cancelled, 0u);
  EXPECT_GT(totals.refused, 0u);
  EXPECT_GT(totals.parted, 0u);
}

// At this world's end newer requests took, in each round, the blocks that they had let go for the oldest one.
TEST_F(Sim, TheOldestRequestGetsTheMemoryThatOthersLetGoForIt) {
  EXPECT_EQ(run_story(draw_story(9'101'149, 600)).failure, "") << "replay: larder sim --first 9101149 --seeds 1";
}

// A world of either door, drawn or asked for: engines whose memory is their own load what they or others saved.
TEST_F(Sim, EnginesWithMemoryOfTheirOwnEndWell) {
  const std::uint64_t worlds = support::is_brief() ? 30 : 100;
  SimTotals totals;
  LastWords last_words;
  for (std::uint64_t seed = 1; seed <= worlds; ++seed) {
    last_words.set("\nthe process ended in the connector's world of seed " + std::to_string(seed) + "\n");
    Story story = draw_story(seed, 600);
    story.world.door = "connector";
    const SimOutcome outcome = run_story(story);
    ASSERT_EQ(outcome.failure, "") << "replay: larder sim --door connector --first " << seed
                                   << " --seeds 1 --events 600";
    totals.add(outcome.totals);
  }
  EXPECT_GT(totals.finished, worlds);
  EXPECT_GT(totals.loads, worlds);
  EXPECT_GT(totals.saves, worlds);
  EXPECT_GT(totals.host_tokens, 0u);
  EXPECT_GT(totals.storage_tokens, 0u);
  EXPECT_GT(totals.device_tokens, 0u) << "what the engine had itself";
  EXPECT_GT(totals.checked_pages, worlds);
}

// The n-th call of everything fails, for each n: disks, copies, storage operations, calls to a remote service.
TEST_F(Sim, AnyCallMayFail) {
  std::array<std::uint64_t, kFaultSiteCount> runs{};
  const std::uint64_t stories = support::is_brief() ? 1 : 2;
  for (const auto& [storage, door] : {std::pair{"file", "cache"}, {"hf3fs", "cache"}, {"file", "connector"}}) {
    for (std::uint64_t seed = 1; seed <= stories; ++seed) {
      const bool has_states = storage == std::string("file") && door == std::string("cache");
      // In the sixth a state is copied on the device.
      Story story = draw_calm_story(has_states ? seed + 5 : seed, support::is_brief() ? 30 : 60);
      if (has_states) story.world.model = "full_mamba";
      story.world.storage = storage;
      story.world.door = door;
      story.world.service = "remote";
      const EveryFault every = run_every_fault(story);
      ASSERT_EQ(every.failure, "") << to_text(every.story);
      for (std::size_t site = 0; site < runs.size(); ++site) runs[site] += every.runs[site];
    }
  }
  for (std::size_t site = 0; site < runs.size(); ++site) {
    const auto is = [&](FaultSite which) { return static_cast<FaultSite>(site) == which; };
    const bool is_rare = is(FaultSite::kCopyIn) || is(FaultSite::kCopyOn);
    if (!support::is_brief()) {
      EXPECT_GT(runs[site], is_rare ? 0u : 10u) << kFaultSiteWords[site];
    }
    std::printf("%llu runs: one of the %s failed\n", static_cast<unsigned long long>(runs[site]),
                std::string(kFaultSiteWords[site]).c_str());
  }
}

// Stories that were worth keeping: tests/sim/scenario/*.txt.
TEST_F(Sim, ScenariosEndWell) {
  const std::string directory = std::string(LARDER_SOURCE_DIR) + "/tests/sim/scenario";
  const Result<std::vector<std::string>> names = real_file_system().list(directory);
  ASSERT_TRUE(names.is_ok()) << names.status().to_string();
  ASSERT_FALSE(names->empty());
  for (const std::string& name : *names) {
    const Result<std::string> text = read_text_file(real_file_system(), join_path(directory, name));
    ASSERT_TRUE(text.is_ok()) << text.status().to_string();
    const Result<Story> story = parse_story(*text);
    ASSERT_TRUE(story.is_ok()) << name << ": " << story.status().to_string();
    const SimOutcome outcome = run_story(*story, 1);
    EXPECT_EQ(outcome.failure, "") << "replay: larder sim --check-every 1 --scenario tests/sim/scenario/" << name;
    const auto is_expect = [](const Event& event) { return event.verb == Verb::kExpect; };
    EXPECT_TRUE(std::any_of(story->events.begin(), story->events.end(), is_expect))
        << name << ": whether what it tells has happened, it does not ask (expect ...)";
  }
}

TEST_F(Sim, AStoryMayExpectWhatHasHappened) {
  const std::string text =
      "world model=full prefetch=best_effort\nbegin more=8 new=1\nmove\nmove chunk=16\nmove chunk=16\n";
  EXPECT_EQ(run_story(parse_story(text + "expect finished=1").value()).failure, "");
  EXPECT_EQ(run_story(parse_story(text + "expect finished=2").value()).failure,
            "expected: finished at least 2, and it is 1");
}

// What a wrong page is called: by whom it was written, and where to.
TEST_F(Sim, APatternSaysWhatIsThere) {
  const ModelSpec model = simulated_model("full_swa_mamba").value();
  const std::unique_ptr<DevicePools> pools = DevicePools::create(model, {4, 4, 4}, host_memory_source()).value();
  const Pattern own(model, *pools, 0), others(model, *pools, 3);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const DeviceSlot slot(1);
  others.write(ComponentKind::kSwa, tokens, 8, "", slot);
  const std::string wrong = own.check(ComponentKind::kSwa, tokens, 4, "", slot);
  EXPECT_NE(wrong.find("what rank 3 wrote into pool swa"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("after 8 tokens"), std::string::npos) << wrong;
  const PoolSpec& pool = *model.pools_of(ComponentKind::kSwa).front();
  std::fill_n(pools->page(pool.name, 0, 0, slot), pool.planes[0].layer_bytes(), std::byte{0xA7});
  EXPECT_NE(own.check(ComponentKind::kSwa, tokens, 4, "", slot).find("what no engine wrote"), std::string::npos);
}

TEST_F(Sim, APatternTellsPagesApart) {
  const ModelSpec model = simulated_model("full_swa_mamba").value();
  const std::unique_ptr<DevicePools> pools = DevicePools::create(model, {4, 4, 4}, host_memory_source()).value();
  const Pattern pattern(model, *pools);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8}, other = {1, 2, 3, 9, 5, 6, 7, 8};
  const DeviceSlot slot(1);
  for (const ComponentKind c : kAllComponents) {
    pattern.write(c, tokens, 4, "", slot);
    EXPECT_EQ(pattern.check(c, tokens, 4, "", slot), "");
    EXPECT_NE(pattern.check(c, tokens, 8, "", slot), "") << "another length";
    EXPECT_NE(pattern.check(c, other, 4, "", slot), "") << "other tokens";
    EXPECT_NE(pattern.check(c, tokens, 4, "tenant 1", slot), "") << "another tenant";
    EXPECT_NE(Pattern(model, *pools, 1).check(c, tokens, 4, "", slot), "") << "another rank";
    const PoolSpec& pool = *model.pools_of(c).back();
    std::byte* const last = pools->page(pool.name, 0, 0, slot) + pool.planes[0].layer_bytes() - 1;
    *last ^= std::byte{1};
    EXPECT_NE(pattern.check(c, tokens, 4, "", slot), "") << "one bit, at the end";
  }
}

}  // namespace
}  // namespace larder::sim
