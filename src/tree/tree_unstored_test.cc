// SPDX-License-Identifier: Apache-2.0
// What storage lacks, asked for in batches, beside its plain definition.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

constexpr std::uint32_t kEpoch = 3, kNeverTracked = 77;

// By the definition, in the order of a walk: under an epoch that nobody tracks, every node on the host is unstored.
std::vector<NodeId> plain_unstored(const RadixTree& tree) {
  std::vector<NodeId> nodes = tree.backlog().unstored(kNeverTracked, 100'000);
  std::erase_if(nodes, [&](NodeId id) {
    const NodeView view = tree.view(id);
    return view.stored_epoch == kEpoch || view.declined_epoch == kEpoch || view.rests;
  });
  return nodes;
}

// Empty: as defined, and each node after those of its ancestors that are there.
std::string compare(const RadixTree& tree) {
  const std::vector<NodeId> have = tree.backlog().unstored(kEpoch, 100'000), want = plain_unstored(tree);
  std::set<std::uint32_t> listed, seen;
  for (const NodeId id : want) listed.insert(id.v);
  std::set<std::uint32_t> left = listed;
  for (const NodeId id : have) {
    if (left.erase(id.v) == 0) return "storage has node " + std::to_string(id.v) + ", or it came twice";
  }
  if (!left.empty()) return "node " + std::to_string(*left.begin()) + " is missing";
  for (const NodeId id : have) {
    seen.insert(id.v);
    for (NodeId up = tree.view(id).parent; tree.view(up).end > 0; up = tree.view(up).parent) {
      if (listed.contains(up.v) && !seen.contains(up.v))
        return "node " + std::to_string(id.v) + " stands before its ancestor";
    }
  }
  return {};
}

Tokens random_path(Rng& rng) {
  Tokens tokens(1 + rng.below(10));
  for (TokenId& token : tokens) token = static_cast<TokenId>(1 + rng.below(3));
  return tokens;
}

// Splits, merges, backups of heads and tails, checkpoints that come late, evictions, marks.
void random_step(Fixture& f, Rng& rng) {
  const Tokens path = random_path(rng);
  const NodeId node = f.match(path).walked.node;
  const bool is_root = f.tree.view(node).end == 0;
  switch (rng.below(9)) {
    case 0:
    case 1: (void)f.insert(path, {.checkpoints = {path.size()}}); break;
    case 2: (void)f.adopt(path, 0, 0, rng.below(2) == 0); break;
    case 3:
      if (!is_root) (void)f.start_backup(OpId(1 + rng.below(4)), node);
      break;
    case 4: (void)f.tree.finish_op(OpId(1 + rng.below(4)), rng.below(4) != 0); break;
    case 5:
      for (const NodeId id : f.tree.backlog().unstored(kEpoch, rng.below(4))) {
        f.tree.backlog().begin_storing(id);
        EXPECT_TRUE(f.tree.view(id).is_storing && !f.tree.view(id).is_unstored);
        const std::uint64_t fate = rng.below(4);
        if (fate == 0) f.tree.backlog().set_declined(id, kEpoch);
        if (fate == 1) f.tree.backlog().set_stored(id, kEpoch);
        f.tree.backlog().end_storing(id, fate == 2);
        EXPECT_EQ(f.tree.view(id).rests, fate == 2);
      }
      if (rng.below(4) == 0) f.tree.backlog().wake_resting();
      break;
    case 6: f.tree.backlog().set_stored(node, kEpoch - 1); break;
    case 7: (void)f.tree.evict_device(kFull, rng.below(6), VictimRule::kDrop); break;
    case 8:
      if (rng.below(2) == 0) {
        (void)f.tree.evict_host(kFull, rng.below(6));
      } else {
        f.tree.touch({node, f.match(path).walked.pages}, true);
      }
      break;
  }
}

TEST(TreeUnstored, ListAgreesWithTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Fixture f(config_of(1, 0, true));
    if (seed % 2 == 0) f.tree.allow_host_gaps();
    f.tree.backlog().track(kEpoch);
    Rng rng(seed);
    for (int i = 0; i < 200; ++i) {
      random_step(f, rng);
      f.check();
      ASSERT_EQ(compare(f.tree), "") << "seed " << seed << ", step " << i;
    }
    for (std::uint64_t op = 1; op <= 4; ++op) (void)f.tree.finish_op(OpId(op), true);
    // A new epoch: everything on the host is unstored again, and an answer under another one comes from a walk.
    f.tree.backlog().track(kEpoch + 1);
    EXPECT_EQ(f.tree.backlog().unstored(kEpoch + 1, 100'000), f.tree.backlog().unstored(kNeverTracked, 100'000));
    f.check();
    f.tree.backlog().track(kEpoch);
    ASSERT_EQ(compare(f.tree), "") << "seed " << seed;
  }
}

// What rested, left the host and came back waits like all the others: nobody would wake it.
TEST(TreeUnstored, WhatComesBackToTheHostDoesNotRest) {
  Fixture f(config_of(1));
  f.tree.backlog().track(kEpoch);
  const Tokens path = {1, 2};
  (void)f.insert(path);
  const NodeId node = f.match(path).walked.node;
  ASSERT_TRUE(f.start_backup(OpId(1), node).is_ok());
  (void)f.tree.finish_op(OpId(1), true);
  f.tree.backlog().begin_storing(node);
  f.tree.backlog().end_storing(node, true);
  EXPECT_TRUE(f.tree.view(node).rests);
  (void)f.tree.evict_host(kFull, 2);
  f.tree.backlog().wake_resting();
  ASSERT_TRUE(f.start_backup(OpId(2), node).is_ok());
  (void)f.tree.finish_op(OpId(2), true);
  EXPECT_TRUE(f.tree.view(node).is_unstored);
  f.check();
  f.tree.backlog().begin_storing(node);
  f.tree.backlog().end_storing(node, true);
  f.tree.backlog().set_stored(node, kEpoch);
  f.tree.backlog().track(kEpoch + 1);
  EXPECT_TRUE(f.tree.view(node).is_unstored);
  f.check();
}

// As the cache asks for them: each node comes once, after its parent, however many are stored already.
TEST(TreeUnstored, BatchesBringEachNodeOnce) {
  constexpr TokenId kPrompts = 500;
  Fixture f(config_of(1));
  for (TokenId i = 0; i < kPrompts; ++i) {
    (void)f.tree.insert_host({f.space, Tokens{i + 1, 1, 2}, 0, f.ledger.host(kFull, 3), {}, {}});
    (void)f.tree.insert_host({f.space, Tokens{i + 1, 1, 3}, 2, f.ledger.host(kFull, 1), {}, {}});
  }
  f.check();
  f.tree.backlog().track(1);
  std::set<std::uint32_t> stored;
  std::size_t asked = 0;
  for (std::vector<NodeId> batch; !(batch = f.tree.backlog().unstored(1, 64)).empty(); ++asked) {
    for (const NodeId node : batch) {
      const NodeId parent = f.tree.view(node).parent;
      EXPECT_TRUE(f.tree.view(parent).end == 0 || stored.contains(parent.v));
      EXPECT_TRUE(stored.insert(node.v).second);
      f.tree.backlog().set_stored(node, 1);
    }
  }
  EXPECT_EQ(stored.size(), std::size_t{3} * kPrompts);
  EXPECT_EQ(asked, (stored.size() + 63) / 64);
  f.check();
}

}  // namespace
}  // namespace larder::tree_test
