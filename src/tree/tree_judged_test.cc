// SPDX-License-Identifier: Apache-2.0
// What a host that weighs has judged worth least: when no copy of it is made again.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/eviction_policies.h"
#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

const Tokens kJudged = iota_tokens(2, 100), kOld = iota_tokens(2, 200);

// Under an order that weighs, the host has had it, and let go of it: no copy is made again until somebody uses it.
TEST(TreeJudged, WhatAHostThatWeighsHasEvictedIsNotCopiedAgain) {
  for (const bool weighs : {false, true}) {
    for (const bool is_used : {false, true}) {
      SCOPED_TRACE(std::string(weighs ? "value" : "lru") + (is_used ? ", used since" : ""));
      TreeConfig config = config_of(1, 0, true);
      if (weighs) config.order = value_order({});
      Fixture f(config);
      const NodeId old = f.insert(kOld, {.checkpoints = {2}}).node;
      const NodeId judged = f.insert(kJudged, {.checkpoints = {2}}).node;
      f.back_up(old);
      f.back_up(judged);
      LockHandle in_use = f.tree.lock(old, Tier::kHost, {.full = true, .swa = false, .mamba = true});
      EXPECT_EQ(f.tree.evict_host(kMamba, 1).demoted, 1u);
      f.tree.unlock(in_use);
      if (is_used) f.tree.touch(f.match(kJudged).device.at, true);
      EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kBackUpWorth).demoted, 1u) << "`old`, which has its copy";
      const bool is_asked_for = !weighs || is_used;
      const EvictResult out = f.tree.evict_device(kMamba, 1, VictimRule::kBackUpWorth);
      EXPECT_EQ(out.dropped, is_asked_for ? 0u : 1u);
      EXPECT_EQ(out.needs_backup, is_asked_for ? std::vector<NodeId>{judged} : std::vector<NodeId>{});
      f.check();
    }
  }
}

// It is for a host without room: one that has some takes everything.
TEST(TreeJudged, AHostWithRoomTakesWhatItHasEvicted) {
  TreeConfig config = config_of(1, 0, true);
  config.order = value_order({});
  Fixture f(config);
  const NodeId node = f.insert(kJudged, {.checkpoints = {2}}).node;
  f.back_up(node);
  EXPECT_EQ(f.tree.evict_host(kMamba, 1).demoted, 1u);
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kBackUpFirst).needs_backup, std::vector<NodeId>{node});
  f.check();
}

// Its way to storage leads through the host, so what storage lacks is copied again.
enum class StorageHas { kNothing, kAll, kUnderAnotherEpoch, kFullAlone, kDeclined };
class TreeJudgedStored : public testing::TestWithParam<StorageHas> {
 public:
  TreeJudgedStored() : f_(config()) {
    old_ = f_.insert(kOld, {.checkpoints = {2}}).node;
    judged_ = f_.insert(kJudged, {.checkpoints = {2}}).node;
    f_.tree.backlog().track(7);
    f_.tree.backlog().set_wanted({true, true, true});
    f_.back_up(old_);
    f_.back_up(judged_);
    if (GetParam() == StorageHas::kAll) f_.tree.backlog().set_stored(judged_, 7);
    if (GetParam() == StorageHas::kUnderAnotherEpoch) f_.tree.backlog().set_stored(judged_, 6);
    if (GetParam() == StorageHas::kDeclined) f_.tree.backlog().set_declined(judged_, 7);
    (void)f_.tree.lock(old_, Tier::kHost, {.full = true, .swa = false, .mamba = true});
    (void)f_.tree.lock(old_, Tier::kDevice, {.full = true, .swa = false, .mamba = true});
    EXPECT_EQ(f_.tree.evict_host(kMamba, 1).demoted, 1u);
    if (GetParam() == StorageHas::kFullAlone) f_.tree.backlog().set_stored(judged_, 7);
  }

 protected:
  static TreeConfig config() {
    TreeConfig config = config_of(1, 0, true);
    config.order = value_order({});
    return config;
  }
  void expect_named(const EvictResult& out) {
    const bool is_named = GetParam() != StorageHas::kAll && GetParam() != StorageHas::kDeclined;
    EXPECT_EQ(out.needs_backup, is_named ? std::vector<NodeId>{judged_} : std::vector<NodeId>{});
    EXPECT_EQ(out.freed > 0, !is_named);
    f_.check();
  }

  Fixture f_;
  NodeId old_, judged_;
};

TEST_P(TreeJudgedStored, AStateThatStorageLacksIsCopiedAgain) {
  expect_named(f_.tree.evict_device(kMamba, 1, VictimRule::kBackUpWorth));
}

// The leaf leaves with its state, whether or not the host has its pages.
TEST_P(TreeJudgedStored, SoIsALeafWithSuchAState) {
  expect_named(f_.tree.evict_device(kFull, 2, VictimRule::kBackUpWorth));
}

TEST_P(TreeJudgedStored, SoIsALeafOfWhichTheHostHasNothing) {
  EXPECT_EQ(f_.tree.evict_host(kFull, 2).demoted, 2u);
  expect_named(f_.tree.evict_device(kFull, 2, VictimRule::kBackUpWorth));
}

// Somebody has used it since the host has let go of it: it is worth no less for that.
TEST_P(TreeJudgedStored, SoIsALeafWithAStateThatIsUsed) {
  f_.tree.touch(f_.match(kJudged).device.at, true);
  f_.tree.touch(f_.match(kOld).device.at, true);
  expect_named(f_.tree.evict_device(kFull, 2, VictimRule::kBackUpWorth));
}

// A copy would be of no use.
TEST_P(TreeJudgedStored, ButNotForAStorageThatTakesNoneNow) {
  f_.tree.backlog().set_wanted({true, true, false});
  const EvictResult out = f_.tree.evict_device(kMamba, 1, VictimRule::kBackUpWorth);
  EXPECT_EQ(out.dropped, 1u);
  EXPECT_TRUE(out.needs_backup.empty());
  f_.check();
}

INSTANTIATE_TEST_SUITE_P(Storage, TreeJudgedStored,
                         testing::Values(StorageHas::kNothing, StorageHas::kAll, StorageHas::kUnderAnotherEpoch,
                                         StorageHas::kFullAlone, StorageHas::kDeclined));

}  // namespace
}  // namespace larder::tree_test
