// SPDX-License-Identifier: Apache-2.0
// Orders of eviction that are not ours: whatever an embedder's order answers, the tree stays sound, and does as it
// says.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/rng.h"
#include "tree/tree_property_check.h"

namespace larder::tree_test {
namespace {

// Any function of the facts; another one for each seed.
class ScatteredOrder final : public EvictionOrder {
 public:
  explicit ScatteredOrder(std::uint64_t seed) : seed_(seed) {}
  [[nodiscard]] OrderKey key(const Facts& f) const override { return {scatter(f, seed_), scatter(f, ~seed_)}; }
  [[nodiscard]] OrderKey key_across(const Facts& f) const override { return {scatter(f, seed_ + 1) % 4, 0}; }

 private:
  static std::uint64_t scatter(const Facts& f, std::uint64_t seed) {
    std::uint64_t mixed = seed;
    for (const std::uint64_t fact :
         {std::uint64_t{index_of(f.component)}, std::uint64_t{static_cast<std::uint8_t>(f.tier)},
          std::uint64_t{f.space.v}, f.last_use, f.created, f.end, std::uint64_t{f.hits},
          std::uint64_t{static_cast<std::uint32_t>(f.priority)}}) {
      mixed = Rng(mixed ^ fact).next_u64();
    }
    return mixed;
  }

  const std::uint64_t seed_;
};

// A failure prints the seeds of the order and of the operations, and a shrunk list of these.
TEST(TreeOrder, AnyOrderKeepsTheTreeSound) {
  std::uint64_t seed = 1;
  for (PropertyConfig config : property_configs()) {
    config.tree.order = std::make_shared<ScatteredOrder>(seed);
    config.name += ", scattered order of seed " + std::to_string(seed);
    check_property(config, seed++, 800);
    if (HasFatalFailure()) return;
  }
}

// A tenant whose data goes first, whatever its age; of one tenant, the shallow states first.
class GuestsFirst final : public EvictionOrder {
 public:
  explicit GuestsFirst(NamespaceId guest) : guest_(guest) {}
  [[nodiscard]] OrderKey key(const Facts& f) const override {
    return {f.space == guest_ ? 0u : 1u, f.component == ComponentKind::kMamba ? f.end : f.last_use};
  }
  [[nodiscard]] OrderKey key_across(const Facts& f) const override { return key(f); }

 private:
  const NamespaceId guest_;
};

TEST(TreeOrder, AnEmbeddersOrderDecidesInEachTierForEachComponent) {
  TreeConfig config = config_of(1, 0, true, EvictionPolicy::kMru);  // which counts for nothing then
  config.order = std::make_shared<GuestsFirst>(NamespaceId(1));
  Fixture f(config);
  const NodeId own = f.insert(iota_tokens(2), {.checkpoints = {2}}).node;
  const NodeId deep = f.insert(iota_tokens(4), {.checkpoints = {4}}).node;
  PageKey seed;
  seed.bytes[0] = 1;
  f.space = f.tree.spaces().open(seed, {}, PathHash());
  ASSERT_EQ(f.space, NamespaceId(1));
  const NodeId guest = f.insert(iota_tokens(6), {.checkpoints = {6}}).node;
  for (const NodeId node : {own, deep, guest}) f.back_up(node);
  EXPECT_EQ(f.host_victim(kMamba), guest) << "used last, and deepest";
  EXPECT_EQ(f.host_victim(kFull), guest);
  EXPECT_EQ(f.tree.facts(guest, kMamba, kHst).end, 6u);
  EXPECT_EQ(f.tree.evict_host(kMamba, 1).freed, 1u);
  EXPECT_EQ(f.host_victim(kMamba), own) << "the shallow one first";
  f.tree.touch({own, 2}, true);
  EXPECT_EQ(f.host_victim(kMamba), own) << "whatever its last use";
  EXPECT_EQ(f.tree.evict_device(kFull, 6, VictimRule::kDrop).freed, 6u);
  f.check();
  EXPECT_FALSE(f.tree.view(guest).device[index_of(kFull)].size() != 0) << "on the device as well";
  EXPECT_EQ(f.tree.view(deep).device[index_of(kFull)].size(), 2u);
}

// What an order knows apart stays apart, though it is not called fifo.
class OldestMadeFirst final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& f) const override { return {f.created, 0}; }
};

TEST(TreeOrder, EdgesThatTheOrderTellsApartAreNotJoined) {
  for (const bool tells_apart : {false, true}) {
    TreeConfig config = config_of(1);
    if (tells_apart) config.order = std::make_shared<OldestMadeFirst>();
    Fixture f(config);
    LockHandle lock = f.lock(f.tree.spaces().root(f.space));
    for (TokenId i = 0; i < 3; ++i) {
      const Tokens part = iota_tokens(10, 1 + i * 10);
      ASSERT_TRUE(f.tree.extend(lock, {.from = i * 10u, .tokens = part, .full = f.ledger.device(kFull, 10)}).is_ok());
    }
    EXPECT_EQ(f.tree.node_count(), tells_apart ? 3u : 1u);
    f.tree.unlock(lock);
    f.check();
  }
}

// Keys are made of facts as they are: the invariants compare (I6), after uses that raise hits and priority.
TEST(TreeOrder, KeysFollowTheFacts) {
  Fixture f(config_of(1, 2, true, EvictionPolicy::kLfu));
  const NodeId node = f.insert(iota_tokens(4), {.checkpoints = {4}, .priority = 3}).node;
  f.back_up(node);
  const Facts before = f.tree.facts(node, kFull, kDev);
  EXPECT_EQ(before.priority, 3);
  EXPECT_EQ(before.hits, 0u);
  EXPECT_EQ(before.end, 4u);
  f.tree.touch({node, 4}, true);
  f.check();
  const Facts after = f.tree.facts(node, kFull, kDev);
  EXPECT_EQ(after.hits, 1u);
  EXPECT_GT(after.last_use, before.last_use);
  EXPECT_EQ(after.created, before.created);
  const Facts state = f.tree.facts(node, kMamba, kHst);
  EXPECT_EQ(state.component, kMamba);
  EXPECT_EQ(state.tier, kHst);
  EXPECT_EQ(state.hits, 0u) << "not counted";
  EXPECT_EQ(state.last_use, after.last_use);
}

// What the device has, too, leaves first, also while data waits that leaves with its checkpoint alone.
TEST(TreeOrder, WhatTheDeviceHasLeavesTheHostBeforeRestorePoints) {
  TreeConfig config = config_of(1, 0, true, EvictionPolicy::kValue);
  config.is_exclusive = true;
  Fixture f(config);
  const NodeId away = f.insert(iota_tokens(4, 100), {.checkpoints = {4}}).node;
  f.back_up(away);
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kDrop).demoted, 4u);
  const NodeId spare = f.insert(iota_tokens(4, 200), {.checkpoints = {4}}).node;
  f.back_up(spare);
  for (const ComponentKind c : {kFull, kMamba}) {
    const auto victim = f.tree.next_host_victim(c);
    ASSERT_TRUE(victim.has_value());
    EXPECT_EQ(victim->node, spare);
    EXPECT_LT(victim->worth, 0) << "the device has it, too";
  }
}

// Its answer is remembered while nothing changes. What a running request has begun to stand on in between is a change.
TEST(TreeOrder, WhatARunningRequestStandsOnIsNotTheNextVictimOfTheHost) {
  Fixture f(config_of(1, 0, true, EvictionPolicy::kValue));
  const NodeId older = f.insert(iota_tokens(4, 100)).node;  // no checkpoints: both go before all else
  f.back_up(older);
  const NodeId newer = f.insert(iota_tokens(4, 200)).node;
  f.back_up(newer);
  EXPECT_EQ(f.host_victim(kFull), older);
  LockHandle lock = f.tree.lock(older, kDev, {.full = true, .swa = false, .mamba = false});
  EXPECT_EQ(f.host_victim(kFull), newer);
  f.tree.unlock(lock);
  EXPECT_EQ(f.host_victim(kFull), older);
  f.check();
}

// The next turn of a conversation does not end where the one before did, whose checkpoint it would have resumed at:
// that tells how long turns take to come, and is no use of one that is not taken again.
TEST(TreeOrder, APromptTellsOfTheCheckpointsThatItWouldHaveFoundBeforeItsOwn) {
  Fixture f(config_of(1, 0, true, EvictionPolicy::kValue));
  const Tokens turns = iota_tokens(8, 100);
  f.insert(Tokens(turns.begin(), turns.begin() + 4), {.checkpoints = {4}});
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kDrop).dropped, 4u);
  const auto recalled = [&](std::uint64_t page) {
    CheckpointOrigin origin;
    CheckpointOrigin* const origins[] = {&origin};
    const std::uint64_t pages[] = {page};
    f.tree.recall({f.tree.spaces().root(f.space), 0}, turns, pages, origins);
    return origin.uses;
  };
  EXPECT_EQ(recalled(3), 0) << "nobody ended there";
  EXPECT_EQ(recalled(8), 0) << "nor here; but on the way";
  EXPECT_EQ(recalled(4), 1);
  EXPECT_EQ(recalled(4), 2);
}

// Also where the end of the earlier turn has been evicted, and not where many share what they begin with.
TEST(TreeOrder, APromptThatGoesOnWhereAnEarlierRequestEndedIsALaterTurn) {
  Fixture f(config_of(1, 0, true, EvictionPolicy::kValue));
  const Tokens turns = iota_tokens(8, 100);
  const std::span<const TokenId> first(turns.data(), 4), rest(turns.data() + 4, 4);
  const auto is_later = [&](const TreePosition& at, std::span<const TokenId> tokens) {
    CheckpointOrigin origin;
    CheckpointOrigin* const origins[] = {&origin};
    const std::uint64_t pages[] = {8};
    return f.tree.recall(at, tokens, pages, origins);
  };
  const TreePosition root{f.tree.spaces().root(f.space), 0};
  EXPECT_FALSE(is_later(root, turns));
  const auto insert_first = [&](CheckpointKind kind) {
    return f.insert(Tokens(first.begin(), first.end()), {.checkpoints = {4}, .kind = kind}).node;
  };
  const NodeId shared = insert_first(CheckpointKind::kFork);
  EXPECT_FALSE(is_later({shared, 4}, rest));
  f.tree.flush();
  const NodeId end = insert_first(CheckpointKind::kPrompt);
  EXPECT_TRUE(is_later({end, 4}, rest));
  EXPECT_TRUE(f.tree.recall({end, 4}, {}, {}, {})) << "also if it takes no checkpoint of its prompt";
  EXPECT_FALSE(is_later({end, 3}, turns)) << "nobody ended there";
  EXPECT_EQ(f.tree.evict_device(kFull, 4, VictimRule::kDrop).dropped, 4u);
  EXPECT_TRUE(is_later(root, turns));
}

// value without recurrent state: a cache of `room` documents of two pages, of which each request reads one.
class Documents {
 public:
  explicit Documents(std::size_t room) : room_(room), f_(config_of(64, 0, false, EvictionPolicy::kValue)) {}
  // Whether all of it was there.
  bool read(TokenId document) {
    const Tokens tokens = iota_tokens(128, 1 + 1000 * document);
    f_.tree.note_prompt(f_.space, tokens);
    const MatchResult match = f_.match(tokens);
    if (match.device.at.pages == 2) {
      f_.tree.touch(match.device.at, true);
      return true;
    }
    const std::uint64_t pages = f_.counts(kFull, kDev).resident;
    if (pages + 2 > 2 * room_) (void)f_.tree.evict_device(kFull, pages + 2 - 2 * room_, VictimRule::kDrop);
    f_.insert(tokens);
    return false;
  }
  int rounds(int count, TokenId documents) {
    int hits = 0;
    for (int round = 0; round < count; ++round) {
      for (TokenId d = 0; d < documents; ++d) hits += read(d);
    }
    return hits;
  }

 private:
  const std::size_t room_;
  Fixture f_;
};

TEST(TreeOrder, ValueWithoutStatesKeepsWhatRoundsAndScansComeBackTo) {
  Documents rounds(16);
  (void)rounds.rounds(12, 20);  // lru has nothing
  EXPECT_GE(rounds.rounds(10, 20), 10 * 14) << "of 16 that there is room for";

  Documents scan(16);
  TokenId next = 1000;
  int hits = 0;
  Rng rng(5);
  for (int i = 0; i < 900; ++i) {
    const bool hit = scan.read(static_cast<TokenId>(std::min(rng.below(20), rng.below(20))));
    if (i >= 600) hits += hit;
    for (int other = 0; other < 3; ++other) (void)scan.read(next++);
  }
  EXPECT_GE(hits, 200) << "of 300; lru has a third of them";

  Documents talks(16);
  hits = 0;
  for (TokenId i = 0; i < 400; ++i) {
    (void)talks.read(i);
    hits += talks.read(i - std::min(i, TokenId{4}));
  }
  EXPECT_GE(hits, 390) << "as lru";
}

}  // namespace
}  // namespace larder::tree_test
