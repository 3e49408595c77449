// SPDX-License-Identifier: Apache-2.0
// Orders and admission as functions of facts. What a tree makes of an order: src/tree/tree_evict_test.cc and
// tree_order_test.cc; the seven beside the reference's: tests/differential.
#include <gtest/gtest.h>

#include <algorithm>
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
      {EvictionPolicy::kLru, "dacb"},     {EvictionPolicy::kLfu, "bdca"}, {EvictionPolicy::kSlru, "bdac"},
      {EvictionPolicy::kFifo, "badc"},    {EvictionPolicy::kMru, "bcad"}, {EvictionPolicy::kFilo, "cdab"},
      {EvictionPolicy::kPriority, "dabc"}};
  for (const auto& [policy, names] : wanted) {
    EXPECT_EQ(leaving(*eviction_order(policy), ComponentKind::kFull), names) << eviction_policy_name(policy);
  }
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
