// SPDX-License-Identifier: Apache-2.0
// The frame that both façades stand on: what it hands out, and the storage that comes and goes.
#include "controller/lower_tiers.h"

#include <gtest/gtest.h>

#include "tests/cache/room_rig.h"

namespace larder::test {
namespace {

TEST(LowerTiersTest, TheFacadesOperationsAreHandedOutAndErased) {
  RoomRig rig({});
  OpTable& ops = rig.tiers->ops();
  for (const OpKind kind : {OpKind::kLoad, OpKind::kStateCopy}) {
    for (const bool is_ok : {true, false}) {
      const OpId id = ops.add(kind).id;
      ops.completion_for(id)(TransferDone{id, is_ok ? Status::ok() : unavailable("failed"), {}, {}});
      EXPECT_TRUE(rig.ended.empty()) << "not before the poll";
      EXPECT_TRUE(rig.tiers->poll(Nanos{0}));
      ASSERT_EQ(rig.ended.size(), 1u);
      EXPECT_EQ(rig.ended[0], std::pair(kind, is_ok));
      EXPECT_EQ(ops.find(id), nullptr);
      rig.ended.clear();
    }
  }
  EXPECT_FALSE(rig.tiers->poll(Nanos{0}));
}

TEST(LowerTiersTest, TimersAreTheRoomsOwn) {
  RoomRig rig({});
  const OpId timer = rig.tiers->ops().add_timer(rig.clock.now() + Nanos{5}).id;
  rig.poll();
  EXPECT_NE(rig.tiers->ops().find(timer), nullptr);
  rig.clock.advance(Nanos{5});
  rig.poll();
  EXPECT_EQ(rig.tiers->ops().find(timer), nullptr);
  EXPECT_TRUE(rig.ended.empty());
}

TEST(LowerTiersTest, OneStorageAtATimeAndOnlyBeneathAHost) {
  RoomRig without({.host_pages = 0});
  EXPECT_EQ(without.tiers->attach_storage(without.storage).code(), StatusCode::kInvalidArgument);
  RoomRig rig({});
  PatientBackend second;
  EXPECT_EQ(rig.tiers->storage(), nullptr);
  EXPECT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  EXPECT_EQ(rig.tiers->storage(), &rig.storage);
  EXPECT_EQ(rig.tiers->attach_storage(second).code(), StatusCode::kConflict);
  rig.tiers->detach_storage();
  EXPECT_EQ(rig.tiers->storage(), nullptr);
  EXPECT_TRUE(rig.tiers->attach_storage(second).is_ok());
}

// What hangs in a storage that was detached is not the next one's.
TEST(LowerTiersTest, AStorageIsIdleWhenNothingOfItsOwnIsInFlight) {
  RoomRig rig({.model = "full"});
  ASSERT_TRUE(rig.tiers->attach_storage(rig.storage).is_ok());
  EXPECT_TRUE(rig.tiers->storage_idle());
  rig.backups->by_policy(rig.add("a"), 0);
  EXPECT_TRUE(rig.tiers->storage_idle()) << "a copy is not storage's";
  rig.end_copy();
  ASSERT_EQ(rig.storage.writes.size(), 1u);
  EXPECT_FALSE(rig.tiers->storage_idle());
  rig.tiers->detach_storage();
  EXPECT_FALSE(rig.tiers->storage_idle());
  PatientBackend second;
  ASSERT_TRUE(rig.tiers->attach_storage(second).is_ok());
  rig.poll();
  ASSERT_EQ(second.writes.size(), 1u) << "it gets what the host has";
  second.writes[0].done(WriteResult{{Status::ok()}});
  rig.poll();
  EXPECT_TRUE(rig.tiers->storage_idle());
  rig.tiers->storage_cleared();
  rig.poll();
  ASSERT_EQ(second.writes.size(), 2u) << "nothing counts as stored any more";
  second.writes[1].done(WriteResult{{Status::ok()}});
  rig.poll();
}

TEST(LowerTiersTest, AFlushDropsBothTiersAndKeepsWhatIsHeld) {
  RoomRig rig({.model = "full"});
  const NodeId a = rig.add("aa"), b = rig.add("b");
  rig.backups->by_policy(a, 0);
  rig.end_copy();
  LockHandle lock = rig.tiers->tree().lock(b, Tier::kDevice, LockParts{});
  EXPECT_EQ(rig.tiers->flush(), 4u);  // two pages in two tiers
  EXPECT_TRUE(rig.on_device(b));
  rig.tiers->tree().unlock(lock);
  EXPECT_EQ(rig.tiers->flush(), 1u);
  EXPECT_EQ(rig.tiers->counters().host_flushed, 2u);
  EXPECT_EQ(rig.tiers->counters().host_evicted, 0u) << "nobody needed room";
}

TEST(LowerTiersTest, HostSlotsThatNobodyOwnsBreakTheBooks) {
  RoomRig rig({.model = "full"});
  const std::optional<HostSlot> slot = rig.host->allocate(ComponentKind::kFull);
  EXPECT_EQ(rig.tiers->check_invariants({}).code(), StatusCode::kInternal);
  EXPECT_TRUE(rig.tiers->check_invariants({1, 0, 0}).is_ok()) << "unless they are the facade's";
  EXPECT_TRUE(rig.host->free(ComponentKind::kFull, *slot).is_ok());
  ++rig.tiers->counts().backed_up;
  EXPECT_EQ(rig.tiers->check_invariants({}).code(), StatusCode::kInternal);
  --rig.tiers->counts().backed_up;
}

}  // namespace
}  // namespace larder::test
