// SPDX-License-Identifier: Apache-2.0
// Leaves of which the host has the pages, and not the state or the window: when they are copied first.
#include <gtest/gtest.h>

#include <vector>

#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

const Tokens kLeaf = iota_tokens(2, 100), kOther = iota_tokens(2, 200);

void use_leaf(Fixture& f, const Tokens& tokens) { f.tree.touch(f.match(tokens).device.at, true); }

// A leaf takes its state and its window with it: where the host has its pages and not these, they are copied first.
TEST(TreeLeafState, ALeafWhosePagesHaveACopyStaysForItsState) {
  for (const bool is_kept : {true, false}) {
    TreeConfig config = config_of(1, 0, true);
    config.host_keeps = {true, true, is_kept};
    Fixture f(config);
    const NodeId node = f.insert(kLeaf).node;
    f.back_up(node);
    ASSERT_EQ(f.insert(kLeaf, {.checkpoints = {2}}).node, node);
    const EvictResult out = f.tree.evict_device(kFull, 2, VictimRule::kBackUpFirst);
    EXPECT_EQ(out.needs_backup, is_kept ? std::vector<NodeId>{node} : std::vector<NodeId>{});
    EXPECT_EQ(out.demoted, is_kept ? 0u : 2u) << "a host that keeps no states is not waited for";
    f.check();
    if (!is_kept) continue;
    f.back_up(node);
    EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kBackUpFirst).demoted, 2u);
    EXPECT_EQ(f.match(kLeaf).any.at.pages, 2u);
    f.check();
  }
}

TEST(TreeLeafState, BackUpWorthAsksForTheStateOfALeafWhosePagesHaveACopy) {
  for (const bool is_newer : {true, false}) {
    Fixture f(config_of(1, 0, true));
    const NodeId node = f.insert(kLeaf).node;
    f.back_up(node);
    f.back_up(f.insert(kOther, {.checkpoints = {2}}).node);
    f.insert(kLeaf, {.checkpoints = {2}});
    use_leaf(f, is_newer ? kOther : kLeaf);
    use_leaf(f, is_newer ? kLeaf : kOther);
    (void)f.tree.lock(f.match(kOther).device.at.node, Tier::kDevice, {.full = true, .swa = false, .mamba = true});
    const EvictResult out = f.tree.evict_device(kFull, 2, VictimRule::kBackUpWorth);
    EXPECT_EQ(out.needs_backup, is_newer ? std::vector<NodeId>{node} : std::vector<NodeId>{});
    f.check();
  }
}

}  // namespace
}  // namespace larder::tree_test
