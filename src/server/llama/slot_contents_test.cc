// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_contents.h"

#include <gtest/gtest.h>

#include <numeric>

namespace larder::llama {
namespace {

using Tokens = std::vector<TokenId>;

Tokens counting(std::size_t count, std::size_t then_other = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1u);
  tokens.insert(tokens.end(), then_other, 7777);
  return tokens;
}

constexpr EngineHabits kDense{.rolls_back = true}, kHybrid{.checkpoint_offset = 4}, kForgetful{};

TEST(SlotContents, AModelThatRollsBackUsesWhatIsTheSame) {
  SlotContents slot;
  EXPECT_EQ(slot.reusable(counting(100), kDense), 0u);
  slot.computed(counting(100), 0, true, kDense);
  EXPECT_EQ(slot.reusable(counting(150), kDense), 100u);
  EXPECT_EQ(slot.reusable(counting(100), kDense), 99u);
  EXPECT_EQ(slot.reusable(counting(60, 30), kDense), 60u);
}

TEST(SlotContents, AHybridResumesAtItsStateOrACheckpoint) {
  SlotContents slot;
  slot.computed(counting(100), 0, true, kHybrid);
  EXPECT_EQ(slot.reusable(counting(100), kHybrid), 96u);
  EXPECT_EQ(slot.reusable(counting(150), kHybrid), 96u);
  EXPECT_EQ(slot.reusable(counting(60, 30), kHybrid), 0u);
  slot.computed(counting(128), 96, false, kHybrid);
  EXPECT_EQ(slot.reusable(counting(150), kHybrid), 128u);
  EXPECT_EQ(slot.reusable(counting(126), kHybrid), 124u);
}

TEST(SlotContents, WithoutCheckpointsOnlyItsEndCounts) {
  SlotContents slot;
  slot.computed(counting(100), 0, true, kForgetful);
  EXPECT_EQ(slot.reusable(counting(150), kForgetful), 0u);
  slot.computed(counting(100), 0, false, kForgetful);
  EXPECT_EQ(slot.reusable(counting(150), kForgetful), 100u);
  EXPECT_EQ(slot.reusable(counting(100), kForgetful), 0u);
}

TEST(SlotContents, ARestoredSlotHasNoCheckpoints) {
  SlotContents slot;
  slot.computed(counting(100), 0, true, kHybrid);
  slot.restored(counting(64));
  EXPECT_EQ(slot.reusable(counting(100), kHybrid), 64u);
  EXPECT_EQ(slot.reusable(counting(50, 50), kHybrid), 0u);
  // A short continuation leaves no new checkpoint behind.
  slot.computed(counting(66), 64, true, kHybrid);
  EXPECT_EQ(slot.reusable(counting(80), kHybrid), 0u);
}

TEST(SlotContents, ForgetsWhatMayBeGone) {
  SlotContents slot;
  slot.computed(counting(100), 0, false, kHybrid);
  slot.forget();
  EXPECT_EQ(slot.reusable(counting(150), kHybrid), 0u);
  EXPECT_EQ(slot.size(), 0u);
  EXPECT_TRUE(slot.is_unknown());
  slot.restored({});
  EXPECT_FALSE(slot.is_unknown());
}

TEST(SlotContents, ADoubtLastsUntilItIsFilledAgain) {
  SlotContents slot;
  slot.computed(counting(100), 0, false, kDense);
  slot.doubt();
  EXPECT_TRUE(slot.is_doubted());
  EXPECT_EQ(slot.reusable(counting(150), kDense), 100u) << "it has all of it, or nothing";
  slot.computed(counting(100), 0, true, kDense);
  EXPECT_FALSE(slot.is_doubted());
  slot.doubt();
  slot.restored(counting(64));
  EXPECT_FALSE(slot.is_doubted());
}

TEST(SlotContents, OnlyItsOwnerMayUseWhatNobodyLookedAt) {
  SlotContents slot;
  slot.begin("me");
  EXPECT_FALSE(slot.is_owners());
  slot.filled();
  EXPECT_TRUE(slot.is_owners());
  EXPECT_TRUE(slot.is_unknown());
  slot.begin("me");
  EXPECT_TRUE(slot.is_owners());
  slot.computed(counting(100), 0, true, kDense);
  slot.forget();
  EXPECT_TRUE(slot.is_owners());
  slot.begin("you");
  EXPECT_FALSE(slot.is_owners());
  slot.forget();
  EXPECT_FALSE(slot.is_owners());
  slot.begin(std::nullopt);
  slot.filled();
  slot.begin(std::nullopt);
  EXPECT_FALSE(slot.is_owners()) << "who shares with nobody has not even its own";
  slot.restored({});
  slot.begin("you");
  EXPECT_FALSE(slot.is_unknown()) << "an empty one is anybody's";
}

TEST(SlotContents, WhatWasRestoredIsRemembered) {
  SlotContents slot;
  slot.restored(counting(64));
  EXPECT_FALSE(slot.is_parted_by(counting(64, 10)));
  slot.computed(counting(100), 64, true, kHybrid);
  EXPECT_FALSE(slot.is_parted_by(counting(65, 10)));
  EXPECT_TRUE(slot.is_parted_by(counting(63, 10)));
  EXPECT_TRUE(slot.is_parted_by(counting(64))) << "its last token is computed anew";
  slot.forget();
  EXPECT_EQ(slot.composed(), 64u) << "it may still be there";
  slot.restored({});
  EXPECT_FALSE(slot.is_parted_by(counting(10)));
}

}  // namespace
}  // namespace larder::llama
