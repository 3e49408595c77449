// SPDX-License-Identifier: Apache-2.0
// Matching, insertion, splits, locks: what a request sees.
#include <gtest/gtest.h>

#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

TEST(TreeMatch, EmptyTreeMatchesNothing) {
  Fixture f(config_of(4));
  const MatchResult m = f.match(iota_tokens(16));
  EXPECT_EQ(m.walked.pages, 0u);
  EXPECT_EQ(m.walked.node, f.tree.spaces().root(f.space));
  EXPECT_EQ(m.device.at.pages, 0u);
  EXPECT_EQ(m.device.reason, StopReason::kNone);
  EXPECT_FALSE(m.meets_load);
}

TEST(TreeMatch, UnknownNamespaceMatchesNothing) {
  Fixture f(config_of(1));
  const Tokens tokens = iota_tokens(4);
  const MatchResult m = f.tree.match(NamespaceId(77), tokens);
  EXPECT_EQ(m.walked.pages, 0u);
  EXPECT_FALSE(f.tree.exists(m.walked.node));
}

TEST(TreeMatch, FindsWhatWasInsertedAndStopsInsideEdges) {
  for (const std::uint32_t page_size : {1u, 4u, 64u}) {
    Fixture f(config_of(page_size));
    const Tokens tokens = iota_tokens(8 * page_size);
    const InsertResult inserted = f.insert(tokens);
    EXPECT_EQ(inserted.new_pages, 8u);
    EXPECT_EQ(inserted.duplicate_pages, 0u);
    EXPECT_EQ(f.device_pages(tokens), 8u);
    EXPECT_EQ(f.match(tokens).device.at.node, inserted.node);

    Tokens other = tokens;
    other[5 * page_size] = 9999;
    const MatchResult m = f.match(other);
    EXPECT_EQ(m.walked.pages, 5u);
    EXPECT_EQ(m.device.at.pages, 5u);
    EXPECT_EQ(m.device.at.node, inserted.node) << "inside the edge of the only node";
    EXPECT_EQ(f.tree.node_count(), 1u) << "matching must not split";
  }
}

TEST(TreeMatch, OnlyWholePagesCount) {
  Fixture f(config_of(4));
  const Tokens tokens = iota_tokens(12);
  f.insert(tokens);
  Tokens partial(tokens.begin(), tokens.begin() + 7);
  EXPECT_EQ(f.device_pages(partial), 1u);
  partial.resize(3);
  EXPECT_EQ(f.device_pages(partial), 0u);
  Tokens differs = tokens;
  differs[6] = 500;  // inside page 1
  EXPECT_EQ(f.device_pages(differs), 1u);
}

TEST(TreeMatch, FindsDifferencesAnywhereInLongEdges) {
  Fixture f(config_of(1));
  const Tokens tokens = iota_tokens(9000);
  f.insert(tokens);
  for (const std::size_t at : {0u, 1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 4096u, 8998u, 8999u}) {
    Tokens other = tokens;
    other[at] ^= 0x40000000u;
    EXPECT_EQ(f.device_pages(other), at);
  }
}

TEST(TreeInsert, SharesPrefixesAndFreesDuplicates) {
  Fixture f(config_of(1));
  const Tokens a = iota_tokens(6), b = iota_tokens(3) + iota_tokens(4, 100);
  f.insert(a);
  const InsertResult second = f.insert(b);
  EXPECT_EQ(second.new_pages, 4u);
  EXPECT_EQ(second.duplicate_pages, 3u);
  EXPECT_EQ(f.ledger.came_back(kFull, kDev), (std::vector<std::uint32_t>{6, 7, 8}));
  EXPECT_EQ(f.tree.node_count(), 3u);
  EXPECT_EQ(f.device_pages(a), 6u);
  EXPECT_EQ(f.device_pages(b), 7u);
  EXPECT_EQ(f.counts(kFull, kDev).resident, 10u);
}

TEST(TreeInsert, OwnedPagesAreNotFreed) {
  Fixture f(config_of(2));
  const Tokens head = iota_tokens(8), all = iota_tokens(14);
  f.insert(head);
  // Owns 2 pages, so pages 2 and 3 of what it brings are duplicates.
  const InsertResult r = f.insert(all, {.owned_from = 2});
  EXPECT_EQ(r.duplicate_pages, 2u);
  EXPECT_EQ(r.new_pages, 3u);
}

TEST(TreeInsert, ASlotGivenTwiceIsNotFreedUnderItsReader) {
  Fixture f(config_of(1));
  const Tokens tokens = iota_tokens(4);
  const InsertResult r = f.insert(tokens);
  const auto own = f.tree.view(r.node).device[index_of(kFull)];
  std::vector<DeviceSlot> again(own.begin(), own.end());
  again[2] = f.ledger.device(kFull);
  ASSERT_TRUE(f.insert_pages({f.space, tokens, 0, again}).is_ok());
  EXPECT_EQ(f.ledger.came_back(kFull, kDev), std::vector<std::uint32_t>{4});
  f.check();
}

TEST(TreeInsert, RefusesWrongShapes) {
  Fixture f(config_of(4, 8, true));
  const Tokens tokens = iota_tokens(8);
  const std::vector<DeviceSlot> two = {DeviceSlot(0), DeviceSlot(1)}, one = {DeviceSlot(0)}, hole = {DeviceSlot(), {}};
  const auto code = [&](const InsertRequest& request) { return f.insert_pages(request).status().code(); };
  EXPECT_EQ(code({f.space, std::span(tokens).first(7), 0, two}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 0, one}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 0, hole}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 3, two}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 0, two, one}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 1, two}), StatusCode::kInternal) << "page 0 is not in the tree";
  const std::vector<Checkpoint> beyond = {{3, DeviceSlot(0)}}, backwards = {{2, DeviceSlot(0)}, {1, DeviceSlot(1)}},
                                at_zero = {{0, DeviceSlot(0)}};
  EXPECT_EQ(code({f.space, tokens, 0, two, {}, beyond}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 0, two, {}, backwards}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({f.space, tokens, 0, two, {}, at_zero}), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.node_count(), 0u);
  Fixture plain(config_of(4));
  EXPECT_FALSE(plain.insert_pages({plain.space, tokens, 0, two, two}).is_ok()) << "no window in the model";
  const std::vector<Checkpoint> good = {{1, DeviceSlot(0)}};
  EXPECT_FALSE(plain.insert_pages({plain.space, tokens, 0, two, {}, good}).is_ok()) << "no state in the model";
}

TEST(TreeInsert, EmptyInsertionStandsAtTheRoot) {
  Fixture f(config_of(4));
  EXPECT_EQ(f.insert({}).node, f.tree.spaces().root(f.space));
}

TEST(TreeInsert, PriorityBecomesTheMaximumOnThePath) {
  Fixture f(config_of(1, 0, false, EvictionPolicy::kPriority));
  const Tokens a = iota_tokens(4), b = iota_tokens(2) + iota_tokens(2, 50), c = iota_tokens(3, 200);
  f.insert(a, {.priority = 1});
  f.insert(b, {.priority = 5});
  f.insert(c, {.priority = -3});
  const auto evicted = [&] {
    (void)f.tree.evict_device(kFull, 1, VictimRule::kDrop);
    return std::array{f.device_pages(a), f.device_pages(b), f.device_pages(c)};
  };
  EXPECT_EQ(evicted(), (std::array<std::uint64_t, 3>{4, 4, 2}));
  (void)f.tree.evict_device(kFull, 2, VictimRule::kDrop);
  EXPECT_EQ(evicted(), (std::array<std::uint64_t, 3>{3, 4, 0}));
}

TEST(TreeNamespaces, DoNotShare) {
  Fixture f(config_of(2));
  PageKey seed;
  seed.bytes[0] = 7;
  const NamespaceId other = f.tree.spaces().open(seed, {}, PathHash());
  EXPECT_NE(other, f.space);
  EXPECT_EQ(f.tree.spaces().open(seed, {}, PathHash()), other);
  EXPECT_EQ(f.tree.spaces().open(std::nullopt, {}, PathHash()), f.space);
  const Tokens tokens = iota_tokens(8);
  const InsertResult r = f.insert(tokens);
  EXPECT_EQ(f.tree.match(other, tokens).walked.pages, 0u);
  const auto slots = f.ledger.device(kFull, 4);
  const auto second = f.insert_pages({other, tokens, 0, slots});
  ASSERT_TRUE(second.is_ok());
  EXPECT_EQ(second->new_pages, 4u);
  EXPECT_EQ(f.tree.view(r.node).space, f.space);
  EXPECT_EQ(f.tree.view(second->node).space, other);
  const auto a = f.tree.keys().of_edge(r.node), b = f.tree.keys().of_edge(second->node);
  EXPECT_NE(std::vector(a.begin(), a.end()), std::vector(b.begin(), b.end()));
  f.check();
}

TEST(TreeSplit, SettleKeepsTheOldIdAtTheOldEnd) {
  Fixture f(config_of(4));
  const Tokens tokens = iota_tokens(40);
  const InsertResult r = f.insert(tokens);
  const NodeId head = f.tree.settle({r.node, 3});
  EXPECT_NE(head, r.node);
  EXPECT_EQ(f.tree.view(head).end, 3u);
  EXPECT_EQ(f.tree.view(r.node).begin, 3u);
  EXPECT_EQ(f.tree.view(r.node).end, 10u);
  EXPECT_EQ(f.tree.view(r.node).parent, head);
  EXPECT_EQ(f.tree.settle({r.node, 3}), head) << "a position taken before the split still finds its node";
  EXPECT_EQ(f.tree.settle({r.node, 10}), r.node);
  EXPECT_EQ(f.tree.settle({r.node, 0}), f.tree.spaces().root(f.space));
  EXPECT_EQ(f.tree.settle({NodeId(12345), 1}), NodeId()) << "no such node";
  EXPECT_EQ(f.device_pages(tokens), 10u);
  f.check();
}

TEST(TreeSplit, MovesNoTokensAndNoSlots) {
  Fixture f(config_of(2));
  const InsertResult r = f.insert(iota_tokens(20));
  const NodeView before = f.tree.view(r.node);
  const NodeId head = f.tree.settle({r.node, 4});
  const NodeView first = f.tree.view(head), second = f.tree.view(r.node);
  EXPECT_EQ(first.tokens.data(), before.tokens.data());
  EXPECT_EQ(second.tokens.data(), before.tokens.data() + 8);
  EXPECT_EQ(first.device[0].data(), before.device[0].data());
  EXPECT_EQ(second.device[0].data(), before.device[0].data() + 4);
}

TEST(TreeSplit, KeepsLocks) {
  Fixture f(config_of(1, 4, true));
  const Tokens tokens = iota_tokens(10);
  const InsertResult r = f.insert(tokens, {.checkpoints = {10}});
  LockHandle handle = f.lock(r.node);
  EXPECT_EQ(handle.window_from, 6u);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 10u);
  EXPECT_EQ(f.counts(kSwa, kDev).locked, 4u) << "exactly the window";
  EXPECT_EQ(f.counts(kMamba, kDev).locked, 1u);
  for (const std::uint64_t at : {3u, 8u, 7u, 1u}) (void)f.tree.settle({r.node, at});
  f.check();
  EXPECT_EQ(f.counts(kFull, kDev).locked, 10u);
  EXPECT_EQ(f.counts(kSwa, kDev).locked, 4u);
  (void)f.tree.evict_device(kFull, 100, VictimRule::kDrop);
  (void)f.tree.evict_device(kMamba, 100, VictimRule::kDrop);
  EXPECT_EQ(f.tree.evict_device(kSwa, 100, VictimRule::kDrop).freed, 6u) << "out of the window";
  EXPECT_EQ(f.device_pages(tokens), 10u);
  f.tree.unlock(handle);
  EXPECT_FALSE(handle.held);
  f.tree.unlock(handle);  // a no-op
  f.check();
  for (const ComponentKind c : kAllComponents) EXPECT_EQ(f.counts(c, kDev).locked, 0u);
  EXPECT_EQ(f.tree.evict_device(kFull, 100, VictimRule::kDrop).freed, 10u);
  EXPECT_EQ(f.tree.node_count(), 0u);
}

TEST(TreeLock, ProtectsThePathAndNestsExactly) {
  Fixture f(config_of(1));
  const Tokens a = iota_tokens(8), b = iota_tokens(4) + iota_tokens(4, 60);
  const NodeId na = f.insert(a).node, nb = f.insert(b).node;
  LockHandle la = f.lock(na), lb = f.lock(nb), again = f.lock(nb);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 12u);
  EXPECT_EQ(f.counts(kFull, kDev).evictable(), 0u);
  f.tree.unlock(lb);
  f.check();
  EXPECT_EQ(f.counts(kFull, kDev).locked, 12u);
  f.tree.unlock(again);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 8u);
  EXPECT_EQ(f.tree.evict_device(kFull, 100, VictimRule::kDrop).freed, 4u);
  EXPECT_EQ(f.device_pages(a), 8u);
  EXPECT_EQ(f.device_pages(b), 4u);
  f.tree.unlock(la);
  f.check();
}

TEST(TreeLock, PartsAreSeparate) {
  Fixture f(config_of(1, 2, true));
  const Tokens tokens = iota_tokens(6);
  const NodeId node = f.insert(tokens, {.checkpoints = {6}}).node;
  LockHandle handle = f.lock(node, kDev, {.full = true, .swa = false, .mamba = false});
  EXPECT_EQ(f.counts(kSwa, kDev).locked, 0u);
  // Early release of the window while full is locked: a tombstone in a leaf that stays.
  EXPECT_EQ(f.tree.evict_device(kSwa, 6, VictimRule::kDrop).freed, 6u);
  f.check();
  EXPECT_EQ(f.match(tokens).full_device_pages, 6u);
  EXPECT_EQ(f.match(tokens).device.at.pages, 0u);
  f.tree.unlock(handle);
  f.check();
}

TEST(TreeLock, OfTheRootIsHarmless) {
  Fixture f(config_of(1, 2, true));
  LockHandle handle = f.lock(f.tree.spaces().root(f.space));
  f.insert(iota_tokens(3));
  f.tree.unlock(handle);
  LockHandle nowhere = f.lock(NodeId(999));
  EXPECT_FALSE(nowhere.held);
  f.tree.unlock(nowhere);
  f.check();
}

TEST(TreeKeys, AreChainedKeptAndSplit) {
  Fixture f(config_of(2));
  const Tokens tokens = iota_tokens(12);
  const NodeId node = f.insert(tokens).node;
  EXPECT_EQ(f.tree.keys().last(f.tree.spaces().root(f.space)), std::nullopt);
  const auto keys = f.tree.keys().of_edge(node);
  ASSERT_EQ(keys.size(), 6u);
  std::optional<PageKey> prior;
  for (std::size_t i = 0; i < 6; ++i) {
    prior = page_key(std::span(tokens).subspan(i * 2, 2), prior);
    EXPECT_EQ(keys[i], *prior);
  }
  const PageKey* kept = keys.data();
  const NodeId head = f.tree.settle({node, 2});
  EXPECT_EQ(f.tree.keys().of_edge(head).data(), kept);
  EXPECT_EQ(f.tree.keys().of_edge(node).data(), kept + 2);
  // A new child hashes itself from its parent's last key.
  const Tokens longer = iota_tokens(4) + iota_tokens(4, 70);
  const NodeId fork = f.insert(longer).node;
  const PageKey expected = page_key(std::span(longer).subspan(4, 2), f.tree.keys().last(head));
  EXPECT_EQ(f.tree.keys().of_edge(fork)[0], expected);
}

TEST(TreeKeys, HashMissingAncestorsFirst) {
  Fixture f(config_of(1));
  const NodeId node = f.insert(iota_tokens(30)).node;
  for (std::uint64_t at = 1; at < 30; ++at) (void)f.tree.settle({node, at});
  const PageKey last = *f.tree.keys().last(node);
  std::optional<PageKey> prior;
  for (const TokenId token : iota_tokens(30)) prior = page_key(std::span(&token, 1), prior);
  EXPECT_EQ(last, *prior);
}

TEST(TreePaths, MayBeVeryDeep) {
  Fixture f(config_of(1, 4, true));
  const std::size_t depth = 100'000;
  const Tokens tokens = iota_tokens(depth);
  const NodeId node = f.insert(tokens, {.checkpoints = {depth}}).node;
  for (std::uint64_t at = 1; at < depth; ++at) (void)f.tree.settle({node, at});
  EXPECT_EQ(f.tree.node_count(), depth);
  EXPECT_EQ(f.device_pages(tokens), depth);
  LockHandle handle = f.lock(node);
  f.tree.unlock(handle);
  (void)f.tree.keys().of_edge(node);
  std::vector<PageLocation> where;
  f.tree.locate(node, kFull, 0, depth, where);
  EXPECT_EQ(where.back().device, DeviceSlot(depth - 1));
  EXPECT_TRUE(f.tree.check_invariants().is_ok());
  EXPECT_EQ(f.tree.flush(), 0u);
  EXPECT_TRUE(f.ledger.out(kFull, kDev).empty());
}

}  // namespace
}  // namespace larder::tree_test
