// SPDX-License-Identifier: Apache-2.0
// Copies to the host alone, with a device that ends them when the test says so: what is copied, in which order, and
// what a failure costs.
#include "controller/backups.h"

#include <gtest/gtest.h>

#include "sim/world/small_models.h"
#include "tests/cache/room_rig.h"

namespace larder::test {
namespace {

constexpr std::size_t kFullAt = index_of(ComponentKind::kFull), kStateAt = index_of(ComponentKind::kMamba);

TEST(BackupsTest, APathIsCopiedParentsBeforeChildren) {
  RoomRig rig({});
  const NodeId a = rig.add("a"), ab = rig.add("ab", 1), abc = rig.add("abc", 2, true);
  rig.backups->by_policy(abc, 0);
  ASSERT_EQ(rig.transfer->copies.size(), 1u);
  const TransferRequest& copy = rig.transfer->copies[0].request;
  EXPECT_EQ(copy.direction, CopyDirection::kDeviceToHost);
  ASSERT_EQ(copy.pairs[kFullAt].size(), 3u);
  std::size_t next = 0;
  for (const NodeId node : {a, ab, abc}) {
    EXPECT_EQ(copy.pairs[kFullAt][next++].device, rig.tiers->tree().view(node).device[kFullAt][0]);
  }
  ASSERT_EQ(copy.pairs[kStateAt].size(), 1u);
  EXPECT_FALSE(rig.on_host(a)) << "nothing counts before its bytes are there";
  EXPECT_EQ(rig.tiers->counters().backed_up, 3u);
  rig.end_copy();
  for (const NodeId node : {a, ab, abc}) EXPECT_TRUE(rig.on_host(node));
  EXPECT_TRUE(rig.on_host(abc, ComponentKind::kMamba));
  EXPECT_FALSE(rig.backups->take_failure());
  rig.backups->by_policy(abc, 0);
  EXPECT_EQ(rig.transfer->submitted, 1u) << "there is nothing left to copy";
}

TEST(BackupsTest, WhatIsBeingCopiedIsNotCopiedAgain) {
  RoomRig rig({});
  const NodeId a = rig.add("a"), ab = rig.add("ab", 1);
  rig.backups->by_policy(a, 0);
  rig.backups->by_policy(ab, 0);
  ASSERT_EQ(rig.transfer->copies.size(), 2u);
  EXPECT_EQ(rig.transfer->copies[1].request.pairs[kFullAt].size(), 1u);
  rig.end_all();
  EXPECT_TRUE(rig.on_host(a) && rig.on_host(ab));
}

TEST(BackupsTest, ACopyThatFailsIsLostAndToldOnce) {
  RoomRig rig({});
  const NodeId a = rig.add("aa");
  rig.backups->by_policy(a, 0);
  rig.end_copy(false);
  EXPECT_FALSE(rig.on_host(a));
  EXPECT_TRUE(rig.on_device(a));
  EXPECT_EQ(rig.host->free_blocks(), rig.host->total_blocks());
  EXPECT_EQ(rig.tiers->counters().host_lost, 2u);
  EXPECT_EQ(rig.tiers->counters().host_evicted, 0u);
  EXPECT_TRUE(rig.backups->take_failure());
  EXPECT_FALSE(rig.backups->take_failure());
  rig.backups->by_policy(a, 0);
  rig.end_copy();
  EXPECT_TRUE(rig.on_host(a));
  EXPECT_FALSE(rig.backups->take_failure());
}

TEST(BackupsTest, ACopyThatNobodyTakesFails) {
  RoomRig rig({});
  const NodeId a = rig.add("a");
  rig.transfer->refusal = overloaded("no stream");
  rig.backups->by_policy(a, 0);
  EXPECT_EQ(rig.tiers->ops().places().live(OpKind::kBackup), 1u);
  rig.poll();
  EXPECT_EQ(rig.tiers->ops().places().live(OpKind::kBackup), 0u);
  EXPECT_TRUE(rig.backups->take_failure());
  EXPECT_EQ(rig.host->free_blocks(), rig.host->total_blocks());
}

TEST(BackupsTest, WhatFindsNoRoomEndsTheCopyInFrontOfIt) {
  RoomRig rig({.model = "full", .host_pages = 2});
  const NodeId a = rig.add("a"), ab = rig.add("ab", 1), abc = rig.add("abc", 2), abcd = rig.add("abcd", 3);
  rig.backups->by_policy(abcd, 0);
  ASSERT_EQ(rig.transfer->copies.size(), 1u);
  EXPECT_EQ(rig.transfer->copies[0].request.pairs[kFullAt].size(), 2u);
  EXPECT_EQ(rig.tiers->counters().backup_no_room, 1u);
  rig.end_copy();
  EXPECT_TRUE(rig.on_host(a) && rig.on_host(ab));
  EXPECT_FALSE(rig.on_host(abc) || rig.on_host(abcd));
}

TEST(BackupsTest, RoomForAChildIsNotMadeOfItsParent) {
  RoomRig rig({.model = "full", .host_pages = 1});
  const NodeId a = rig.add("a"), ab = rig.add("ab", 1);
  rig.backups->by_policy(a, 0);
  rig.end_copy();
  EXPECT_FALSE(rig.backups->of_victims({ab}, false).copies);
  EXPECT_TRUE(rig.on_host(a));
  const NodeId x = rig.add("x");
  EXPECT_TRUE(rig.backups->of_victims({x}, false).copies) << "but of another one";
  rig.end_copy();
  EXPECT_TRUE(rig.on_host(x));
  EXPECT_FALSE(rig.on_host(a));
}

TEST(BackupsTest, SelectiveCopiesWhatWasHitOften) {
  RigOptions options;
  options.config.write_policy = WritePolicy::kWriteThroughSelective;
  RoomRig rig(options);
  const NodeId a = rig.add("a", 0, true), ab = rig.add("ab", 1);
  for (int i = 0; i < 2; ++i) {
    rig.backups->by_policy(ab, 0);
    EXPECT_EQ(rig.transfer->submitted, 0u);
    rig.tiers->tree().touch({a, 1}, true);
  }
  rig.backups->by_policy(ab, 0);
  rig.end_copy();
  EXPECT_TRUE(rig.on_host(a));
  EXPECT_FALSE(rig.on_host(ab));
  EXPECT_TRUE(rig.backups->of_victims({ab}, false).copies) << "who leaves is not asked for its hits";
}

// Each turn uses the path of those before it, and resumes at the end of the last one.
TEST(BackupsTest, SelectiveCopiesOfAConversationWhatWasResumedAtOften) {
  for (const EvictionPolicy policy : {EvictionPolicy::kValue, EvictionPolicy::kLru}) {
    RigOptions options;
    options.config.write_policy = WritePolicy::kWriteThroughSelective;
    options.config.eviction_policy = policy;
    RoomRig rig(options);
    RadixTree& tree = rig.tiers->tree();
    const NodeId a = rig.add("a", 0, true), ab = rig.add("ab", 1, true), abc = rig.add("abc", 2);
    tree.touch({a, 1}, true);
    tree.touch({ab, 2}, true);
    rig.backups->by_policy(abc, 0);
    EXPECT_EQ(rig.transfer->submitted, policy == EvictionPolicy::kValue ? 0u : 1u) << "lru looks at hits of the path";
    tree.touch({ab, 2}, true);
    tree.touch({abc, 3}, true);
    tree.touch({abc, 3}, true);
    rig.backups->by_policy(abc, 0);
    rig.end_all();
    EXPECT_TRUE(rig.on_host(a)) << "ab stands on it";
    EXPECT_TRUE(rig.on_host(ab));
    EXPECT_FALSE(rig.on_host(abc)) << "it ends in no checkpoint, hit or not";
  }
}

TEST(BackupsTest, WriteBackCopiesVictimsOnly) {
  RigOptions options;
  options.config.write_policy = WritePolicy::kWriteBack;
  RoomRig rig(options);
  const NodeId a = rig.add("a"), ab = rig.add("ab", 1);
  rig.backups->by_policy(ab, 0);
  EXPECT_EQ(rig.transfer->submitted, 0u);
  EXPECT_TRUE(rig.backups->of_victims({ab, a}, true).copies);
  EXPECT_EQ(rig.transfer->copies[0].request.pairs[kFullAt].size(), 2u) << "a path once, whoever it leads to";
}

TEST(BackupsTest, ComponentsThatTheHostDoesNotKeep) {
  RigOptions options;
  options.config.host_tier_for_state = false;
  RoomRig rig(options);
  EXPECT_TRUE(rig.backups->keeps(ComponentKind::kFull));
  EXPECT_FALSE(rig.backups->keeps(ComponentKind::kMamba));
  const NodeId a = rig.add("a", 0, true);
  rig.backups->by_policy(a, 0);
  EXPECT_TRUE(rig.transfer->copies[0].request.pairs[kStateAt].empty());
  rig.config.host_tier_for_full = false;
  EXPECT_FALSE(rig.backups->keeps(ComponentKind::kFull));
  rig.backups->by_policy(rig.add("x"), 0);
  EXPECT_EQ(rig.transfer->submitted, 1u);
}

TEST(BackupsTest, WithoutAHostNothingIsCopied) {
  RoomRig rig({.host_pages = 0});
  const NodeId a = rig.add("a");
  EXPECT_FALSE(rig.backups->keeps(ComponentKind::kFull));
  rig.backups->by_policy(a, 0);
  EXPECT_FALSE(rig.backups->of_victims({a}, false).copies);
  EXPECT_TRUE(rig.tiers->ops().empty());
}

// Beneath a complete copy nothing is looked for, but for checkpoints that may have come since.
TEST(BackupsTest, ACheckpointThatCameLaterIsCopiedAlone) {
  RoomRig rig({});
  (void)rig.add("a");
  const NodeId ab = rig.add("ab", 1);
  rig.backups->by_policy(ab, 0);
  rig.end_copy();
  const NodeId a = rig.add("a", 0, true);  // its page is a duplicate, its state is new
  ASSERT_TRUE(rig.on_device(a, ComponentKind::kMamba));
  rig.backups->by_policy(ab, 2);
  EXPECT_TRUE(rig.transfer->copies.empty());
  rig.backups->by_policy(ab, 0);
  ASSERT_EQ(rig.transfer->copies.size(), 1u);
  EXPECT_TRUE(rig.transfer->copies[0].request.pairs[kFullAt].empty());
  EXPECT_EQ(rig.transfer->copies[0].request.pairs[kStateAt].size(), 1u);
  rig.end_copy();
  EXPECT_TRUE(rig.on_host(a, ComponentKind::kMamba));
}

// Room for the state is not made of the page that it stands on.
TEST(BackupsTest, ANodeMakesNoRoomForItself) {
  const ModelSpec model = sim::simulated_model("full_mamba").value();
  const std::size_t page = model.slot_bytes(ComponentKind::kFull), state = model.slot_bytes(ComponentKind::kMamba);
  RoomRig rig({.host_pages = (state + page - 1) / page});
  const NodeId a = rig.add("a");
  rig.backups->by_policy(a, 0);
  rig.end_copy();
  (void)rig.add("a", 0, true);
  EXPECT_FALSE(rig.backups->of_victims({a}, false).copies);
  EXPECT_TRUE(rig.on_host(a));
  EXPECT_EQ(rig.tiers->counters().backup_no_room, 1u);
}

TEST(BackupsTest, WithoutAPlaceNothingBegins) {
  RigOptions options;
  options.config.max_operations = 1;
  RoomRig rig(options);
  const NodeId a = rig.add("a"), x = rig.add("x");
  rig.backups->by_policy(a, 0);
  rig.backups->by_policy(x, 0);
  EXPECT_EQ(rig.transfer->submitted, 1u);
  EXPECT_EQ(rig.tiers->counters().backed_up, 1u);
  rig.end_copy();
  rig.backups->by_policy(x, 0);
  EXPECT_EQ(rig.transfer->submitted, 2u);
}

// Storage takes what would go from the host: gently, that is waited for.
TEST(BackupsTest, AVictimWaitsForStorageThatTakesPages) {
  RoomRig rig({.model = "full", .host_pages = 2});
  ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  const NodeId a = rig.add("aa");
  rig.backups->by_policy(a, 0);
  rig.end_copy();
  rig.poll();
  ASSERT_EQ(rig.storage.writes.size(), 1u);
  const NodeId x = rig.add("x");
  const Backups::Begun gentle = rig.backups->of_victims({x}, true);
  EXPECT_FALSE(gentle.copies);
  EXPECT_TRUE(gentle.waits_for_stores);
  const Backups::Begun rough = rig.backups->of_victims({x}, false);
  EXPECT_FALSE(rough.copies || rough.waits_for_stores);
  auto write = std::move(rig.storage.writes.front());
  rig.storage.writes.clear();
  write.done(WriteResult{std::vector<Status>(write.request.groups.size())});
  rig.poll();
  EXPECT_TRUE(rig.backups->of_victims({x}, true).copies);
}

}  // namespace
}  // namespace larder::test
