// SPDX-License-Identifier: Apache-2.0
// Room on the device alone: who leaves, who gets a copy first, and what is waited for.
#include "controller/device_room.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "tests/cache/room_rig.h"

namespace larder::test {
namespace {

// One page each, oldest first, until the device is full.
std::vector<NodeId> fill(RoomRig& rig) {
  std::vector<NodeId> nodes;
  for (char name = 'A'; rig.device->free_slots(ComponentKind::kFull) > 0; ++name) {
    nodes.push_back(rig.add(std::string(1, name)));
  }
  return nodes;
}

TEST(DeviceRoomTest, WhatFitsEvictsNothing) {
  RoomRig rig({});
  const NodeId a = rig.add("aa");
  EXPECT_TRUE(rig.make(6).is_ok());
  EXPECT_TRUE(rig.on_device(a));
  EXPECT_EQ(rig.transfer->submitted, 0u);
}

TEST(DeviceRoomTest, NothingGoesIfEverythingWouldNotDo) {
  RoomRig rig({});
  const std::vector<NodeId> nodes = fill(rig);
  LockHandle lock = rig.tiers->tree().lock(nodes[3], Tier::kDevice, LockParts{});
  EXPECT_FALSE(rig.room->could_make(ComponentKind::kFull, 8));
  EXPECT_EQ(rig.make(8).code(), StatusCode::kOverloaded);
  EXPECT_EQ(rig.transfer->submitted, 0u);
  EXPECT_TRUE(std::all_of(nodes.begin(), nodes.end(), [&](NodeId node) { return rig.on_device(node); }));
  EXPECT_TRUE(rig.room->could_make(ComponentKind::kFull, 7));
  EXPECT_TRUE(rig.make(7, false).is_ok());
  EXPECT_TRUE(rig.on_device(nodes[3]));
  rig.tiers->tree().unlock(lock);
}

// A request that needs pages and a state takes no page while there is no state for it.
TEST(DeviceRoomTest, OneComponentWithoutRoomKeepsTheOthersInPlace) {
  RoomRig rig({.host_pages = 0});
  (void)rig.add("bbbb");
  const NodeId a = rig.add("aaaa", 0, true);
  LockHandle lock = rig.tiers->tree().lock(a, Tier::kDevice, LockParts{.full = false, .swa = false, .mamba = true});
  const std::vector<DeviceSlot> states = [&] {
    std::array<std::vector<DeviceSlot>, kComponentCount> slots;
    EXPECT_TRUE(rig.device->reserve({0, 0, 3}, slots));
    return slots[index_of(ComponentKind::kMamba)];
  }();
  EXPECT_EQ(rig.room->make_all(RequestId(1), rig.seeker, {4, 0, 1}, false).code(), StatusCode::kOverloaded);
  EXPECT_EQ(rig.device->free_slots(ComponentKind::kFull), 0u);
  rig.room->give_back(ComponentKind::kMamba, states[0]);
  EXPECT_TRUE(rig.room->make_all(RequestId(1), rig.seeker, {4, 0, 1}, false).is_ok());
  EXPECT_EQ(rig.device->free_slots(ComponentKind::kFull), 4u);
  rig.tiers->tree().unlock(lock);
  rig.room->give_back_all(ComponentKind::kMamba, std::span(states).subspan(1));
}

TEST(DeviceRoomTest, TheOldestGetsACopyFirstAndIsWaitedFor) {
  RoomRig rig({});
  const std::vector<NodeId> nodes = fill(rig);
  EXPECT_FALSE(rig.room->is_room_coming(ComponentKind::kFull));
  EXPECT_EQ(rig.make(2).code(), StatusCode::kOverloaded);
  EXPECT_TRUE(rig.room->is_room_coming(ComponentKind::kFull));
  ASSERT_EQ(rig.transfer->copies.size(), 1u);
  EXPECT_EQ(rig.make(2).code(), StatusCode::kOverloaded);
  EXPECT_EQ(rig.transfer->submitted, 1u) << "one copy is enough";
  rig.end_copy();
  EXPECT_FALSE(rig.room->is_room_coming(ComponentKind::kFull));
  EXPECT_TRUE(rig.make(2).is_ok());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    EXPECT_EQ(rig.on_device(nodes[i]), i >= 2) << i;
    EXPECT_EQ(rig.on_host(nodes[i]), i < 2) << i;
  }
  EXPECT_EQ(rig.seeker.store_waits, 0u);
}

TEST(DeviceRoomTest, AfterACopyThatFailedOneRoundGoesWithout) {
  RoomRig rig({});
  const std::vector<NodeId> nodes = fill(rig);
  EXPECT_FALSE(rig.make(1).is_ok());
  rig.end_copy(false);
  EXPECT_TRUE(rig.make(1).is_ok());
  EXPECT_FALSE(rig.tiers->tree().exists(nodes[0]));
  (void)rig.add("x");
  EXPECT_FALSE(rig.make(1).is_ok()) << "the next round waits again";
  EXPECT_EQ(rig.transfer->copies.size(), 1u);
}

TEST(DeviceRoomTest, WhoMayNotWaitDropsTheOldest) {
  RoomRig rig({});
  const std::vector<NodeId> nodes = fill(rig);
  EXPECT_TRUE(rig.make(1, false).is_ok());
  EXPECT_FALSE(rig.tiers->tree().exists(nodes[0]));
  EXPECT_TRUE(rig.on_device(nodes[1]));
  EXPECT_EQ(rig.transfer->submitted, 0u);
}

TEST(DeviceRoomTest, SelectiveLetsGoOfWhatItDidNotCopy) {
  RigOptions options;
  options.config.write_policy = WritePolicy::kWriteThroughSelective;
  RoomRig rig(options);
  const std::vector<NodeId> nodes = fill(rig);
  EXPECT_TRUE(rig.make(1).is_ok());
  EXPECT_EQ(rig.transfer->submitted, 0u);
  EXPECT_FALSE(rig.tiers->tree().exists(nodes[0]));
}

TEST(DeviceRoomTest, AHostThatCannotTakeTheOldestDoesNotKeepIt) {
  RoomRig rig({.model = "full", .host_pages = 1});
  const NodeId on_host = rig.add("h");
  rig.backups->by_policy(on_host, 0);
  rig.end_copy();
  LockHandle lock = rig.tiers->tree().lock(on_host, Tier::kHost, LockParts{});
  const std::vector<NodeId> nodes = fill(rig);
  rig.tiers->tree().touch({on_host, 1}, false);
  EXPECT_TRUE(rig.make(1).is_ok());
  EXPECT_FALSE(rig.tiers->tree().exists(nodes[0]));
  EXPECT_TRUE(rig.on_device(on_host));
  rig.tiers->tree().unlock(lock);
}

// A storage that hangs is waited for a little, and then pages go.
TEST(DeviceRoomTest, AStorageThatHangsCostsPagesAndNotTime) {
  RoomRig rig({.model = "full", .host_pages = 4});
  ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  rig.backups->by_policy(rig.add("hhhh"), 0);
  rig.end_copy();
  rig.poll();
  ASSERT_EQ(rig.storage.writes.size(), 1u);
  (void)rig.add("xxxx");
  std::uint32_t refused = 0;
  for (; refused < 1000 && !rig.make(5).is_ok(); ++refused) {
    EXPECT_TRUE(rig.room->is_room_coming(ComponentKind::kFull)) << refused;
    rig.poll();
  }
  EXPECT_EQ(refused, rig.seeker.store_waits);
  EXPECT_GT(refused, 0u);
  EXPECT_LE(refused, 32u);  // polls that the backlog may be waited for
  EXPECT_EQ(rig.tiers->counters().store_waits, refused);
}

// Room on the host that a fetch waits for makes none here.
TEST(DeviceRoomTest, AFetchThatWaitsForStorageIsNoRoomToCome) {
  RoomRig rig({.model = "full", .host_pages = 4});
  ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  rig.backups->by_policy(rig.add("hhhh"), 0);
  rig.end_copy();
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  EXPECT_EQ(rig.tiers->host_room().take({1, 0, 0}, HostEffort::kGently, slots), HostAnswer::kWaitsForStores);
  EXPECT_FALSE(rig.room->is_room_coming(ComponentKind::kFull));
  rig.poll();
  EXPECT_EQ(rig.tiers->counters().store_waits, 1u) << "it uses up patience all the same";
}

// Each request waits so often in its life, whatever storage takes meanwhile.
TEST(DeviceRoomTest, ARequestThatHasWaitedOftenEnoughWaitsNoMore) {
  RoomRig rig({.model = "full", .host_pages = 4});
  ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  rig.backups->by_policy(rig.add("hhhh"), 0);
  rig.end_copy();
  rig.poll();
  (void)rig.add("xxxx");
  rig.seeker.store_waits = 127;
  EXPECT_FALSE(rig.make(5).is_ok());
  EXPECT_EQ(rig.seeker.store_waits, 128u);
  EXPECT_TRUE(rig.make(5).is_ok());
}

// A full host has judged the page worth least and let go of it before storage had it. Storage gets pages by way of the
// host: a copy is made again, as long as there is a storage that takes it.
TEST(DeviceRoomTest, WhatStorageLacksIsCopiedAgainWhateverTheHostThinksOfIt) {
  for (const bool has_storage : {true, false}) {
    SCOPED_TRACE(has_storage ? "with a storage" : "without");
    RoomRig rig({.model = "full", .host_pages = 1});
    const NodeId judged = rig.add("j");
    rig.backups->by_policy(judged, 0);
    rig.end_copy();
    EXPECT_EQ(rig.tiers->tree().evict_host(ComponentKind::kFull, 1).demoted, 1u);
    rig.backups->by_policy(rig.add("h"), 0);
    rig.end_copy();
    if (has_storage) {
      ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
    }
    (void)fill(rig);
    EXPECT_EQ(rig.make(1).is_ok(), !has_storage);
    EXPECT_EQ(rig.tiers->tree().exists(judged), has_storage);
    for (int round = 0; has_storage && round < 10 && !rig.on_host(judged); ++round) {
      rig.poll();
      for (auto& write : std::exchange(rig.storage.writes, {})) write.done(WriteResult{{Status::ok()}});
      rig.end_all();
      (void)rig.make(1);
    }
    EXPECT_EQ(rig.on_host(judged), has_storage);
  }
}

// A page without a host copy stands above what a detached storage still writes: the write keeps its buffers, and lets
// the tree go.
TEST(DeviceRoomTest, WhatADetachedStorageWritesHoldsNoDeviceSlots) {
  RoomRig rig({.model = "full"});
  const NodeId parent = rig.add("p");
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  ASSERT_EQ(rig.tiers->host_room().take({1, 0, 0}, HostEffort::kAll, slots), HostAnswer::kThere);
  const std::vector<TokenId> tokens = rig.tokens_of("pc");
  ASSERT_TRUE(rig.tiers->tree()
                  .insert_host({.space = rig.space, .tokens = tokens, .from = 1, .full = slots[0], .state = {}})
                  .is_ok());
  rig.tiers->counts().prefetched += 1;
  ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  rig.poll();
  ASSERT_EQ(rig.storage.writes.size(), 1u);
  rig.config.write_policy = WritePolicy::kWriteThroughSelective;  // nobody waits for a copy of the parent
  EXPECT_EQ(rig.make(8).code(), StatusCode::kOverloaded) << "an attached storage is waited for";
  EXPECT_TRUE(rig.on_device(parent));
  rig.tiers->detach_storage();
  EXPECT_TRUE(rig.make(8).is_ok());
  EXPECT_FALSE(rig.tiers->tree().exists(parent));
  EXPECT_LT(rig.host->free_blocks(), rig.host->total_blocks()) << "the write has its buffer";
}

// What a request let go while it is being copied is room to come.
TEST(DeviceRoomTest, APathThatWasLetGoComesWhenItIsCopied) {
  RoomRig rig({});
  (void)rig.add("a");
  const NodeId ab = rig.add("ab", 1);
  rig.room->committed(ab, 0);
  ASSERT_EQ(rig.transfer->copies.size(), 1u);
  EXPECT_FALSE(rig.room->is_room_coming(ComponentKind::kFull));
  rig.room->path_let_go(ab);
  EXPECT_TRUE(rig.room->is_room_coming(ComponentKind::kFull));
  rig.end_copy();
  EXPECT_FALSE(rig.room->is_room_coming(ComponentKind::kFull));
}

// However many requests end on a path whose copy takes its time: it is waited for once.
TEST(DeviceRoomTest, APathThatManyLetGoIsNotedOnce) {
  RoomRig rig({});
  (void)rig.add("a");
  const NodeId ab = rig.add("ab", 1);
  rig.room->committed(ab, 0);
  for (int i = 0; i < 100; ++i) rig.room->path_let_go(ab);
  EXPECT_EQ(rig.room->nodes_awaited(), 2u);
  rig.end_copy();
  EXPECT_FALSE(rig.room->is_room_coming(ComponentKind::kFull));
  EXPECT_EQ(rig.room->nodes_awaited(), 0u);
}

// Victims that stand on the same path wait for one copy of it.
TEST(DeviceRoomTest, APathThatManyVictimsShareIsNotedOnce) {
  RoomRig rig({});
  (void)rig.add("aaaa");
  for (const char* leaf : {"aaaab", "aaaac", "aaaad", "aaaae"}) (void)rig.add(leaf, 4);
  EXPECT_FALSE(rig.make(4).is_ok());
  EXPECT_EQ(rig.room->nodes_awaited(), 5u);
  rig.end_all();
  EXPECT_TRUE(rig.make(4).is_ok());
}

// Pages that the tree has already go back, or to the steps that may still touch them.
TEST(DeviceRoomTest, DuplicatesGoToTheirKeeper) {
  RoomRig rig({.model = "full"});
  (void)rig.add("ab");
  const std::vector<TokenId> tokens = rig.tokens_of("ab");
  StepLedger ledger(2);
  (void)ledger.add(0, 1, {});
  for (StepLedger* const keeper : {static_cast<StepLedger*>(nullptr), &ledger}) {
    LockHandle held =
        rig.tiers->tree().lock(rig.tiers->tree().spaces().root(rig.space), Tier::kDevice, {.mamba = false});
    std::array<std::vector<DeviceSlot>, kComponentCount> slots;
    ASSERT_TRUE(rig.device->reserve({2, 0, 0}, slots));
    const Result<InsertResult> result = rig.room->extend(held, {.tokens = tokens, .full = slots[0]}, keeper);
    ASSERT_TRUE(result.is_ok());
    EXPECT_EQ(result->duplicate_pages, 2u);
    EXPECT_EQ(rig.device->slots(ComponentKind::kFull).counts().live, keeper == nullptr ? 2u : 4u);
    rig.tiers->tree().unlock(held);
  }
  EXPECT_TRUE(ledger.has_limbo());
  (void)ledger.take(1);
  ledger.release([&](ComponentKind c, DeviceSlot slot) { rig.room->give_back(c, slot); }, [](LockHandle&) {});
  EXPECT_EQ(rig.check(), "");
}

TEST(DeviceRoomTest, ASlotThatIsGivenBackTwiceIsCounted) {
  RoomRig rig({});
  const DeviceSlot slot = *rig.device->allocate(ComponentKind::kFull);
  rig.room->give_back(ComponentKind::kFull, slot);
  EXPECT_EQ(rig.tiers->counts().internal_errors, 0u);
  rig.room->give_back(ComponentKind::kFull, slot);
  EXPECT_EQ(std::exchange(rig.tiers->counts().internal_errors, 0), 1u);
}

// Whatever happens around it: the books balance, and once every copy has ended, what could be made is made within a
// few rounds.
class DeviceRoomRandom : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(DeviceRoomRandom, RoomThatCouldBeMadeIsMade) {
  Rng rng(GetParam());
  RigOptions options{.model = rng.below(2) == 0 ? "full_swa_mamba" : "full", .device = {12, 12, 4}};
  options.host_pages = 8 + rng.below(40);
  options.config.write_policy = static_cast<WritePolicy>(rng.below(3));
  RoomRig rig(options);
  std::vector<NodeId> nodes;
  std::vector<LockHandle> locks;
  for (int step = 0; step < 300 && !::testing::Test::HasFailure(); ++step) {
    const auto choice = rng.below(10);
    const auto& pick = [&] { return nodes[rng.below(nodes.size())]; };
    std::erase_if(nodes, [&](NodeId node) { return !rig.tiers->tree().exists(node); });
    if (choice < 4) {
      std::string name;
      for (std::uint64_t i = 0, pages = 1 + rng.below(4); i < pages; ++i) name += static_cast<char>('a' + rng.below(3));
      const ComponentCounts counts{static_cast<std::uint32_t>(name.size()),
                                   rig.model.has(ComponentKind::kSwa) ? static_cast<std::uint32_t>(name.size()) : 0,
                                   rig.model.has(ComponentKind::kMamba) ? 1u : 0u};
      if (!rig.room->make_all(RequestId(1), rig.seeker, counts, false).is_ok()) continue;
      nodes.push_back(rig.add(name, 0, counts[index_of(ComponentKind::kMamba)] > 0));
      rig.room->committed(nodes.back(), 0);
    } else if (choice == 4 && !nodes.empty() && locks.size() < 2) {
      locks.push_back(rig.tiers->tree().lock(pick(), Tier::kDevice, LockParts{}));
    } else if (choice == 5 && !locks.empty()) {
      rig.room->path_let_go(locks.back().node);
      rig.tiers->tree().unlock(locks.back());
      locks.pop_back();
    } else if (choice < 8 && !rig.transfer->copies.empty()) {
      rig.end_copy(rng.below(4) != 0);
    } else if (choice == 8) {
      rig.end_all();
      const auto c = kAllComponents[rng.below(kComponentCount)];
      const auto want = static_cast<std::uint32_t>(rng.below(12));
      if (!rig.room->could_make(c, want)) continue;
      int rounds = 0;
      while (!rig.room->make_room(rig.seeker, c, want, true).is_ok() && ++rounds < 30) rig.end_all();
      EXPECT_LT(rounds, 30) << component_name(c) << " " << want;
    }
    EXPECT_EQ(rig.check(), "") << "seed " << GetParam() << ", step " << step;
  }
  for (LockHandle& lock : locks) rig.tiers->tree().unlock(lock);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceRoomRandom, ::testing::Range<std::uint64_t>(0, 60));

}  // namespace
}  // namespace larder::test
