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

}  // namespace
}  // namespace larder::tree_test
