// SPDX-License-Identifier: Apache-2.0
#include "pool/page_table.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "pool/pool_test_util.h"

namespace larder {
namespace {

using pool_test::StaleTable;

std::vector<PageRange> since(const PageChanges& changes, std::uint64_t version, std::uint64_t size = 1000) {
  std::vector<PageRange> out;
  changes.append_since(version, size, out);
  return out;
}
using Ranges = std::vector<PageRange>;

TEST(PageChanges, NeighboursOfOneVersionAreOneRange) {
  PageChanges changes;
  for (const std::uint64_t at : {5u, 6u, 4u, 7u}) changes.note(at, 1);
  changes.note(9, 1);
  changes.note(10, 2);
  EXPECT_EQ(since(changes, 0), (Ranges{{4, 8}, {9, 10}, {10, 11}}));
  EXPECT_EQ(since(changes, 1), (Ranges{{10, 11}}));
  EXPECT_EQ(since(changes, 2), Ranges{});
  EXPECT_EQ(since(changes, 0, 6), (Ranges{{4, 6}}));
}

// Who is up to date is told of nothing else, however much there was before.
TEST(PageChanges, WhenTheRecordIsFullTheOldestBecomeOne) {
  PageChanges changes;
  constexpr std::uint64_t kMany = 3 * PageChanges::kMostRanges;
  for (std::uint64_t v = 1; v <= kMany; ++v) changes.note(10 * v, v);
  EXPECT_EQ(since(changes, 0).size(), PageChanges::kMostRanges);
  EXPECT_EQ(since(changes, 0).front(), (PageRange{10, 10 * (kMany - PageChanges::kMostRanges + 1) + 1}));
  EXPECT_EQ(since(changes, kMany - 1), (Ranges{{10 * kMany, 10 * kMany + 1}}));
  EXPECT_EQ(since(changes, kMany), Ranges{});
}

TEST(PageTable, APutThatChangesNothingIsNoVersion) {
  PageTable table;
  table.put(ComponentKind::kFull, 0, DeviceSlot(3));
  table.publish();
  EXPECT_EQ(table.version(), 1u);
  table.put(ComponentKind::kFull, 0, DeviceSlot(3));
  table.publish();
  EXPECT_EQ(table.version(), 1u);
  EXPECT_TRUE(table.changed_since(0).state);
  EXPECT_FALSE(table.changed_since(1).state);
  PageTable next;
  next.full = {DeviceSlot(8), DeviceSlot(9)};
  next.follow(table.version());
  next.note_all();
  next.publish();
  EXPECT_EQ(next.version(), 2u);
  EXPECT_EQ(next.changed_since(1).full, (Ranges{{0, 2}}));
  EXPECT_TRUE(next.changed_since(1).state);
}

// Copies that come at any time, of tables that are replaced now and then, become the table.
TEST(PageTable, WhatChangedIsAllThatAStaleCopyLacks) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    PageTable table;
    std::vector<StaleTable> copies(4);
    for (int turn = 0; turn < 120; ++turn) {
      const auto component = rng.chance(1, 2) ? ComponentKind::kFull : ComponentKind::kSwa;
      const auto& list = component == ComponentKind::kFull ? table.full : table.swa;
      if (rng.chance(1, 40)) {
        PageTable next;
        next.full.assign(rng.below(6), DeviceSlot(7));
        next.state = DeviceSlot(static_cast<std::uint32_t>(rng.below(9)));
        next.follow(table.version());
        next.note_all();
        table = next;
      }
      for (std::uint64_t i = rng.below(4); i-- > 0;) {
        table.put(component, rng.below(list.size() + 1), DeviceSlot(static_cast<std::uint32_t>(rng.below(50))));
      }
      if (rng.chance(1, 2)) {
        table.publish();
        StaleTable& copy = copies[rng.below(copies.size())];
        copy.update(table);
        ASSERT_EQ(copy.difference(table), "");
      }
    }
  }
}

}  // namespace
}  // namespace larder
