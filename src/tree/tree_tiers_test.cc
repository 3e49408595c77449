// SPDX-License-Identifier: Apache-2.0
// Two tiers: backup, load-back, adoption, pending data, covers; window and state beside full.
#include <gtest/gtest.h>

#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

// ---- joint restore points

TEST(TreeJoint, StateAtThreeAndWindowAtTwoIsNoRestorePoint) {
  // DESIGN.md section 1: the minimum of the components' own answers (2) is not the answer (0).
  Fixture f(config_of(1, 2, true));
  const Tokens tokens = iota_tokens(3);
  f.insert(tokens, {.swa_from = 0, .checkpoints = {3}});
  EXPECT_EQ(f.device_pages(tokens), 3u);
  LockHandle handle = f.lock(f.match(tokens).walked.node, kDev, {.full = true, .swa = false, .mamba = true});
  (void)f.tree.evict_device(kSwa, 3, VictimRule::kDrop);  // the state stays, because it is locked
  const MatchResult m = f.match(tokens);
  EXPECT_EQ(m.full_device_pages, 3u);
  EXPECT_EQ(m.device.at.pages, 0u);
  EXPECT_EQ(m.device.reason, StopReason::kWindowMissing);
  EXPECT_EQ(m.device.component, kSwa);
  f.tree.unlock(handle);
}

TEST(TreeJoint, StopsAtTheNearestCheckpointBelow) {
  Fixture f(config_of(2, 0, true));
  const Tokens tokens = iota_tokens(20);
  f.insert(tokens, {.checkpoints = {4, 10}});
  EXPECT_EQ(f.device_pages(tokens), 10u);
  Tokens fork = tokens;
  fork[15] = 999;  // leaves the path inside page 7
  const MatchResult m = f.match(fork);
  EXPECT_EQ(m.walked.pages, 7u);
  EXPECT_EQ(m.full_device_pages, 7u) << "where a fork checkpoint belongs";
  EXPECT_EQ(m.device.at.pages, 4u);
  EXPECT_EQ(m.device.reason, StopReason::kStateMissing);
  EXPECT_EQ(m.device.component, kMamba);
}

TEST(TreeJoint, WindowsShorterThanAPageAndLongerThanThePrefix) {
  {
    Fixture f(config_of(4, 1));  // the window needs one page
    const Tokens tokens = iota_tokens(20);
    f.insert(tokens, {.swa_from = 3});
    EXPECT_EQ(f.device_pages(tokens), 5u);
    EXPECT_EQ(f.device_pages(iota_tokens(16)), 4u);
    EXPECT_EQ(f.device_pages(iota_tokens(12)), 0u);
  }
  Fixture f(config_of(4, 1000));  // longer than any path: all of it is needed
  const Tokens tokens = iota_tokens(20);
  f.insert(tokens);
  EXPECT_EQ(f.device_pages(tokens), 5u);
  EXPECT_EQ(f.device_pages(iota_tokens(8)), 2u);
}

TEST(TreeJoint, InvalidWindowSlotsMakeTombstonesAndALaterInsertRecoversThem) {
  Fixture f(config_of(1, 3));
  const Tokens tokens = iota_tokens(10);
  f.insert(tokens, {.swa_from = 7});
  EXPECT_EQ(f.counts(kSwa, kDev).resident, 3u);
  EXPECT_EQ(f.tree.node_count(), 2u) << "the edge is split so that it is uniform";
  EXPECT_EQ(f.device_pages(iota_tokens(9)), 0u);
  const InsertResult again = f.insert(iota_tokens(9), {.swa_from = 6});
  EXPECT_EQ(again.duplicate_pages, 9u);
  EXPECT_EQ(again.recovered_pages, 1u) << "page 6; pages 7 and 8 are duplicates";
  EXPECT_EQ(f.device_pages(iota_tokens(9)), 9u);
  EXPECT_EQ(f.device_pages(tokens), 10u);
}

TEST(TreeJoint, SeveralStretchesOfAWindowMayLieInOneEdge) {
  Fixture f(config_of(1, 3));
  f.insert(iota_tokens(8), {.swa_from = 1});
  // Found by the property test: stretches {1}, {3}, {6, 7}, {8} over the edge [1, 8) and a new page.
  const Tokens tokens = iota_tokens(9);
  std::vector<DeviceSlot> full = f.ledger.device(kFull, 9), swa(9);
  for (const std::size_t i : {1u, 3u, 6u, 7u, 8u}) swa[i] = f.ledger.device(kSwa);
  ASSERT_TRUE(f.insert_pages({f.space, tokens, 0, full, swa}).is_ok());
  EXPECT_EQ(f.ledger.came_back(kSwa, kDev).size(), 4u);
  f.check();
}

TEST(TreeJoint, RecoversTombstonesUnderALockedFull) {
  Fixture f(config_of(1, 2));
  const Tokens tokens = iota_tokens(6);
  const NodeId node = f.insert(tokens).node;
  LockHandle handle = f.lock(node, kDev, {.full = true, .swa = false, .mamba = false});
  (void)f.tree.evict_device(kSwa, 6, VictimRule::kDrop);
  EXPECT_EQ(f.device_pages(tokens), 0u);
  EXPECT_EQ(f.insert(tokens).recovered_pages, 6u);
  EXPECT_EQ(f.device_pages(tokens), 6u);
  f.tree.unlock(handle);
  f.check();
}

TEST(TreeJoint, ADuplicateCheckpointGoesBack) {
  Fixture f(config_of(1, 0, true));
  const Tokens tokens = iota_tokens(5);
  EXPECT_EQ(f.insert(tokens, {.checkpoints = {2, 5}}).checkpoints_kept, 2u);
  EXPECT_EQ(f.insert(tokens, {.checkpoints = {2, 3, 5}}).checkpoints_kept, 1u);
  EXPECT_EQ(f.ledger.came_back(kMamba, kDev), (std::vector<std::uint32_t>{4, 2}));
  EXPECT_EQ(f.device_pages(iota_tokens(4)), 3u);
}

// ---- backup and demotion

TEST(TreeBackup, PublishesOnlyWhenTheCopyIsDone) {
  Fixture f(config_of(2, 2, true));
  const Tokens tokens = iota_tokens(8);
  const NodeId node = f.insert(tokens, {.checkpoints = {4}}).node;
  ASSERT_TRUE(f.start_backup(OpId(1), node).is_ok());
  f.check();
  EXPECT_TRUE(f.tree.view(node).host_pending[index_of(kFull)]);
  EXPECT_FALSE(f.match(tokens).meets_load) << "a copy to the host lengthens no match";
  EXPECT_TRUE(f.tree.backlog().unstored(1, 10).empty()) << "not there yet";
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kDrop).freed, 0u) << "covered while it is read";
  EXPECT_EQ(f.tree.finish_op(OpId(1), true), std::vector<NodeId>{node});
  f.check();
  EXPECT_EQ(f.tree.backlog().unstored(1, 10), std::vector<NodeId>{node});
  f.tree.backlog().set_stored(node, 1);
  EXPECT_TRUE(f.tree.backlog().unstored(1, 10).empty());
  EXPECT_EQ(f.tree.backlog().unstored(2, 10), std::vector<NodeId>{node});
  // Demotion keeps the host copy and every component of it.
  const EvictResult out = f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst);
  EXPECT_EQ(out.freed, 4u);
  EXPECT_EQ(out.demoted, 4u);
  EXPECT_EQ(f.device_pages(tokens), 0u);
  EXPECT_EQ(f.any_pages(tokens), 4u);
  EXPECT_TRUE(f.ledger.out(kMamba, kDev).empty());
  f.check();
}

TEST(TreeBackup, WhatIsStoredIsForgottenWhenMoreArrives) {
  Fixture f(config_of(1, 0, true));
  const NodeId node = f.insert(iota_tokens(4)).node;
  f.back_up(node);
  f.tree.backlog().set_stored(node, 3);
  const NodeId head = f.tree.settle({node, 2});
  EXPECT_EQ(f.tree.view(head).stored_epoch, 3u);
  f.insert(iota_tokens(4), {.checkpoints = {4}});
  f.back_up(node);
  EXPECT_EQ(f.tree.backlog().unstored(3, 10), std::vector<NodeId>{node}) << "its state is not in storage";
  f.tree.backlog().set_stored(node, 3);
  EXPECT_EQ(f.tree.evict_host(kFull, 4).demoted, 4u);
  f.back_up(head);
  f.back_up(node);
  EXPECT_TRUE(f.tree.backlog().unstored(3, 10).empty()) << "the same bytes came back";
}

TEST(TreeBackup, AFailedCopyIsDetached) {
  Fixture f(config_of(1));
  const NodeId node = f.insert(iota_tokens(4)).node;
  ASSERT_TRUE(f.start_backup(OpId(1), node).is_ok());
  EXPECT_EQ(f.tree.finish_op(OpId(1), false), std::vector<NodeId>{node});
  EXPECT_TRUE(f.ledger.out(kFull, kHst).empty());
  EXPECT_TRUE(f.tree.finish_op(OpId(1), true).empty()) << "unknown by now";
  f.check();
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kDrop).dropped, 4u);
}

TEST(TreeBackup, ASplitWhilePendingKeepsBothHalvesUnderTheOp) {
  Fixture f(config_of(1, 2));
  const NodeId node = f.insert(iota_tokens(4)).node;
  ASSERT_TRUE(f.start_backup(OpId(7), node).is_ok());
  f.insert(iota_tokens(2) + iota_tokens(2, 80));  // splits at 2
  const NodeId head = f.tree.view(node).parent;
  const NodeId upper = f.tree.settle({head, 1});
  f.check();
  EXPECT_EQ(f.tree.evict_device(kFull, 100, VictimRule::kDrop).freed, 2u) << "only the fork is free to go";
  EXPECT_EQ(f.tree.finish_op(OpId(7), true), (std::vector<NodeId>{upper, head, node})) << "parents first";
  f.check();
  EXPECT_EQ(f.tree.backlog().unstored(1, 10), (std::vector<NodeId>{upper, head, node}));
  EXPECT_EQ(f.tree.backlog().unstored(1, 2), (std::vector<NodeId>{upper, head}));
}

TEST(TreeBackup, ParentsComeFirst) {
  Fixture f(config_of(1));
  const NodeId parent = f.insert(iota_tokens(2)).node, child = f.insert(iota_tokens(4)).node;
  EXPECT_EQ(f.start_backup(OpId(1), child).code(), StatusCode::kConflict);
  (void)f.ledger.came_back(kFull, kHst);
  ASSERT_TRUE(f.start_backup(OpId(1), parent).is_ok());
  ASSERT_TRUE(f.start_backup(OpId(2), child).is_ok()) << "a parent under way is enough";
  // The child's copy is done first: it waits for its parent's.
  EXPECT_EQ(f.tree.finish_op(OpId(2), true), std::vector<NodeId>{child});
  EXPECT_TRUE(f.tree.view(child).host_pending[index_of(kFull)]);
  f.check();
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_FALSE(f.tree.view(child).host_pending[index_of(kFull)]);
  EXPECT_EQ(f.counts(kFull, kHst).resident, 4u);
  f.check();
}

TEST(TreeBackup, AChildFallsWithItsParentsFailedCopy) {
  Fixture f(config_of(1, 4));
  const NodeId parent = f.insert(iota_tokens(2)).node, child = f.insert(iota_tokens(4)).node;
  ASSERT_TRUE(f.start_backup(OpId(1), parent).is_ok());
  ASSERT_TRUE(f.start_backup(OpId(2), child).is_ok());
  (void)f.tree.finish_op(OpId(2), true);
  (void)f.tree.finish_op(OpId(1), false);
  EXPECT_TRUE(f.ledger.out(kFull, kHst).empty());
  EXPECT_TRUE(f.ledger.out(kSwa, kHst).empty());
  f.check();
}

TEST(TreeBackup, WriteBackMayLeaveGaps) {
  TreeConfig config = config_of(1);
  config.allow_host_gaps = true;
  Fixture f(config);
  f.insert(iota_tokens(2));
  const NodeId child = f.insert(iota_tokens(4)).node;
  f.back_up(child);
  EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kBackUpFirst).demoted, 2u);
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 4u) << "device, then host";
  // The parent has no copy: backing up first names it, dropping takes what hangs on it along.
  const EvictResult named = f.tree.evict_device(kFull, 2, VictimRule::kBackUpFirst);
  EXPECT_EQ(named.freed, 0u);
  EXPECT_EQ(named.needs_backup.size(), 1u);
  LockHandle reader = f.lock(child, kHst);
  EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).freed, 0u) << "a reader hangs on it";
  f.tree.unlock(reader);
  f.check();
  EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).dropped, 2u);
  EXPECT_EQ(f.tree.node_count(), 0u);
  f.check();
}

TEST(TreeBackup, RefusesWhatDoesNotFit) {
  Fixture f(config_of(1, 0, true));
  const NodeId node = f.insert(iota_tokens(3), {.checkpoints = {3}}).node;
  const auto two = f.ledger.host(kFull, 2), one = f.ledger.host(kMamba, 1);
  EXPECT_EQ(f.tree.attach_host(OpId(1), node, kFull, two).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.attach_host(OpId(1), node, kSwa, two).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.attach_host(OpId(1), node, kMamba, one).code(), StatusCode::kConflict) << "full goes first";
  EXPECT_EQ(f.tree.attach_host(OpId(1), NodeId(55), kFull, two).code(), StatusCode::kNotFound);
  const std::vector<HostSlot> holes(3);
  EXPECT_EQ(f.tree.attach_host(OpId(1), node, kFull, holes).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(f.tree.finish_op(OpId(1), true).empty()) << "nothing was attached";
}

// ---- load-back

class TreeLoad : public testing::Test {
 protected:
  // Eight pages on the host only.
  void SetUp() override {
    node = f.insert(tokens, {.checkpoints = {8}}).node;
    f.back_up(node);
    (void)f.tree.evict_device(kFull, 8, VictimRule::kBackUpFirst);
    ASSERT_EQ(f.device_pages(tokens), 0u);
  }
  Fixture f{config_of(1, 2, true)};
  Tokens tokens = iota_tokens(8);
  NodeId node;
};

TEST_F(TreeLoad, PublishesAllComponentsAtTheEnd) {
  EXPECT_EQ(f.any_pages(tokens), 8u);
  EXPECT_EQ(f.match(tokens).device.reason, StopReason::kFullMissing);
  const OpId op(1);
  ASSERT_TRUE(f.tree.attach_device(op, node, kFull, 0, f.ledger.device(kFull, 8)).is_ok());
  ASSERT_TRUE(f.tree.attach_device(op, node, kSwa, 6, f.ledger.device(kSwa, 2)).is_ok());
  ASSERT_TRUE(f.tree.attach_device(op, node, kMamba, 0, f.ledger.device(kMamba, 1)).is_ok());
  f.check();
  EXPECT_EQ(f.device_pages(tokens), 0u);
  EXPECT_EQ(f.any_pages(tokens), 8u) << "the host copy still serves";
  EXPECT_TRUE(f.match(tokens).meets_load);
  EXPECT_EQ(f.tree.evict_host(kFull, 8).freed, 0u) << "covered in both tiers";
  std::vector<PageLocation> where;
  f.tree.locate(node, kFull, 0, 8, where);
  EXPECT_FALSE(where[3].device.valid()) << "not published";
  EXPECT_TRUE(where[3].host.valid());
  EXPECT_EQ(f.tree.finish_op(op, true).size(), 2u) << "split where the window begins";
  EXPECT_EQ(f.device_pages(tokens), 8u);
  EXPECT_FALSE(f.match(tokens).meets_load);
  where.clear();
  f.tree.locate(node, kMamba, 0, 0, where);
  ASSERT_EQ(where.size(), 1u);
  EXPECT_TRUE(where[0].device.valid());
  f.check();
}

TEST_F(TreeLoad, AStateUnderWayStaysWithTheTailOfASplit) {
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 8)).is_ok());
  (void)f.tree.finish_op(OpId(1), true);
  ASSERT_TRUE(f.tree.attach_device(OpId(2), node, kMamba, 0, f.ledger.device(kMamba, 1)).is_ok());
  const NodeId head = f.tree.settle({node, 4});
  // Another operation brings a state to the head; the first one ends badly and must not take it along.
  const auto host_state = f.ledger.host(kMamba, 1);
  ASSERT_TRUE(f.tree.attach_host(OpId(3), head, kMamba, host_state).is_ok());
  ASSERT_TRUE(f.tree.attach_device(OpId(4), head, kMamba, 0, f.ledger.device(kMamba, 1)).is_ok());
  EXPECT_EQ(f.tree.finish_op(OpId(2), false).size(), 2u);
  f.check();
  EXPECT_EQ(f.counts(kMamba, kDev).pending, 1u);
  (void)f.tree.finish_op(OpId(3), true);
  (void)f.tree.finish_op(OpId(4), true);
  EXPECT_EQ(f.tree.view(head).device[index_of(kMamba)].size(), 1u);
  f.check();
}

TEST_F(TreeLoad, AttachesAPartOfAnEdge) {
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 3)).is_ok());
  EXPECT_EQ(f.tree.finish_op(OpId(1), true).size(), 1u);
  EXPECT_EQ(f.match(tokens).full_device_pages, 3u);
  f.check();
}

TEST_F(TreeLoad, ConflictsAttachNothing) {
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 3)).is_ok());
  const auto slots = f.ledger.device(kFull, 8);
  EXPECT_EQ(f.tree.attach_device(OpId(2), node, kFull, 0, slots).code(), StatusCode::kConflict);
  EXPECT_EQ(f.tree.attach_device(OpId(2), node, kFull, 2, std::span(slots).first(2)).code(), StatusCode::kConflict);
  EXPECT_EQ(f.tree.attach_device(OpId(2), node, kFull, 5, std::span(slots).first(2)).code(), StatusCode::kConflict)
      << "a hole on the device";
  EXPECT_EQ(f.tree.attach_device(OpId(2), node, kSwa, 6, f.ledger.device(kSwa, 2)).code(), StatusCode::kConflict);
  EXPECT_EQ(f.tree.attach_device(OpId(2), node, kFull, 6, slots).code(), StatusCode::kInvalidArgument) << "too long";
  EXPECT_TRUE(f.tree.finish_op(OpId(2), true).empty());
}

TEST_F(TreeLoad, AFailureLeavesTheHostCopy) {
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 8)).is_ok());
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kMamba, 0, f.ledger.device(kMamba, 1)).is_ok());
  (void)f.tree.finish_op(OpId(1), false);
  f.check();
  EXPECT_TRUE(f.ledger.out(kFull, kDev).empty());
  EXPECT_EQ(f.any_pages(tokens), 8u);
}

TEST_F(TreeLoad, ALaterPartWaitsForTheEarlierOne) {
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 3)).is_ok());
  ASSERT_TRUE(f.tree.attach_device(OpId(2), node, kFull, 3, f.ledger.device(kFull, 5)).is_ok());
  (void)f.tree.finish_op(OpId(2), true);
  f.check();
  EXPECT_EQ(f.match(tokens).full_device_pages, 0u);
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_EQ(f.match(tokens).full_device_pages, 8u);
  f.check();
}

TEST_F(TreeLoad, AnInsertionWaitsForWhatItWasComputedFrom) {
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 8)).is_ok());
  const Tokens longer = iota_tokens(10);
  std::vector<DeviceSlot> slots(10), swa(10);
  for (std::size_t i = 8; i < 10; ++i) slots[i] = f.ledger.device(kFull);
  const InsertRequest request{f.space, longer, 8, slots};
  EXPECT_EQ(f.insert_pages(request).status().code(), StatusCode::kConflict);
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_TRUE(f.insert_pages(request).is_ok());
  f.check();
}

TEST_F(TreeLoad, AnInsertionRecoversEvictedPages) {
  const InsertResult r = f.insert(iota_tokens(5));
  EXPECT_EQ(r.recovered_pages, 10u) << "five of full, five of the window";
  EXPECT_EQ(r.new_pages, 0u);
  EXPECT_EQ(f.device_pages(tokens), 0u) << "no checkpoint at 5";
  EXPECT_EQ(f.match(tokens).full_device_pages, 5u);
  EXPECT_EQ(f.any_pages(tokens), 8u);
}

TEST_F(TreeLoad, ADeviceClaimKeepsAHostOnlyNodeAlive) {
  LockHandle handle = f.lock(node);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 0u) << "absent data is simply not locked";
  EXPECT_EQ(f.tree.evict_host(kFull, 8).freed, 0u);
  ASSERT_TRUE(f.tree.attach_device(OpId(1), node, kFull, 0, f.ledger.device(kFull, 8)).is_ok());
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 8u) << "what arrives comes under the claim";
  EXPECT_EQ(f.tree.evict_host(kFull, 8).freed, 8u);
  f.check();
  f.tree.unlock(handle);
  f.check();
}

TEST_F(TreeLoad, AHostLockProtectsAPartlyLoadedPath) {
  LockHandle handle = f.lock(node, kHst);
  EXPECT_EQ(handle.window_from, 6u);
  EXPECT_EQ(f.counts(kSwa, kHst).locked, 2u);
  EXPECT_EQ(f.tree.evict_host(kFull, 100).freed, 0u);
  EXPECT_EQ(f.tree.evict_host(kSwa, 100).freed, 6u);
  EXPECT_EQ(f.tree.evict_host(kMamba, 100).freed, 0u);
  EXPECT_EQ(f.any_pages(tokens), 8u);
  for (const std::uint64_t at : {2u, 7u}) (void)f.tree.settle({node, at});
  f.check();
  f.tree.unlock(handle);
  f.check();
  EXPECT_EQ(f.tree.evict_host(kFull, 100).freed, 8u);
  EXPECT_EQ(f.tree.node_count(), 0u);
}

TEST_F(TreeLoad, AHostLockOfOwnPagesKeepsTheWholeEdge) {
  LockHandle handle = f.lock(node, kHst, {.full = true, .swa = true, .mamba = true, .own_pages = true});
  EXPECT_EQ(f.tree.node_count(), 1u) << "splits nothing";
  for (const std::uint64_t at : {5u, 2u}) (void)f.tree.settle({node, at});
  f.check();
  for (const ComponentKind c : {kFull, kSwa}) EXPECT_EQ(f.counts(c, kHst).locked, 8u) << component_name(c);
  LockHandle reader = f.lock(node, kHst);  // of the last piece
  (void)f.tree.settle({node, 6});
  f.check();
  f.tree.unlock(reader);
  f.check();
  for (const ComponentKind c : kAllComponents) {
    EXPECT_EQ(f.host_victim(c), NodeId{}) << component_name(c);
    EXPECT_EQ(f.tree.evict_host(c, 100).freed, 0u) << component_name(c);
  }
  f.tree.unlock(handle);
  f.check();
  for (const ComponentKind c : kAllComponents) EXPECT_EQ(f.counts(c, kHst).locked, 0u) << component_name(c);
  EXPECT_EQ(f.tree.evict_host(kFull, 100).freed, 8u);
  EXPECT_EQ(f.tree.node_count(), 0u);
}

TEST_F(TreeLoad, PinsKeepDataInBothTiersThroughSplits) {
  f.tree.cover(OpId(3), node);
  f.tree.cover(OpId(4), node);
  (void)f.tree.settle({node, 4});
  EXPECT_EQ(f.tree.evict_host(kFull, 100).freed, 0u);
  EXPECT_EQ(f.tree.flush(), 2u);
  EXPECT_EQ(f.tree.finish_op(OpId(3), true).size(), 2u);
  EXPECT_EQ(f.tree.evict_host(kFull, 100).freed, 0u);
  EXPECT_EQ(f.tree.finish_op(OpId(4), true).size(), 2u);
  f.check();
  EXPECT_EQ(f.tree.evict_host(kFull, 100).freed, 8u);
}

// ---- adoption of prefetched pages

TEST(TreeAdopt, MakesAHostOnlyRestorePoint) {
  Fixture f(config_of(2, 4, true));
  const Tokens tokens = iota_tokens(12);
  const InsertResult r = f.adopt(tokens, 0, 2, true);
  EXPECT_EQ(r.new_pages, 6u);
  EXPECT_EQ(r.checkpoints_kept, 1u);
  EXPECT_EQ(f.any_pages(tokens), 6u);
  EXPECT_EQ(f.device_pages(tokens), 0u);
  EXPECT_EQ(f.any_pages(iota_tokens(10)), 0u);
}

TEST(TreeAdopt, ContinuesAPrefixAndReturnsDuplicates) {
  Fixture f(config_of(1, 3));
  const NodeId head = f.insert(iota_tokens(4)).node;
  f.back_up(head);
  const InsertResult r = f.adopt(iota_tokens(8), 4, 3);
  EXPECT_EQ(r.new_pages, 4u);
  EXPECT_EQ(f.any_pages(iota_tokens(8)), 8u);
  const InsertResult again = f.adopt(iota_tokens(8), 2, 3);
  EXPECT_EQ(again.new_pages, 0u);
  EXPECT_EQ(again.duplicate_pages, 6u);
  EXPECT_EQ(f.ledger.came_back(kFull, kHst).size(), 6u);
  EXPECT_EQ(f.ledger.came_back(kSwa, kHst).size(), 3u);
}

TEST(TreeAdopt, FillsHostTombstonesBeforeFrom) {
  Fixture f(config_of(1, 4));
  const NodeId head = f.insert(iota_tokens(4)).node;
  f.back_up(head);
  (void)f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst);
  LockHandle keep = f.lock(head, kHst, {.full = true, .swa = false, .mamba = false});
  EXPECT_EQ(f.tree.evict_host(kSwa, 4).freed, 4u);
  const InsertResult r = f.adopt(iota_tokens(6), 4, 4);
  EXPECT_EQ(r.recovered_pages, 2u) << "window pages 2 and 3";
  EXPECT_EQ(f.any_pages(iota_tokens(6)), 6u);
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 0u);
  f.tree.unlock(keep);
}

TEST(TreeAdopt, BeneathADevicePrefixThatHasNoBackupYet) {
  // The reference skips the prefetch in this case (its defect 21).
  Fixture f(config_of(1));
  const NodeId head = f.insert(iota_tokens(4)).node;
  f.adopt(iota_tokens(8), 4);
  EXPECT_EQ(f.any_pages(iota_tokens(8)), 8u);
  const EvictResult named = f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst);
  EXPECT_EQ(named.needs_backup, std::vector<NodeId>{head});
  f.back_up(head);
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst).demoted, 4u);
  EXPECT_EQ(f.any_pages(iota_tokens(8)), 8u);
  f.check();
}

TEST(TreeAdopt, GivesADeviceNodeItsHostCopy) {
  Fixture f(config_of(1));
  f.insert(iota_tokens(4));
  EXPECT_EQ(f.adopt(iota_tokens(6), 0).recovered_pages, 4u);
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst).demoted, 4u);
  EXPECT_EQ(f.any_pages(iota_tokens(6)), 6u);
}

TEST(TreeAdopt, RefusesWhatTheTreeCannotPlace) {
  Fixture f(config_of(1));
  const Tokens tokens = iota_tokens(4);
  const auto slots = f.ledger.host(kFull, 2);
  EXPECT_EQ(f.tree.insert_host({f.space, tokens, 2, slots, {}, {}}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(f.tree.insert_host({f.space, tokens, 1, slots, {}, {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.insert_host({f.space, tokens, 2, slots, slots, {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.insert_host({f.space, tokens, 2, slots, {}, HostSlot(0)}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.node_count(), 0u);
}

TEST(TreeConfigFor, TakesComponentsFromTheModel) {
  ModelSpec model;
  model.id = "tree-test";
  model.layers = {LayerKind::kAttention, LayerKind::kAttention};
  const Status status = finalize_model(model);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  const TreeConfig config = tree_config_for(model, EvictionPolicy::kSlru, true);
  EXPECT_EQ(config.page_size, model.page_size);
  EXPECT_EQ(config.window_tokens, 0u);
  EXPECT_FALSE(config.has_mamba);
  EXPECT_TRUE(config.allow_host_gaps);
  EXPECT_EQ(config.policy, EvictionPolicy::kSlru);
}

}  // namespace
}  // namespace larder::tree_test
