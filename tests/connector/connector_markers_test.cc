// SPDX-License-Identifier: Apache-2.0
// A model of recurrent layers alone (Mamba): its pages have no bytes, and only mark the way to its states. The host's
// bytes are the states', and a prompt's length costs none of them.
#include <gtest/gtest.h>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

constexpr std::uint64_t kLong = 30'000;  // pages of a prompt: two of them fit into the markers of a small host

RigOptions room_for(std::uint64_t states) {
  return {.host_bytes = states * host_slot_bytes(rig_model("recurrent"), ComponentKind::kMamba)};
}

TEST(ConnectorMarkers, ALongPromptTakesTheRoomOfItsStatesAlone) {
  Rig rig("recurrent", room_for(4));
  const Tokens tokens = rig.prompt(1, 1000);
  const SaveResult saved = rig.save(tokens, 0, 1000, 0, {500, 1000});
  EXPECT_EQ(saved.stop, SaveStop::kNone);
  EXPECT_EQ(saved.kept, 1000u);
  EXPECT_EQ(rig.host->free_blocks(), rig.host->total_blocks() / 2);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  ASSERT_EQ(found.points.size(), 2u);
  for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
  rig.connector->release(id);
}

// What is left of an old prompt when its state has gone is in nobody's way.
TEST(ConnectorMarkers, TheOldestPagesGoWhenThereAreTooMany) {
  Rig rig("recurrent", room_for(64));
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(rig.save_all(rig.prompt(i, kLong), kLong).stop, SaveStop::kNone) << i;
    EXPECT_EQ(rig.hit(rig.prompt(i, kLong)), kLong) << i;
  }
  EXPECT_EQ(rig.hit(rig.prompt(4, kLong)), kLong);
  EXPECT_EQ(rig.hit(rig.prompt(0, kLong)), 0u);
  EXPECT_GT(rig.host->free_blocks(), 0u) << "bytes never lacked";
}

TEST(ConnectorMarkers, OfAPromptThatIsTooLongThePartThatFitsIsKept) {
  Rig rig("recurrent", room_for(8));
  const Tokens tokens = rig.prompt(1, 4 * kLong);
  const SaveResult saved = rig.save(tokens, 0, 4 * kLong, 0, {kLong, 2 * kLong, 3 * kLong, 4 * kLong});
  EXPECT_EQ(saved.stop, SaveStop::kNoRoom);
  EXPECT_EQ(saved.kept, 2 * kLong);
  EXPECT_EQ(rig.hit(tokens), 2 * kLong);
}

// Two lookups that are open keep all there is: a third prompt finds no room, and takes none of theirs.
TEST(ConnectorMarkers, WhatIsLeasedStays) {
  RigOptions options = room_for(8);
  options.config.lease_share = 1;
  Rig rig("recurrent", options);
  std::vector<LookupId> ids(2);
  for (std::uint64_t i = 0; i < 2; ++i) {
    (void)rig.save_all(rig.prompt(i, kLong), kLong);
    EXPECT_EQ(rig.look_up(rig.prompt(i, kLong), ids[i]).points.size(), 1u);
  }
  EXPECT_EQ(rig.save_all(rig.prompt(2, kLong), kLong).stop, SaveStop::kNoRoom);
  for (const LookupId id : ids) rig.connector->release(id);
  EXPECT_EQ(rig.save_all(rig.prompt(2, kLong), kLong).stop, SaveStop::kNone);
}

TEST(ConnectorMarkers, LongPromptsComeBackFromStorage) {
  Storage storage(1);
  RigOptions options = room_for(4);
  options.config.tiers.prefetch_threshold = 1;
  Rig rig("recurrent", options);
  rig.attach(storage);
  std::vector<Tokens> prompts;
  for (std::uint64_t i = 0; i < 8; ++i) {
    prompts.push_back(rig.prompt(i, 1000));
    EXPECT_EQ(rig.save_all(prompts.back(), 1000).stop, SaveStop::kNone);
  }
  rig.settle();
  EXPECT_EQ(rig.connector->counters().stored, 8 * 1000u);
  (void)rig.connector->flush();
  for (const Tokens& tokens : prompts) EXPECT_EQ(rig.hit(tokens), 1000u);
  EXPECT_EQ(rig.connector->counters().prefetched, 8 * 1000u);
}

}  // namespace
}  // namespace larder::connector_test
