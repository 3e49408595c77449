// SPDX-License-Identifier: Apache-2.0
// Orders and admission as functions of facts. What a tree makes of an order: src/tree/tree_evict_test.cc and
// tree_order_test.cc; the seven beside the reference's: tests/differential.
#include <gtest/gtest.h>

#include <cmath>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policy/admission.h"
#include "policy/eviction_policies.h"

namespace larder {
namespace {

TEST(EvictionPolicies, NamesRoundTripAndEachHasAnOrder) {
  for (std::size_t i = 0; i < kEvictionPolicyCount; ++i) {
    const auto policy = static_cast<EvictionPolicy>(i);
    EXPECT_EQ(parse_eviction_policy(eviction_policy_name(policy)), policy);
    EXPECT_NE(eviction_order(policy), nullptr);
  }
  EXPECT_EQ(parse_eviction_policy("arc"), std::nullopt);
  EXPECT_EQ(eviction_policy_name(static_cast<EvictionPolicy>(kEvictionPolicyCount)), "?");
}

// Four pieces of one age at a time: a is used most, b is used last, c is made last, d has the lowest priority.
std::vector<std::pair<char, Facts>> pieces() {
  return {{'a', {.last_use = 10, .created = 2, .hits = 3, .priority = 1}},
          {'b', {.last_use = 12, .created = 1, .hits = 1, .priority = 1}},
          {'c', {.last_use = 11, .created = 5, .hits = 2, .priority = 2}},
          {'d', {.last_use = 7, .created = 3, .hits = 2, .priority = -1}}};
}

std::string leaving(const EvictionOrder& order, ComponentKind component) {
  auto all = pieces();
  for (auto& [name, facts] : all) facts.component = component;
  std::sort(all.begin(), all.end(),
            [&](const auto& x, const auto& y) { return order.key(x.second) < order.key(y.second); });
  std::string names;
  for (const auto& [name, facts] : all) names += name;
  return names;
}

TEST(EvictionPolicies, OrderFullEachInItsWay) {
  const std::vector<std::pair<EvictionPolicy, std::string>> wanted = {
      {EvictionPolicy::kLru, "dacb"},      {EvictionPolicy::kLfu, "bdca"},  {EvictionPolicy::kSlru, "bdac"},
      {EvictionPolicy::kFifo, "badc"},     {EvictionPolicy::kMru, "bcad"},  {EvictionPolicy::kFilo, "cdab"},
      {EvictionPolicy::kPriority, "dabc"}, {EvictionPolicy::kValue, "dacb"}};
  for (const auto& [policy, names] : wanted) {
    EXPECT_EQ(leaving(*eviction_order(policy), ComponentKind::kFull), names) << eviction_policy_name(policy);
  }
}

// What value asks about: worth of a piece by its facts, an age in tokens, on a tier that holds a million.
double worth(const Facts& facts, std::uint64_t age, const CheckpointStats& stats = CheckpointStats()) {
  const EvictionOrderPtr order = value_order();
  return order->worth(order->queue(facts), {age, 1'000'000}, stats);
}

Facts checkpoint(CheckpointKind kind, float uses, double gain) {
  return {.component = ComponentKind::kMamba, .restores = true, .kind = kind, .uses = uses, .gain = gain};
}

TEST(Value, UsesGainAndYouthAreWorthMore) {
  const Facts plain = checkpoint(CheckpointKind::kPrompt, 1, 1);
  EXPECT_GT(worth(checkpoint(CheckpointKind::kPrompt, 2, 1), 1000), worth(plain, 1000));
  EXPECT_GT(worth(checkpoint(CheckpointKind::kPrompt, 1, 2), 1000), worth(plain, 1000));
  EXPECT_GT(worth(plain, 1000), worth(plain, 10'000'000));
  EXPECT_GT(worth(plain, 1000), worth(checkpoint(CheckpointKind::kPrompt, 0, 1), 1000)) << "never used";
}

TEST(Value, NoLevelIsBelowASmallerOne) {
  for (const float uses : {0.0F, 0.3F, 0.5F, 1.0F, 3.0F, 50.0F, 1e6F}) {
    for (double gain = 1e-4; gain < 1e5; gain *= 1.3) {
      const double here = worth(checkpoint(CheckpointKind::kGrid, uses, gain), 5000);
      EXPECT_GT(here, 0);
      EXPECT_GE(worth(checkpoint(CheckpointKind::kGrid, uses, gain * 2), 5000), here) << uses << " " << gain;
      EXPECT_GE(worth(checkpoint(CheckpointKind::kGrid, uses * 2, gain), 5000), here) << uses << " " << gain;
    }
  }
}

TEST(Value, WhatRestoresNothingIsWorthNothingAndWhatIsHeldStays) {
  EXPECT_EQ(worth({}, 10'000'000), 0);
  EXPECT_GT(worth({}, 1), 0) << "what is new may be a piece of what is still coming";
  EXPECT_EQ(worth({.is_held = true}, 1), std::numeric_limits<double>::infinity());
}

TEST(Value, AKindThatIsUsedComesToBeWorthMore) {
  CheckpointStats stats;
  for (int i = 0; i < 100; ++i) {
    stats.came(CheckpointKind::kFork);
    stats.came(CheckpointKind::kGrid);
    if (i % 2 == 0) stats.used(CheckpointKind::kFork, 0, 1000);
    if (i % 5 == 0) stats.used(CheckpointKind::kFork, 1, 1000);  // as often as is believed of each kind
  }
  const double fork = worth(checkpoint(CheckpointKind::kFork, 0, 1), 1000, stats);
  EXPECT_NEAR(fork / worth(checkpoint(CheckpointKind::kGrid, 0, 1), 1000, stats), 50.4 / 0.4, 1e-6);
  for (int i = 0; i < 10'000; ++i) stats.used(CheckpointKind::kFork, 0, 1000);
  EXPECT_EQ(stats.chance(CheckpointKind::kFork), 1);
}

// Of two loads, one whose conversations go on at once and one whose take long, an old restore point that was used twice
// is worth less than a new one in the first alone.
TEST(Value, WhereConversationsGoOnAtOnceThoseThatEndedMakeRoom) {
  const auto old_to_new = [](std::uint64_t reuse_age) {
    CheckpointStats stats;
    for (int i = 0; i < 100; ++i) {
      stats.came(CheckpointKind::kOutput);
      if (i % 2 == 0) stats.used(CheckpointKind::kOutput, 0, reuse_age);
    }
    return worth(checkpoint(CheckpointKind::kOutput, 2, 1), 1'000'000, stats) /
           worth(checkpoint(CheckpointKind::kOutput, 0, 1), 1000, stats);
  };
  EXPECT_LT(old_to_new(10'000), 0.5);
  EXPECT_GT(old_to_new(2'000'000), 1.5);
}

TEST(CheckpointStats, LearnHowLongTheFirstUseTakes) {
  CheckpointStats stats;
  EXPECT_EQ(stats.reuse_age(), 1 << 21) << "before anything is known";
  for (int i = 0; i < 20; ++i) stats.used(CheckpointKind::kOutput, 0, 8'000 + i);
  EXPECT_EQ(stats.reuse_age(), 8192);
  const std::uint64_t changes = stats.changes();
  for (int i = 0; i < 1000; ++i) stats.used(CheckpointKind::kFork, 5, 10);
  EXPECT_EQ(stats.reuse_age(), 8192) << "what all requests share is no measure";
  EXPECT_EQ(stats.changes(), changes);
  for (int i = 0; i < 300; ++i) stats.used(CheckpointKind::kOutput, 0, 1'000'000);
  EXPECT_EQ(stats.reuse_age(), 1 << 20) << "of late";
  for (const std::uint64_t age : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    for (int i = 0; i < 1000; ++i) stats.used(CheckpointKind::kOutput, 0, age);
    EXPECT_TRUE(stats.reuse_age() == 1 || stats.reuse_age() == std::exp2(47)) << stats.reuse_age();
  }
}

TEST(CheckpointStats, LearnFromWhatWasEvictedBeforeItsUse) {
  PathHash path;
  path.append(std::vector<TokenId>{7});
  CheckpointStats stats;
  stats.lost(path, CheckpointKind::kOutput, 0, 1000);
  const double before = stats.chance(CheckpointKind::kOutput);
  for (int i = 0; i < 20; ++i) stats.missed(path, 17'000);
  EXPECT_GT(stats.chance(CheckpointKind::kOutput), before);
  EXPECT_EQ(stats.reuse_age(), 1 << 14);
  EXPECT_EQ(stats.uses_of(path, 17'000), 0) << "it was not taken again";
  stats.wanted(path, 17'000);
  EXPECT_EQ(stats.uses_of(path, 17'000), 1);
}

TEST(Value, PriorityIsWorthAFactorOfTwoAStep) {
  Facts facts = checkpoint(CheckpointKind::kPrompt, 1, 1);
  const double plain = worth(facts, 1000);
  for (const auto& [priority, factor] :
       {std::pair(1, 2.0), std::pair(-1, 0.5), std::pair(4, 16.0), std::pair(99, 16.0)}) {
    facts.priority = priority;
    EXPECT_EQ(worth(facts, 1000), plain * factor) << priority;
  }
}

TEST(Value, AHintIsBelievedAsFarAsItCameTrue) {
  const auto hinted = [](bool hint) { return kind_in_turn(CheckpointKind::kOutput, {.will_return = hint}); };
  CheckpointStats stats;
  const auto worth_after = [&](bool hint) { return worth(checkpoint(hinted(hint), 0, 1), 1000, stats); };
  EXPECT_EQ(worth_after(true), worth_after(false)) << "nothing is known of them yet";
  for (int i = 0; i < 100; ++i) {  // the caller is wrong as a rule
    stats.came(hinted(true));
    stats.came(hinted(false));
    stats.used(hinted(i % 10 == 0), 0, 1000);
  }
  EXPECT_GT(worth_after(false), 5 * worth_after(true));
}

TEST(CheckpointKinds, SayWhichTurnAndWhichHint) {
  using enum CheckpointKind;
  std::set<CheckpointKind> kinds;
  for (const bool is_later : {false, true}) {
    for (const std::optional<bool> hint : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
      const TurnFacts turn{is_later, hint};
      for (const CheckpointKind base : {kPrompt, kOutput}) {
        const CheckpointKind kind = kind_in_turn(base, turn);
        EXPECT_EQ(base_kind(kind), base);
        EXPECT_TRUE(ends_turn(kind));
        EXPECT_LT(static_cast<std::size_t>(kind), kCheckpointKinds);
        EXPECT_EQ(kind_in_turn(kind, {}), base) << "as the last request says";
        kinds.insert(kind);
      }
      for (const CheckpointKind shared : {kFork, kGrid, kFetched}) {
        EXPECT_EQ(kind_in_turn(shared, turn), shared) << "it is not this request's alone";
        EXPECT_FALSE(ends_turn(shared));
        kinds.insert(shared);
      }
    }
  }
  EXPECT_EQ(kinds.size(), kCheckpointKinds);
}

// Each turn of a conversation is resumed at once, by the next one. So the restore point of the turn before has had its
// use; a document's has not.
TEST(Value, AnEndOfATurnThatTheNextOneHasUsedIsWorthLittle) {
  CheckpointStats stats;
  for (int i = 0; i < 100; ++i) {
    stats.came(CheckpointKind::kOutput);
    stats.used(CheckpointKind::kOutput, 0, 1000);
    stats.came(CheckpointKind::kFork);
    for (float uses = 0; uses < 5; ++uses) stats.used(CheckpointKind::kFork, uses, 1000);
  }
  EXPECT_LT(stats.chance_again(CheckpointStats::used_kind(CheckpointKind::kOutput)), 0.05);
  EXPECT_GT(stats.chance_again(CheckpointStats::used_kind(CheckpointKind::kFork)), 0.9);
  const double unused = worth(checkpoint(CheckpointKind::kOutput, 0, 1), 1000, stats);
  EXPECT_GT(unused, 5 * worth(checkpoint(CheckpointKind::kOutput, 1, 1), 1000, stats));
  EXPECT_LT(unused, worth(checkpoint(CheckpointKind::kFork, 1, 1), 1000, stats));
  const CheckpointKind later = kind_in_turn(CheckpointKind::kOutput, {.is_later = true, .will_return = true});
  EXPECT_EQ(worth(checkpoint(later, 1, 1), 1000, stats), worth(checkpoint(CheckpointKind::kOutput, 1, 1), 1000, stats))
      << "after one use turns and hints say nothing more";
}

PathHash path_of(TokenId token) {
  PathHash path;
  path.append(std::vector<TokenId>{token});
  return path;
}

TEST(CheckpointStats, RemembersWhatWasEvictedAndItsUsesFade) {
  CheckpointStats stats({.fade_tokens = 1000});
  EXPECT_FALSE(stats.remembers(path_of(1)));
  stats.wanted(path_of(1), 5);  // not remembered: nothing
  stats.lost(path_of(1), CheckpointKind::kPrompt, 2, 1000);
  EXPECT_TRUE(stats.remembers(path_of(1)));
  EXPECT_FLOAT_EQ(stats.uses_of(path_of(1), 2000), 1);
  stats.wanted(path_of(1), 2000);
  EXPECT_FLOAT_EQ(stats.uses_of(path_of(1), 2000), 2);
  EXPECT_FLOAT_EQ(stats.uses_of(path_of(2), 2000), 0);
}

// The oldest of a row goes, so the last ones are there, and never more than fit.
TEST(CheckpointStats, IsBounded) {
  CheckpointStats stats;
  const auto count = static_cast<TokenId>(3 * CheckpointParameters{}.entries);
  for (TokenId i = 0; i < count; ++i) stats.lost(path_of(i), CheckpointKind::kGrid, 1, i);
  std::size_t kept = 0;
  for (TokenId i = 0; i < count; ++i) kept += stats.remembers(path_of(i)) ? 1 : 0;
  EXPECT_LE(kept, CheckpointParameters{}.entries);
  EXPECT_GT(kept, CheckpointParameters{}.entries * 9 / 10);
  for (TokenId i = count - 100; i < count; ++i) EXPECT_TRUE(stats.remembers(path_of(i))) << i;
}

TEST(EvictionPolicies, WindowsAndStatesLeaveOldestFirstUnderAll) {
  for (std::size_t i = 0; i < kEvictionPolicyCount; ++i) {
    const EvictionOrderPtr order = eviction_order(static_cast<EvictionPolicy>(i));
    for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) EXPECT_EQ(leaving(*order, c), "dacb");
    const Facts near{.component = ComponentKind::kMamba, .last_use = 4, .end = 1};
    const Facts far{.component = ComponentKind::kMamba, .last_use = 4, .end = 2};
    EXPECT_LT(order->key(near), order->key(far)) << "of one use, the end of the path stays longest";
    EXPECT_EQ(order->key_across(near), order->key_across(far)) << "across components recency alone decides";
  }
}

TEST(Admission, AllOrByHits) {
  const Facts fresh, used{.hits = 2};
  EXPECT_TRUE(admit_all()->may_enter(fresh));
  EXPECT_FALSE(admit_from_hits(2)->may_enter(fresh));
  EXPECT_TRUE(admit_from_hits(2)->may_enter(used));
}

}  // namespace
}  // namespace larder
