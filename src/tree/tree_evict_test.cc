// SPDX-License-Identifier: Apache-2.0
// Eviction: policies, trimming, tombstones, demotion, flush; and what "use" refreshes.
#include <gtest/gtest.h>

#include <algorithm>

#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

const Tokens kA = iota_tokens(2, 100), kB = iota_tokens(2, 200), kC = iota_tokens(2, 300);

// Which of a, b, c is the first to go.
char first_victim(Fixture& f) {
  (void)f.tree.evict_device(kFull, 2, VictimRule::kDrop);
  f.check();
  const bool gone[] = {f.device_pages(kA) == 0, f.device_pages(kB) == 0, f.device_pages(kC) == 0};
  EXPECT_EQ(std::count(std::begin(gone), std::end(gone), true), 1);
  return gone[0] ? 'a' : gone[1] ? 'b' : 'c';
}

void use(Fixture& f, const Tokens& tokens) { f.tree.touch(f.match(tokens).device.at, true); }

class TreePolicy : public testing::TestWithParam<std::pair<EvictionPolicy, char>> {};

// Inserted a, b, c; then used: a twice, c once, b three times long ago... so each policy picks its own victim.
TEST_P(TreePolicy, PicksItsVictim) {
  const auto [policy, victim] = GetParam();
  Fixture f(config_of(1, 0, false, policy));
  f.insert(kA, {.priority = 2});
  f.insert(kB, {.priority = 3});
  f.insert(kC, {.priority = 1});
  for (const Tokens* tokens : {&kB, &kB, &kB, &kA, &kC, &kA}) use(f, *tokens);
  // last use: b, c, a.  hits: a 2, b 3, c 1.  made: a, b, c.
  EXPECT_EQ(first_victim(f), victim);
}

INSTANTIATE_TEST_SUITE_P(Policies, TreePolicy,
                         testing::Values(std::pair(EvictionPolicy::kLru, 'b'), std::pair(EvictionPolicy::kLfu, 'c'),
                                         std::pair(EvictionPolicy::kSlru, 'c'), std::pair(EvictionPolicy::kFifo, 'a'),
                                         std::pair(EvictionPolicy::kMru, 'a'), std::pair(EvictionPolicy::kFilo, 'c'),
                                         std::pair(EvictionPolicy::kPriority, 'c')),
                         [](const auto& named) { return std::string(eviction_policy_name(named.param.first)); });

TEST(TreePolicySlru, ProbationBeforeProtectedThenByAge) {
  Fixture f(config_of(1, 0, false, EvictionPolicy::kSlru));
  f.insert(kA);
  f.insert(kB);
  f.insert(kC);
  use(f, kA);
  use(f, kA);
  use(f, kB);
  EXPECT_EQ(first_victim(f), 'c') << "never used";
  (void)f.tree.evict_device(kFull, 2, VictimRule::kDrop);
  EXPECT_EQ(f.device_pages(kB), 0u) << "used once: still on probation";
  EXPECT_EQ(f.device_pages(kA), 2u);
}

TEST(TreePolicyLru, TouchWithoutCountingRefreshesRecencyOnly) {
  Fixture f(config_of(1, 0, false, EvictionPolicy::kLfu));
  f.insert(kA);
  f.insert(kB);
  f.insert(kC);
  use(f, kB);
  use(f, kC);
  for (int i = 0; i < 5; ++i) f.tree.touch(f.match(kA).device.at, false);
  EXPECT_EQ(first_victim(f), 'a');
}

TEST(TreeTrim, TakesExactlyTheTailThatIsNeeded) {
  Fixture f(config_of(4));
  const Tokens tokens = iota_tokens(400);
  f.insert(tokens);
  const EvictResult out = f.tree.evict_device(kFull, 7, VictimRule::kDrop);
  EXPECT_EQ(out.freed, 7u);
  EXPECT_EQ(out.dropped, 7u);
  EXPECT_EQ(f.device_pages(tokens), 93u);
  EXPECT_EQ(f.tree.node_count(), 1u);
  f.check();
}

TEST(TreeTrim, RepeatedDemotionDoesNotShredTheHostCopy) {
  Fixture f(config_of(1, 2));
  const Tokens tokens = iota_tokens(200);
  const NodeId node = f.insert(tokens).node;
  f.back_up(node);
  (void)f.tree.keys().of_edge(node);
  for (int i = 0; i < 150; ++i) {
    EXPECT_EQ(f.tree.evict_device(kFull, 1, VictimRule::kBackUpFirst).demoted, 1u);
    f.check();
  }
  EXPECT_EQ(f.match(tokens).full_device_pages, 50u);
  EXPECT_EQ(f.any_pages(tokens), 200u);
  EXPECT_LE(f.tree.node_count(), 4u) << "demoted tails join again";
  for (int i = 0; i < 100; ++i) EXPECT_EQ(f.tree.evict_host(kFull, 1).freed, 1u);
  f.check();
  EXPECT_EQ(f.any_pages(tokens), 100u);
  EXPECT_LE(f.tree.node_count(), 4u);
}

TEST(TreeTrim, LetsGoOfMemoryWithTheTail) {
  // Contents survive when the arrays of a long edge are replaced by smaller ones.
  Fixture f(config_of(2));
  const Tokens tokens = iota_tokens(4000);
  const NodeId node = f.insert(tokens).node;
  (void)f.tree.settle({node, 5});
  (void)f.tree.settle({node, 11});
  (void)f.tree.keys().of_edge(node);
  const TokenId* before = f.tree.view(f.match(iota_tokens(10)).walked.node).tokens.data();
  const PageKey key_before = *f.tree.keys().last(f.match(iota_tokens(20)).walked.node);
  for (std::uint64_t left = 2000; left > 8; left -= 83) {
    (void)f.tree.evict_device(kFull, 83, VictimRule::kDrop);
    ASSERT_EQ(f.device_pages(tokens), left - 83);
    f.check();
  }
  (void)key_before;
  const NodeId rest = f.match(iota_tokens(10)).walked.node;
  EXPECT_NE(f.tree.view(rest).tokens.data(), before) << "moved to a smaller array";
  std::vector<PageLocation> where;
  f.tree.locate(rest, kFull, 0, 5, where);
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(where[i].device, DeviceSlot(i));
  std::optional<PageKey> prior;
  for (std::size_t i = 0; i < 5; ++i) prior = page_key(std::span(tokens).subspan(i * 2, 2), prior);
  EXPECT_EQ(f.tree.keys().last(rest), prior);
}

TEST(TreeEvict, NothingToEvict) {
  Fixture f(config_of(1, 4, true));
  for (const ComponentKind c : kAllComponents) {
    EXPECT_EQ(f.tree.evict_device(c, 5, VictimRule::kDrop).freed, 0u);
    EXPECT_EQ(f.tree.evict_host(c, 5).freed, 0u);
    EXPECT_EQ(f.host_victim(c), NodeId{});
  }
  f.insert(iota_tokens(4));
  EXPECT_EQ(f.tree.evict_device(kFull, 0, VictimRule::kDrop).freed, 0u);
}

TEST(TreeEvict, LeavesBeforeParents) {
  Fixture f(config_of(1));
  const Tokens trunk = iota_tokens(3), left = trunk + kA, right = trunk + kB;
  f.insert(left);
  f.insert(right);
  (void)f.tree.evict_device(kFull, 2, VictimRule::kDrop);
  EXPECT_EQ(f.device_pages(left), 3u);
  EXPECT_EQ(f.device_pages(right), 5u);
  EXPECT_EQ(f.tree.evict_device(kFull, 100, VictimRule::kDrop).freed, 5u);
  EXPECT_EQ(f.tree.node_count(), 0u);
  f.check();
}

TEST(TreeEvict, BackUpFirstNamesTheOldestAndTakesNoneBehindThem) {
  Fixture f(config_of(1));
  const NodeId a = f.insert(kA).node, b = f.insert(kB).node, c = f.insert(kC).node;
  f.back_up(c);
  const EvictResult out = f.tree.evict_device(kFull, 3, VictimRule::kBackUpFirst);
  EXPECT_EQ(out.freed, 0u) << "c has a copy, but is the newest";
  EXPECT_EQ(out.needs_backup, (std::vector<NodeId>{a, b})) << "enough for three pages";
  f.check();
  f.back_up(a);
  const EvictResult more = f.tree.evict_device(kFull, 3, VictimRule::kBackUpFirst);
  EXPECT_EQ(more.demoted, 2u);
  EXPECT_EQ(more.needs_backup, std::vector<NodeId>{b}) << "one page short";
  EXPECT_EQ(f.device_pages(kA), 0u);
  f.back_up(b);
  EXPECT_EQ(f.tree.evict_device(kFull, 3, VictimRule::kBackUpFirst).demoted, 3u);
  EXPECT_EQ(f.device_pages(kC), 1u);
  f.check();
}

// What stands above a victim that waits for its copy comes before what is newer.
TEST(TreeEvict, BackUpFirstWaitsForTheWholePath) {
  Fixture f(config_of(1));
  const Tokens trunk = iota_tokens(4), old = trunk + kA;
  const NodeId head = f.insert(trunk).node;
  f.back_up(head);
  const NodeId tail = f.insert(old).node;
  f.back_up(f.insert(kB).node);
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst).freed, 0u);
  EXPECT_EQ(f.device_pages(kB), 2u);
  f.back_up(tail);
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kBackUpFirst).demoted, 4u);
  EXPECT_EQ(f.device_pages(old), 2u);
  EXPECT_EQ(f.device_pages(kB), 2u);
  f.check();
}

// The host is full, and evicted first what the device evicts now: a copy of it would be evicted again at once.
TEST(TreeEvict, BackUpWorthDropsWhatTheHostWouldEvictFirst) {
  Fixture f(config_of(1));
  const Tokens trunk = iota_tokens(4), old = trunk + kA;
  f.back_up(f.insert(old).node);
  f.back_up(f.insert(kB).node);
  EXPECT_EQ(f.tree.evict_host(kFull, 2).demoted, 2u) << "the tail of the older";
  const EvictResult tail = f.tree.evict_device(kFull, 2, VictimRule::kBackUpWorth);
  EXPECT_EQ(tail.dropped, 2u) << "the head of the same path stays on the host longer";
  EXPECT_TRUE(tail.needs_backup.empty());
  EXPECT_EQ(f.any_pages(old), 4u);
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kBackUpWorth).demoted, 4u);
  const NodeId newest = f.insert(kC).node;
  use(f, kB);
  use(f, kC);
  (void)f.tree.evict_device(kFull, 2, VictimRule::kDrop);  // b
  const EvictResult worth = f.tree.evict_device(kFull, 2, VictimRule::kBackUpWorth);
  EXPECT_EQ(worth.freed, 0u);
  EXPECT_EQ(worth.needs_backup, std::vector<NodeId>{newest}) << "the host has older pages";
  f.check();
}

TEST(TreeEvictState, BackUpFirstAndBackUpWorthKeepTheOrder) {
  Fixture f(config_of(1, 0, true));
  const NodeId a = f.insert(kA, {.checkpoints = {2}}).node;
  f.back_up(f.insert(kB, {.checkpoints = {2}}).node);
  const EvictResult named = f.tree.evict_device(kMamba, 1, VictimRule::kBackUpFirst);
  EXPECT_EQ(named.freed, 0u) << "b is newer";
  EXPECT_EQ(named.needs_backup, std::vector<NodeId>{a});
  const EvictResult out = f.tree.evict_device(kMamba, 2, VictimRule::kBackUpWorth);
  EXPECT_EQ(out.dropped, 1u) << "a is older than all that the host has";
  EXPECT_EQ(out.demoted, 1u);
  EXPECT_EQ(f.match(kA).walked.pages, 0u);
  EXPECT_EQ(f.any_pages(kB), 2u);
  f.check();
}

TEST(TreeEvict, FullTakesWindowAndStateOfTheSamePages) {
  Fixture f(config_of(1, 2, true));
  const Tokens tokens = iota_tokens(8);
  f.insert(tokens, {.checkpoints = {4, 8}});
  EXPECT_EQ(f.tree.evict_device(kFull, 1, VictimRule::kDrop).freed, 1u);
  EXPECT_EQ(f.counts(kSwa, kDev).resident, 7u);
  EXPECT_EQ(f.counts(kMamba, kDev).resident, 1u);
  EXPECT_EQ(f.device_pages(tokens), 4u);
  f.check();
}

TEST(TreeEvictWindow, InnerNodesBecomeTombstonesOldestFirst) {
  Fixture f(config_of(1, 2));
  const Tokens trunk = iota_tokens(4), left = trunk + kA, right = trunk + kB;
  f.insert(left);
  f.insert(right);
  use(f, left);  // refreshes the window of left (its own two pages) and nothing of the trunk's
  EXPECT_EQ(f.tree.evict_device(kSwa, 2, VictimRule::kDrop).freed, 2u);
  f.check();
  EXPECT_EQ(f.device_pages(left), 6u);
  EXPECT_EQ(f.device_pages(right), 6u);
  EXPECT_EQ(f.tree.evict_device(kSwa, 2, VictimRule::kDrop).freed, 2u);
  EXPECT_EQ(f.device_pages(trunk), 0u) << "the trunk's window is gone, full is not";
  EXPECT_EQ(f.match(trunk).full_device_pages, 4u);
  EXPECT_EQ(f.tree.evict_device(kSwa, 1, VictimRule::kDrop).freed, 2u);
  EXPECT_EQ(f.device_pages(right), 0u) << "a leaf without its window goes altogether";
  EXPECT_EQ(f.match(right).walked.pages, 4u);
  EXPECT_EQ(f.device_pages(left), 6u);
  f.check();
}

TEST(TreeEvictWindow, LongStretchesLoseTheirHeadFirst) {
  Fixture f(config_of(1, 3));
  const Tokens tokens = iota_tokens(20);
  f.insert(tokens);
  EXPECT_EQ(f.tree.evict_device(kSwa, 5, VictimRule::kDrop).freed, 5u);
  f.check();
  EXPECT_EQ(f.device_pages(tokens), 20u);
  EXPECT_EQ(f.device_pages(iota_tokens(8)), 8u);
  EXPECT_EQ(f.device_pages(iota_tokens(7)), 0u);
}

TEST(TreeEvictWindow, TakesTheStateThatNeededIt) {
  Fixture f(config_of(1, 2, true));
  const Tokens inner = iota_tokens(2), tokens = iota_tokens(6);
  f.insert(tokens, {.checkpoints = {2, 6}});
  EXPECT_EQ(f.tree.evict_device(kSwa, 2, VictimRule::kDrop).freed, 2u);
  f.check();
  EXPECT_EQ(f.counts(kMamba, kDev).resident, 1u);
  EXPECT_EQ(f.device_pages(inner), 0u);
  EXPECT_EQ(f.device_pages(tokens), 6u);
}

TEST(TreeEvictWindow, AHostCopyOfTheWindowKeepsTheStateUseful) {
  Fixture f(config_of(1, 2, true));
  const NodeId inner = f.insert(iota_tokens(2), {.checkpoints = {2}}).node;
  f.insert(iota_tokens(6), {.checkpoints = {6}});
  f.back_up(inner);
  use(f, iota_tokens(6));
  EXPECT_EQ(f.tree.evict_device(kSwa, 2, VictimRule::kDrop).demoted, 2u);
  f.check();
  EXPECT_EQ(f.device_pages(iota_tokens(2)), 0u);
  EXPECT_EQ(f.any_pages(iota_tokens(2)), 2u);
  EXPECT_EQ(f.counts(kMamba, kDev).resident, 2u);
}

TEST(TreeEvictState, LeastRecentlyUsedCheckpointFirst) {
  Fixture f(config_of(1, 0, true));
  const Tokens tokens = iota_tokens(9);
  f.insert(tokens, {.checkpoints = {3, 6, 9}});
  // Using 3 refreshes the state at 3 and not those further down the path.
  use(f, iota_tokens(3));
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kDrop).freed, 1u);
  EXPECT_EQ(f.device_pages(iota_tokens(8)), 3u) << "6 was the oldest";
  EXPECT_EQ(f.device_pages(tokens), 9u) << "of one insertion the deepest is the newest";
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kDrop).freed, 1u);
  EXPECT_EQ(f.match(tokens).walked.pages, 6u) << "a leaf without its state goes altogether";
  EXPECT_EQ(f.device_pages(tokens), 3u);
  f.check();
}

TEST(TreeEvictState, UsingAPathDoesNotRefreshItsStates) {
  Fixture f(config_of(1, 0, true));
  f.insert(iota_tokens(6), {.checkpoints = {3, 6}});
  f.insert(kA, {.checkpoints = {2}});
  use(f, iota_tokens(6));  // the state at 3 is on this path, and was not used
  (void)f.tree.evict_device(kMamba, 1, VictimRule::kDrop);
  EXPECT_EQ(f.device_pages(iota_tokens(5)), 0u);
  EXPECT_EQ(f.device_pages(iota_tokens(6)), 6u);
  EXPECT_EQ(f.device_pages(kA), 2u);
}

TEST(TreeEvictState, WithACopyItOnlyLeavesTheDevice) {
  Fixture f(config_of(1, 0, true));
  const NodeId node = f.insert(iota_tokens(4), {.checkpoints = {4}}).node;
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kBackUpFirst).needs_backup, std::vector<NodeId>{node});
  f.back_up(node);
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kBackUpFirst).demoted, 1u);
  EXPECT_EQ(f.match(iota_tokens(4)).full_device_pages, 4u);
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 4u);
  f.check();
}

TEST(TreeEvictState, LockedOnesArePassedOverAndKeepThePlaceOfTheirLastUse) {
  Fixture f(config_of(1, 0, true));
  const NodeId a = f.insert(kA, {.checkpoints = {2}}).node;
  f.insert(kB, {.checkpoints = {2}});
  f.insert(kC, {.checkpoints = {2}});
  LockHandle handle = f.lock(a);
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kDrop).freed, 1u);
  EXPECT_EQ(f.device_pages(kB), 0u);
  f.tree.unlock(handle);
  f.check();
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kDrop).freed, 1u);
  EXPECT_EQ(f.device_pages(kA), 0u) << "c was used after a, whoever held a meanwhile";
  EXPECT_EQ(f.device_pages(kC), 2u);
}

// A victim that was copied is still the next victim, once its copy is done.
TEST(TreeEvictState, ACopyUnderWayDoesNotMakeItNewer) {
  Fixture f(config_of(1, 0, true));
  const NodeId a = f.insert(kA, {.checkpoints = {2}}).node;
  f.back_up(f.insert(kB, {.checkpoints = {2}}).node);
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kBackUpFirst).needs_backup, std::vector<NodeId>{a});
  ASSERT_TRUE(f.start_backup(OpId(1), a).is_ok());
  f.check();
  EXPECT_EQ(f.tree.evict_device(kMamba, 0, VictimRule::kDrop).freed, 0u);
  (void)f.tree.finish_op(OpId(1), true);
  f.check();
  EXPECT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kBackUpFirst).demoted, 1u);
  EXPECT_EQ(f.device_pages(kA), 0u);
  EXPECT_EQ(f.device_pages(kB), 2u);
}

// However many are held at the oldest end, finding the next victim looks at none of them.
TEST(TreeEvictHost, TheNextVictimIsTheOldestThatNobodyHolds) {
  Fixture f(config_of(1, 2));
  std::vector<LockHandle> held;
  std::vector<NodeId> nodes;
  for (TokenId i = 0; i < 40; ++i) {
    nodes.push_back(f.adopt(iota_tokens(2, 1000 * (i + 1)), 0, 2).node);
    if (i < 30) held.push_back(f.lock(nodes.back(), kHst));
  }
  EXPECT_EQ(f.host_victim(kSwa), nodes[30]);
  f.tree.unlock(held[7]);
  EXPECT_EQ(f.host_victim(kSwa), nodes[7]);
  f.tree.cover(OpId(1), nodes[7]);
  f.check();
  EXPECT_EQ(f.host_victim(kSwa), nodes[30]);
  (void)f.tree.finish_op(OpId(1), true);
  f.check();
  EXPECT_EQ(f.host_victim(kSwa), nodes[7]);
  for (LockHandle& handle : held) f.tree.unlock(handle);
  EXPECT_EQ(f.host_victim(kSwa), nodes[0]);
}

TEST(TreeEvictHost, LeavesFirstAndWhatIsOnTheDeviceStays) {
  Fixture f(config_of(1, 2, true));
  const NodeId head = f.insert(iota_tokens(4), {.checkpoints = {4}}).node;
  const NodeId tail = f.insert(iota_tokens(8), {.checkpoints = {8}}).node;
  f.back_up(head);
  f.back_up(tail);
  EXPECT_NE(f.host_victim(kFull), NodeId{});
  const EvictResult out = f.tree.evict_host(kFull, 6);
  EXPECT_EQ(out.freed, 6u);
  EXPECT_EQ(out.demoted, 6u) << "a copy remains on the device";
  f.check();
  EXPECT_EQ(f.counts(kFull, kHst).resident, 2u);
  EXPECT_EQ(f.counts(kSwa, kHst).resident, 2u);
  EXPECT_EQ(f.counts(kMamba, kHst).resident, 0u);
  EXPECT_EQ(f.device_pages(iota_tokens(8)), 8u);
}

TEST(TreeEvictHost, HostOnlyNodesVanish) {
  Fixture f(config_of(1, 2, true));
  f.adopt(iota_tokens(6), 0, 2, true);
  f.adopt(kA, 0, 2, true);
  const std::uint64_t use_of_first = f.tree.next_host_victim(kMamba)->across.major;
  EXPECT_EQ(f.tree.evict_host(kMamba, 1).dropped, 1u);
  EXPECT_EQ(f.match(iota_tokens(6)).walked.pages, 4u) << "the leaf whose state it was: from the window's begin";
  EXPECT_GT(f.tree.next_host_victim(kMamba)->across.major, use_of_first);
  EXPECT_EQ(f.any_pages(kA), 2u);
  f.check();
  EXPECT_EQ(f.tree.evict_host(kFull, 100).dropped, 6u);
  EXPECT_EQ(f.tree.node_count(), 0u);
}

TEST(TreeEvict, AHostClaimKeepsADeviceOnlyNode) {
  Fixture f(config_of(1));
  const NodeId node = f.insert(kA).node;
  LockHandle handle = f.lock(node, kHst);  // claims the host, where nothing is
  EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).freed, 0u) << "the handle names the node";
  EXPECT_TRUE(f.tree.exists(node));
  f.back_up(node);
  EXPECT_EQ(f.counts(kFull, kHst).locked, 2u);
  EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).demoted, 2u);
  f.tree.unlock(handle);
  f.check();
}

TEST(TreeEvictState, ALeafWithHostChildrenInUseOnlyLosesItsState) {
  TreeConfig config = config_of(1, 0, true);
  config.allow_host_gaps = true;
  Fixture f(config);
  f.insert(iota_tokens(2), {.checkpoints = {2}});
  const NodeId child = f.insert(iota_tokens(4), {.checkpoints = {4}}).node;
  f.back_up(child);
  (void)f.tree.evict_device(kFull, 2, VictimRule::kBackUpFirst);
  LockHandle reader = f.lock(child, kHst);
  const EvictResult out = f.tree.evict_device(kMamba, 1, VictimRule::kDrop);
  EXPECT_EQ(out.freed, 1u);
  EXPECT_TRUE(f.ledger.out(kMamba, kDev).empty());
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 4u) << "full of the parent stays under its reader's path";
  f.tree.unlock(reader);
  f.check();
}

// ---- exclusive tiers

TreeConfig exclusive(bool mamba = false) {
  TreeConfig config = config_of(1, 0, mamba);
  config.is_exclusive = true;
  return config;
}

std::uint64_t host_pages(Fixture& f, const Tokens& tokens) {
  const MatchResult match = f.match(tokens);
  return match.walked.pages == 0 ? 0 : f.tree.view(match.walked.node).host[index_of(kFull)].size();
}

TEST(TreeExclusive, WhatTheDeviceHasLeavesTheHostFirstTheNewestBeforeOthers) {
  Fixture f(exclusive());
  for (const Tokens* tokens : {&kA, &kB, &kC}) f.back_up(f.insert(*tokens).node);
  ASSERT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).demoted, 2u);  // a, which is the oldest
  EXPECT_EQ(f.tree.evict_host(kFull, 2).demoted, 2u);
  EXPECT_EQ(host_pages(f, kC), 0u);
  EXPECT_EQ(f.tree.evict_host(kFull, 2).demoted, 2u);
  EXPECT_EQ(host_pages(f, kB), 0u);
  EXPECT_EQ(f.tree.evict_host(kFull, 2).dropped, 2u);
  EXPECT_EQ(f.any_pages(kA), 0u);
  f.check();
}

TEST(TreeExclusive, AlsoBeneathWhatOnlyTheHostHas) {
  Fixture f(exclusive());
  const NodeId parent = f.insert(iota_tokens(2)).node;
  f.back_up(parent);
  f.back_up(f.insert(iota_tokens(4)).node);
  ASSERT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).demoted, 2u);
  EXPECT_EQ(f.host_victim(kFull), parent);
  EXPECT_EQ(f.tree.evict_host(kFull, 2).demoted, 2u);
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 4u) << "two pages on the device, two on the host";
  // And it is copied again before it leaves the device, whatever it is worth.
  for (const VictimRule rule : {VictimRule::kBackUpFirst, VictimRule::kBackUpWorth}) {
    const EvictResult out = f.tree.evict_device(kFull, 2, rule);
    EXPECT_EQ(out.freed, 0u);
    EXPECT_EQ(out.needs_backup, std::vector<NodeId>{parent});
  }
  f.back_up(parent);
  EXPECT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kDrop).demoted, 2u);
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 4u);
  f.check();
}

TEST(TreeExclusive, ACopyThatWasMadeToLeaveTheDeviceStaysUntilItIsUsed) {
  Fixture f(exclusive());
  const NodeId old = f.insert(kA).node, last = f.insert(kB).node;
  ASSERT_EQ(f.tree.evict_device(kFull, 2, VictimRule::kBackUpFirst).needs_backup, std::vector<NodeId>{old});
  f.back_up(old);
  f.back_up(last);
  EXPECT_EQ(f.host_victim(kFull), last);
  use(f, kA);
  EXPECT_EQ(f.host_victim(kFull), old) << "the newest of two that the device has, too";
  f.check();
}

TEST(TreeExclusive, OfOnePathTheBeginningLeavesTheHostFirst) {
  Fixture f(exclusive());
  f.back_up(f.insert(iota_tokens(10)).node);
  ASSERT_EQ(f.tree.evict_host(kFull, 4).demoted, 4u);
  EXPECT_EQ(f.tree.evict_device(kFull, 6, VictimRule::kBackUpFirst).demoted, 6u) << "its end still has a copy";
  f.check();
}

TEST(TreeExclusive, AStateThatOnlyTheHostHasKeepsItsPages) {
  Fixture f(exclusive(true));
  f.back_up(f.insert(kA, {.checkpoints = {2}}).node);
  f.back_up(f.insert(kB).node);
  ASSERT_EQ(f.tree.evict_device(kMamba, 1, VictimRule::kDrop).demoted, 1u);
  EXPECT_EQ(f.tree.evict_host(kFull, 4).freed, 4u);  // b, and then a with its state
  EXPECT_EQ(host_pages(f, kB), 0u);
  f.check();
}

TEST(TreeTouch, SplitsSoThatTheUnusedRestStaysOld) {
  Fixture f(config_of(1));
  const Tokens tokens = iota_tokens(10);
  f.insert(tokens);
  f.insert(kA);
  f.tree.touch({f.match(tokens).walked.node, 4}, true);
  EXPECT_EQ(f.tree.evict_device(kFull, 8, VictimRule::kDrop).freed, 8u);
  EXPECT_EQ(f.device_pages(tokens), 4u);
  EXPECT_EQ(f.device_pages(kA), 0u);
  EXPECT_EQ(f.tree.view(f.match(tokens).walked.node).hits, 1u);
  f.check();
}

TEST(TreeTouch, OfNothingIsHarmless) {
  Fixture f(config_of(1));
  f.tree.touch({NodeId(400), 3}, true);
  f.tree.touch({f.tree.spaces().root(f.space), 0}, true);
  f.check();
}

TEST(TreeFlush, DropsAllButWhatIsLockedOrCovered) {
  Fixture f(config_of(1, 2, true));
  const NodeId locked = f.insert(iota_tokens(4), {.checkpoints = {4}}).node;
  const NodeId deeper = f.insert(iota_tokens(9), {.checkpoints = {9}}).node;
  const NodeId covered = f.insert(kA, {.checkpoints = {2}}).node;
  f.insert(kB, {.checkpoints = {2}});
  f.back_up(locked);
  f.back_up(deeper);
  f.adopt(kC, 0);
  LockHandle handle = f.lock(locked);
  f.tree.cover(OpId(1), covered);
  // Four pages under the lock, as two edges where the window begins, and the covered node.
  EXPECT_EQ(f.tree.flush(), 3u);
  f.check();
  EXPECT_EQ(f.device_pages(iota_tokens(9)), 4u);
  EXPECT_EQ(f.device_pages(kA), 2u);
  EXPECT_EQ(f.match(kB).walked.pages, 0u);
  EXPECT_EQ(f.match(kC).walked.pages, 0u);
  EXPECT_EQ(f.counts(kFull, kHst).resident, 0u);
  f.tree.unlock(handle);
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_EQ(f.tree.flush(), 0u);
  for (const ComponentKind c : kAllComponents) EXPECT_TRUE(f.ledger.out(c, kDev).empty());
  EXPECT_EQ(f.tree.spaces().root(f.space), f.match(kA).walked.node) << "namespaces stay";
}

TEST(TreeFlush, KeepsOneCopyOfAClaimedNode) {
  Fixture f(config_of(1));
  f.adopt(iota_tokens(4), 0);
  LockHandle handle = f.lock(f.match(iota_tokens(4)).walked.node);  // claims the device, where nothing is
  EXPECT_EQ(f.tree.flush(), 1u);
  EXPECT_EQ(f.any_pages(iota_tokens(4)), 4u);
  f.tree.unlock(handle);
  EXPECT_EQ(f.tree.flush(), 0u);
  f.check();
}

}  // namespace
}  // namespace larder::tree_test
