// SPDX-License-Identifier: Apache-2.0
// What a full host lets go first, and what a connector that ends leaves on it.
#include <gtest/gtest.h>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

constexpr std::uint64_t kPromptPages = 5;

// Room for so many pages of `full`.
RigOptions room_for_pages(std::uint64_t pages) {
  const ModelSpec model = sim::simulated_model("full").value();
  return {.host_bytes = pages * host_slot_bytes(model, ComponentKind::kFull)};
}

// On the host are two prompts, and there is room for no more.
struct TwoPrompts {
  TwoPrompts() {
    EXPECT_EQ(rig.save_all(older, kPromptPages).stop, SaveStop::kNone);
    EXPECT_EQ(rig.save_all(newer, kPromptPages).stop, SaveStop::kNone);
    EXPECT_EQ(rig.host->free_blocks(), 0u);
  }
  void save_a_third() {
    EXPECT_EQ(rig.connector->counters().host_evicted, 0u);
    EXPECT_EQ(rig.save_all(rig.prompt(3, kPromptPages), kPromptPages).stop, SaveStop::kNone);
    EXPECT_EQ(rig.connector->counters().host_evicted, kPromptPages);
  }
  Rig rig{"full", room_for_pages(2 * kPromptPages)};
  const Tokens older = rig.prompt(1, kPromptPages), newer = rig.prompt(2, kPromptPages);
};

TEST(ConnectorRecency, TheOldestGoes) {
  TwoPrompts two;
  two.save_a_third();
  EXPECT_EQ(two.rig.hit(two.older), 0u);
  EXPECT_EQ(two.rig.hit(two.newer), kPromptPages);
}

TEST(ConnectorRecency, WhatIsLoadedIsUsed) {
  TwoPrompts two;
  LookupId id;
  const LookupResult found = two.rig.look_up(two.older, id);
  ASSERT_EQ(last_of(found), kPromptPages);
  EXPECT_EQ(two.rig.load(id, found.points.back(), two.older), "");
  two.rig.connector->release(id);
  two.save_a_third();
  EXPECT_EQ(two.rig.hit(two.older), kPromptPages);
  EXPECT_EQ(two.rig.hit(two.newer), 0u);
}

TEST(ConnectorRecency, WhatIsSavedAgainIsUsed) {
  TwoPrompts two;
  EXPECT_EQ(two.rig.save_all(two.older, kPromptPages).known_pages, kPromptPages);
  two.save_a_third();
  EXPECT_EQ(two.rig.hit(two.older), kPromptPages);
  EXPECT_EQ(two.rig.hit(two.newer), 0u);
}

// The pools are the engine's, and may be the next connector's.
TEST(ConnectorRecency, AConnectorThatEndsLeavesThePoolsFree) {
  Rig rig("full_swa_mamba", {.host_bytes = std::size_t{1} << 20});
  const auto is_free = [&] {
    for (const ComponentKind c : kAllComponents) {
      const SlotTable::Counts counts = rig.host->counts(c);
      if (counts.live + counts.quarantined + counts.leases > 0) return false;
    }
    return rig.host->free_blocks() == rig.host->total_blocks();
  };
  const Tokens tokens = rig.prompt(1, 6);
  for (int life = 0; life < 3; ++life) {
    EXPECT_EQ(rig.hit(tokens), 0u) << life;
    EXPECT_EQ(rig.save_all(tokens, 6).new_pages, 6u) << life;
    EXPECT_EQ(rig.hit(tokens), 6u) << life;
    EXPECT_FALSE(is_free());
    rig.connector.reset();
    EXPECT_TRUE(is_free()) << life;
    ConnectorParts parts;
    parts.model = &rig.model;
    parts.host = rig.host.get();
    parts.clock = &rig.clock;
    rig.connector = std::move(Connector::create(rig.options.config, parts)).value();
  }
}

// States that a save gives again, and of which the host has some, are kept as it says, whichever would go first: room
// for the rest is made of others, or the save stops short.
TEST(ConnectorRecency, ASaveKeepsTheStatesThatItSaysAreKnown) {
  const std::string name = "full_mamba";
  const ModelSpec model = sim::simulated_model(name).value();
  const std::size_t page = host_slot_bytes(model, ComponentKind::kFull);
  const std::size_t state = host_slot_bytes(model, ComponentKind::kMamba);
  std::size_t short_saves = 0;
  for (std::size_t states = 2; states <= 4; ++states) {
    for (std::uint64_t more = 1; more <= 6; ++more) {
      SCOPED_TRACE(std::to_string(states) + " states, " + std::to_string(more) + " more pages");
      Rig rig(name, {.host_bytes = 10 * page + states * state});
      const Tokens tokens = rig.prompt(1, 4 + more);
      ASSERT_EQ(rig.save(tokens, 0, 4, 0, {2, 4}).kept, 4u);
      const SaveResult saved = rig.save(tokens, 4, 4 + more, 0, {2, 4, 4 + more});
      EXPECT_EQ(saved.known_states, 2u);
      short_saves += saved.stop == SaveStop::kNoRoom ? 1 : 0;
      LookupId id;
      std::size_t points = 0;
      for (const LoadPoint& point : rig.look_up(tokens, id).points) {
        points += point.pages <= saved.kept ? 1 : 0;
      }
      rig.connector->release(id);
      EXPECT_EQ(points, saved.known_states + saved.new_states);
    }
  }
  EXPECT_GT(short_saves, 0u);
}

// So are the pages of a window that it says are known.
TEST(ConnectorRecency, ASaveKeepsTheWindowThatItSaysIsKnown) {
  const std::string name = "full_swa";
  const ModelSpec model = sim::simulated_model(name).value();
  const std::size_t page = host_slot_bytes(model, ComponentKind::kFull);
  const std::size_t window = host_slot_bytes(model, ComponentKind::kSwa);
  std::size_t kept = 0;
  for (std::size_t windows = 4; windows <= 6; ++windows) {
    for (std::uint64_t more = 1; more < model.window_pages_at(100); ++more) {
      SCOPED_TRACE(std::to_string(windows) + " pages of windows, " + std::to_string(more) + " more pages");
      const std::uint64_t to = 4 + more;
      Rig rig(name, {.host_bytes = to * page + windows * window});
      const Tokens tokens = rig.prompt(1, to);
      ASSERT_EQ(rig.save(tokens, 0, 4, 4, {}).kept, 4u);
      const SaveResult saved = rig.save(tokens, 4, to, model.window_pages_at(to), {});
      EXPECT_EQ(rig.hit(tokens), saved.kept);
      kept += saved.kept == to && saved.known_window > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(kept, 0u);
}

}  // namespace
}  // namespace larder::connector_test
