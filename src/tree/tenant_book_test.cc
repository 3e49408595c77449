// SPDX-License-Identifier: Apache-2.0
#include "tree/tenant_book.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr ComponentKind kFull = ComponentKind::kFull, kMamba = ComponentKind::kMamba;
using Standing = TenantBook::Standing;
constexpr std::size_t kHost = TenantBook::kHostBudget;

TenantBook::AllBounds host_bounds(std::uint64_t floor, std::uint64_t ceiling) {
  TenantBook::AllBounds bounds{};
  bounds[kHost] = {floor, ceiling};
  return bounds;
}

TEST(TenantBook, WhatATenantHoldsIsWeighedInBlocksOnTheHost) {
  TenantBook book({2, 0, 10});
  const TenantId id = book.open(host_bounds(20, 40));
  EXPECT_EQ(id, TenantId(1)) << "0 is everybody else";
  book.count(id, kFull, Tier::kHost, {.resident = 7});
  EXPECT_EQ(book.held(id, kHost), 14u);
  EXPECT_EQ(book.standing(id, kHost), Standing::kBelow);
  book.count(id, kMamba, Tier::kHost, {.pending = 1});
  EXPECT_EQ(book.held(id, kHost), 24u) << "copies under way count";
  EXPECT_EQ(book.standing(id, kHost), Standing::kWithin);
  EXPECT_EQ(book.slots_to_bound(id, kFull, Tier::kHost), 2u);
  book.count(id, kMamba, Tier::kHost, {.resident = 1});
  book.count(id, kFull, Tier::kHost, {.resident = 5});
  EXPECT_EQ(book.held(id, kHost), 44u);
  EXPECT_EQ(book.standing(id, kHost), Standing::kOver);
  EXPECT_EQ(book.slots_to_bound(id, kFull, Tier::kHost), 2u);
  EXPECT_EQ(book.slots_to_bound(id, kMamba, Tier::kHost), 1u) << "one of ten blocks is enough";
  EXPECT_EQ(book.held(id, index_of(kFull)), 0u) << "nothing on the device";
  EXPECT_TRUE(book.check().is_ok());
}

TEST(TenantBook, FloorsWithholdWhatOthersMayNotTake) {
  TenantBook book({1, 1, 1});
  const TenantId a = book.open(host_bounds(4, 100)), b = book.open(host_bounds(6, 100));
  book.count(a, kFull, Tier::kHost, {.resident = 10, .locked = 8});
  book.count(b, kFull, Tier::kHost, {.resident = 5});
  EXPECT_EQ(book.withheld(kHost, {}), 5u) << "of a both that are not in use, of b none";
  EXPECT_EQ(book.withheld(kHost, {.tenant = b}), 0u) << "one's own may always go";
  EXPECT_EQ(book.withheld(kHost, {.tenant = a}), 5u);
  EXPECT_EQ(book.withheld(kHost, {.tenant = a, .breaks_floors = true}), 0u);
  book.count(a, kFull, Tier::kHost, {.locked = -8});
  EXPECT_EQ(book.withheld(kHost, {}), 9u) << "a gives 6 of 10";
}

TEST(TenantBook, AnIdThatIsUsedAgainBeginsAnew) {
  TenantBook book({1, 1, 1});
  const TenantId id = book.open(host_bounds(0, 1));
  book.count(id, kFull, Tier::kHost, {.resident = 2});
  EXPECT_EQ(book.standing(id, kHost), Standing::kOver);
  book.forget_changed();
  book.count(id, kFull, Tier::kHost, {.resident = -2});
  ASSERT_EQ(book.changed().size(), 1u);
  book.close(id);
  EXPECT_EQ(book.open(host_bounds(5, 9)), id);
  EXPECT_EQ(book.standing(id, kHost), Standing::kBelow);
  EXPECT_EQ(book.changed().size(), 1u) << "named once";
  book.forget_changed();
  book.close(id);
  EXPECT_EQ(book.open({}), id);
  EXPECT_EQ(book.changed().size(), 1u) << "its queues have to be put where it stands now";
}

TEST(TenantBook, NobodyIsNotCounted) {
  TenantBook book({1, 1, 1});
  book.count(TenantId{}, kFull, Tier::kDevice, {.resident = 3});
  EXPECT_EQ(book.standing(TenantId{}, index_of(kFull)), Standing::kWithin);
  EXPECT_GT(book.slots_to_bound(TenantId{}, kFull, Tier::kDevice), 1u << 30);
  EXPECT_TRUE(book.check().is_ok());
}

}  // namespace
}  // namespace larder
