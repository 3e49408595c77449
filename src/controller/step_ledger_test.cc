// SPDX-License-Identifier: Apache-2.0
#include "controller/step_ledger.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

// What release() hands out, in order.
std::vector<std::uint32_t> released(StepLedger& ledger) {
  std::vector<std::uint32_t> out;
  ledger.release([&](ComponentKind, DeviceSlot slot) { out.push_back(slot.v); },
                 [&](LockHandle& lock) { out.push_back(1000 + static_cast<std::uint32_t>(lock.node.v)); });
  return out;
}
using Slots = std::vector<std::uint32_t>;

TEST(StepLedger, StepsFollowEachOther) {
  StepLedger ledger(3);
  EXPECT_EQ(ledger.next_from(10), 10u);
  EXPECT_EQ(ledger.add(10, 20, {}).number, 1u);
  EXPECT_EQ(ledger.next_from(10), 20u);
  EXPECT_EQ(ledger.add(20, 21, {}).number, 2u);
  EXPECT_FALSE(ledger.is_full());
  EXPECT_EQ(ledger.add(21, 30, {}).number, 3u);
  EXPECT_TRUE(ledger.is_full());
  EXPECT_TRUE(ledger.is_first(1));
  EXPECT_FALSE(ledger.is_first(2));
  EXPECT_EQ(ledger.take(1).until, 20u);
  EXPECT_TRUE(ledger.is_first(2));
  EXPECT_EQ(ledger.find(1), nullptr);
  EXPECT_EQ(ledger.add(30, 31, {}).number, 4u);
}

TEST(StepLedger, WhatComesAfterACancelledStepIsVoid) {
  StepLedger ledger(8);
  for (std::uint64_t n = 0; n < 4; ++n) (void)ledger.add(n, n + 1, {});
  ledger.void_after(2);
  EXPECT_FALSE(ledger.find(2)->is_void);
  EXPECT_TRUE(ledger.find(3)->is_void);
  (void)ledger.take(2);
  EXPECT_EQ(ledger.next_from(0), 1u);
  EXPECT_EQ(ledger.add(1, 3, {}).number, 5u) << "beside the void ones, which still run";
  EXPECT_TRUE(ledger.is_first(1));
  (void)ledger.take(1);
  EXPECT_TRUE(ledger.is_first(5));
  EXPECT_FALSE(ledger.is_first(4));
  ledger.void_all();
  EXPECT_FALSE(ledger.is_first(5));
  EXPECT_EQ(ledger.next_from(7), 7u);
}

// Drafts were rejected: the next step begins where they were, however far the open ones may write.
TEST(StepLedger, ComputedCountsWhenItIsFarther) {
  StepLedger ledger(8);
  (void)ledger.add(3, 5, {});
  EXPECT_EQ(ledger.next_from(9), 9u);
}

TEST(StepLedger, LimboEndsWithTheLastStepThatWasOpenThen) {
  ComponentCounts total{};
  StepLedger ledger(8, &total);
  (void)ledger.add(0, 1, {{1, DeviceSlot(90), false}, {2, DeviceSlot(91), true}});
  ledger.keep(ComponentKind::kFull, DeviceSlot(7));
  (void)ledger.add(1, 2, {});
  ledger.keep(ComponentKind::kSwa, DeviceSlot(8));
  ledger.keep(LockHandle{.node = NodeId(5), .tier = Tier::kDevice, .parts = {}});
  EXPECT_EQ(ledger.slots(), (ComponentCounts{1, 1, 2}));
  EXPECT_EQ(ledger.in_limbo(), (ComponentCounts{1, 1, 0}));
  EXPECT_EQ(total, ledger.in_limbo());
  EXPECT_EQ(released(ledger), Slots{});
  (void)ledger.add(2, 3, {});  // began after these were let go
  EXPECT_EQ(ledger.take(1).states.size(), 2u);
  EXPECT_EQ(released(ledger), Slots{7});
  (void)ledger.take(2);
  EXPECT_EQ(released(ledger), (Slots{8, 1005}));
  EXPECT_EQ(total, ComponentCounts{});
  EXPECT_FALSE(ledger.has_limbo());
}

TEST(StepLedger, EndingOutOfOrderFreesNothingEarly) {
  StepLedger ledger(8);
  (void)ledger.add(0, 1, {});
  (void)ledger.add(1, 2, {});
  ledger.keep(ComponentKind::kFull, DeviceSlot(7));
  (void)ledger.take(2);
  EXPECT_EQ(released(ledger), Slots{});
  (void)ledger.take(1);
  EXPECT_EQ(released(ledger), Slots{7});
}

}  // namespace
}  // namespace larder
