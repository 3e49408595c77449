// SPDX-License-Identifier: Apache-2.0
// Who loses what to whom: floors and ceilings of tenants, by hand and in random histories.
#include <gtest/gtest.h>

#include <optional>

#include "tree/tree_property_check.h"

namespace larder::tree_test {
namespace {

constexpr std::size_t kDevFull = TenantBook::budget_of(ComponentKind::kFull, Tier::kDevice);
constexpr std::size_t kDevState = TenantBook::budget_of(ComponentKind::kMamba, Tier::kDevice);
constexpr std::size_t kHost = TenantBook::kHostBudget;

// A tree with one tenant beside everybody else. Paths of one letter a page.
class Two : public Fixture {
 public:
  Two(const TreeConfig& given, const TenantBook::AllBounds& bounds) : Fixture(given), everybody(space) {
    tenant = tree.tenants().open(bounds);
    PageKey seed;
    seed.bytes[0] = 1;
    own = tree.spaces().open(seed, tenant, PathHash());
  }
  NodeId add(NamespaceId whose, TokenId first, std::size_t pages, bool has_state = false) {
    space = whose;
    InsertOptions options;
    if (has_state) options.checkpoints = {pages};
    return insert(iota_tokens(pages, first), options).node;
  }
  [[nodiscard]] std::uint64_t held(std::size_t budget) const { return tree.tenants().held(tenant, budget); }
  EvictResult evict(std::uint64_t pages, const EvictFor& who = {}) {
    EvictResult out = tree.evict_device(kFull, pages, VictimRule::kDrop, who);
    check();
    return out;
  }

  TenantId tenant;
  NamespaceId everybody, own;
};

TenantBook::AllBounds bounds_of(std::size_t budget, std::uint64_t floor,
                                std::uint64_t ceiling = TenantBook::kNoCeiling) {
  TenantBook::AllBounds bounds{};
  bounds[budget] = {floor, ceiling};
  return bounds;
}

TEST(TreeTenants, AboveItsCeilingATenantLosesItsOwnFirst) {
  Two f(config_of(1), bounds_of(kDevFull, 0, 3));
  const NodeId old = f.add(f.everybody, 100, 4);
  f.add(f.own, 200, 8);  // the newest, and more than its ceiling: where there is room it may
  EXPECT_EQ(f.held(kDevFull), 8u);
  EXPECT_EQ(f.evict(2).freed, 2u);
  EXPECT_EQ(f.held(kDevFull), 6u);
  EXPECT_EQ(f.tree.view(old).end, 4u);
  EXPECT_EQ(f.evict(5, {.tenant = f.tenant}).freed, 5u);
  EXPECT_EQ(f.held(kDevFull), 3u) << "to its ceiling, and then by age";
  EXPECT_EQ(f.counts(kFull, kDev).resident, 5u);
}

TEST(TreeTenants, WhoseCeilingIsInReachLosesItsOwnFirst) {
  Two f(config_of(1), bounds_of(kDevFull, 0, 6));
  f.add(f.everybody, 100, 4);
  f.add(f.own, 200, 5);
  EXPECT_EQ(f.evict(2, {.tenant = f.tenant, .coming = 1}).freed, 2u);
  EXPECT_EQ(f.held(kDevFull), 5u) << "with one more it is at its ceiling";
  EXPECT_EQ(f.evict(2, {.tenant = f.tenant, .coming = 2}).freed, 2u);
  EXPECT_EQ(f.held(kDevFull), 4u) << "one of its own, and then the oldest";
  EXPECT_EQ(f.evict(5, {.tenant = f.tenant, .coming = 9}).freed, 5u) << "its own, and then what there is";
  EXPECT_EQ(f.counts(kFull, kDev).resident, 0u);
}

TEST(TreeTenants, AFloorIsKeptFromOthers) {
  Two f(config_of(1), bounds_of(kDevFull, 4));
  f.add(f.own, 200, 6);  // the oldest
  f.add(f.everybody, 100, 6);
  EXPECT_EQ(f.evict(12).freed, 8u);
  EXPECT_EQ(f.held(kDevFull), 4u);
  EXPECT_EQ(f.counts(kFull, kDev).resident, 4u);
  EXPECT_EQ(f.tree.tenants().withheld(kDevFull, {}), 4u);
  EXPECT_EQ(f.evict(1).freed, 0u);
}

TEST(TreeTenants, BelowItsFloorATenantTakesFromOthersBeforeItsOwn) {
  Two f(config_of(1), bounds_of(kDevFull, 4));
  f.add(f.own, 200, 3);
  f.add(f.everybody, 100, 6);
  EXPECT_EQ(f.evict(6, {.tenant = f.tenant}).freed, 6u);
  EXPECT_EQ(f.held(kDevFull), 3u) << "although it is the oldest";
  EXPECT_EQ(f.evict(2, {.tenant = f.tenant}).freed, 2u) << "its own, when there is nothing else";
  EXPECT_EQ(f.held(kDevFull), 1u);
}

TEST(TreeTenants, AFloorIsBrokenOnlyWhenNothingElseIsLeft) {
  Two f(config_of(1), bounds_of(kDevFull, 4));
  f.add(f.own, 200, 4);
  f.add(f.everybody, 100, 2);
  const EvictResult out = f.evict(3, {.breaks_floors = true});
  EXPECT_EQ(out.freed, 3u);
  EXPECT_EQ(out.from_floors, 1u);
  EXPECT_EQ(f.held(kDevFull), 3u);
}

TEST(TreeTenants, EachComponentOfTheDeviceIsABudgetOfItsOwn) {
  Two f(config_of(1, 0, true), bounds_of(kDevState, 1));
  f.add(f.own, 200, 2, true);
  f.add(f.everybody, 100, 2, true);
  EXPECT_EQ(f.tree.evict_device(kMamba, 2, VictimRule::kDrop).freed, 1u);
  EXPECT_EQ(f.held(kDevState), 1u) << "the oldest state, but below its floor";
  EXPECT_EQ(f.evict(2).freed, 2u) << "its pages have no floor";
  EXPECT_EQ(f.held(kDevState), 0u) << "a state that leaves with its page is not counted against the floor of states";
}

TEST(TreeTenants, OnTheHostPagesAndStatesAreOneBudget) {
  TreeConfig config = config_of(1, 0, true);
  config.host_blocks = {1, 0, 10};
  Two f(config, bounds_of(kHost, 14));
  for (const TokenId first : {200u, 300u}) f.back_up(f.add(f.own, first, 2, true));
  f.back_up(f.add(f.everybody, 100, 2, true));
  EXPECT_EQ(f.held(kHost), 24u);
  EXPECT_EQ(f.tree.evict_host(kMamba, 3).freed, 2u) << "one of its own, and the other's";
  EXPECT_EQ(f.held(kHost), 14u);
  f.check();
  const auto page = f.tree.next_host_victim(kFull);
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(f.tree.view(page->node).space, f.everybody) << "its pages are as safe as its state";
  EXPECT_EQ(f.tree.evict_host(kFull, 9).freed, 2u);
  EXPECT_EQ(f.tree.evict_host(kMamba, 1, {.tenant = f.tenant}).freed, 1u) << "its own, when there is nothing else";
  EXPECT_EQ(f.held(kHost), 4u);
  f.check();
}

// A state is not cut, so its tenant may end below its floor.
TEST(TreeTenants, TheLastVictimAboveAFloorGoesWhole) {
  TreeConfig config = config_of(1, 0, true);
  config.host_blocks = {1, 0, 10};
  Two f(config, bounds_of(kHost, 8));
  f.back_up(f.add(f.own, 200, 2, true));
  EXPECT_EQ(f.tree.evict_host(kMamba, 1).freed, 1u);
  EXPECT_EQ(f.held(kHost), 2u);
  EXPECT_EQ(f.tree.evict_host(kFull, 1).freed, 0u);
}

TEST(TreeTenants, WhoIsOverItsCeilingComesFirstAcrossComponentsToo) {
  TreeConfig config = config_of(1, 0, true);
  Two f(config, bounds_of(kHost, 0, 2));
  f.back_up(f.add(f.everybody, 100, 2, true));
  f.back_up(f.add(f.own, 200, 4));
  const auto page = f.tree.next_host_victim(kFull), state = f.tree.next_host_victim(kMamba);
  ASSERT_TRUE(page && state);
  EXPECT_LT(page->rank, state->rank) << "the page is newer, and its tenant above the ceiling";
}

// A copy on a full host is not worth making if the host would let go of it first.
TEST(TreeTenants, ACopyOfATenantAboveItsCeilingIsTheNextToLeaveTheHost) {
  Two f(config_of(1), bounds_of(kHost, 0, 2));
  f.back_up(f.add(f.everybody, 100, 2));
  f.back_up(f.add(f.own, 200, 2));
  f.add(f.own, 300, 2);  // not on the host
  EXPECT_EQ(f.tree.evict_device(kFull, 6, VictimRule::kBackUpWorth).needs_backup.size(), 1u)
      << "at its ceiling, not above it: newer than what the host has";
  Two g(config_of(1), bounds_of(kHost, 0, 1));
  g.back_up(g.add(g.own, 200, 2));
  g.add(g.everybody, 300, 2);
  EXPECT_EQ(g.tree.evict_device(kFull, 4, VictimRule::kBackUpWorth).needs_backup.size(), 1u)
      << "for it there is room: what is above its ceiling goes";
}

TEST(TreeTenants, ATenantThatIsGoneLeavesNoQueues) {
  Two f(config_of(1), bounds_of(kDevFull, 2));
  f.add(f.own, 200, 2);
  EXPECT_EQ(f.evict(2).freed, 0u);
  (void)f.tree.flush();
  ASSERT_TRUE(f.tree.spaces().close(f.own).is_ok());
  f.tree.tenants().close(f.tenant);
  EXPECT_EQ(f.tree.tenants().open(bounds_of(kDevFull, 0, 1)), f.tenant);
  PageKey seed;
  seed.bytes[0] = 2;
  f.own = f.tree.spaces().open(seed, f.tenant, PathHash());
  f.add(f.everybody, 100, 2);
  f.add(f.own, 400, 3);
  EXPECT_EQ(f.evict(1).freed, 1u);
  EXPECT_EQ(f.held(kDevFull), 2u) << "the newest, and above the ceiling of the new tenant";
}

// Bounds that many histories cross, in both directions.
std::vector<PropertyConfig> tenant_configs(EvictionPolicy policy) {
  std::vector<PropertyConfig> configs;
  std::uint64_t turn = 0;
  for (PropertyConfig config : property_configs()) {
    ++turn;
    config.tree.policy = policy;
    config.tree.host_blocks = {1, 1, 1 + turn % 4};
    config.name += " with tenants, " + std::string(eviction_policy_name(policy));
    TenantBook::AllBounds small{}, other{};
    for (std::size_t budget = 0; budget < TenantBook::kBudgets; ++budget) {
      small[budget] = {turn % 3 * 2, turn % 2 == 0 ? TenantBook::kNoCeiling : 3 + turn % 5};
      small[budget].floor = std::min(small[budget].floor, small[budget].ceiling);
      other[budget] = {4, 8};
    }
    config.bounds[1] = small;
    if (turn % 2 == 1) config.bounds[0] = other;
    configs.push_back(config);
  }
  return configs;
}

TEST(TreeTenants, BoundsHoldInRandomHistories) {
  std::uint64_t seed = 1;
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kValue}) {
    for (const PropertyConfig& config : tenant_configs(policy)) {
      SCOPED_TRACE(config.name);
      check_property(config, seed++, 400);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace larder::tree_test
