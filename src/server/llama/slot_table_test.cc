// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "base/thread_pool.h"

namespace larder::llama {
namespace {

using Tokens = std::vector<TokenId>;

Tokens prompt_of(TokenId first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class Slots : public testing::Test {
 protected:
  Slots() { table.set_habits({.rolls_back = true}); }
  void fill(TokenId first, std::size_t count) {
    const Tokens tokens = prompt_of(first, count);
    SlotTable::Hold hold = table.acquire({}).value();
    hold.contents().computed(tokens, 0, true, table.habits());
  }
  SlotTable table{2, 3, real_clock()};
};

TEST_F(Slots, TheOneThatHoldsMostOfAPromptIsTaken) {
  fill(1000, 50);
  fill(5000, 50);
  const Tokens longer = prompt_of(1000, 80);
  EXPECT_EQ(table.best(longer, ""), (SlotHit{0, 50}));
  SlotTable::Hold hold = table.acquire({.prompt = longer}).value();
  EXPECT_EQ(hold.slot(), 0u);
  EXPECT_EQ(hold.contents().reusable(longer, table.habits()), 50u);
  SlotTable::Hold other = table.acquire({.prompt = longer}).value();
  EXPECT_EQ(other.slot(), 1u);
  EXPECT_EQ(other.contents().reusable(longer, table.habits()), 0u);
}

TEST_F(Slots, AllComeOneEachWithWhatTheyHold) {
  fill(1000, 50);
  {
    const SlotTable::Hold mine = table.acquire({.owner = "me"}).value();
    const auto late = table.acquire_all({.limit = Nanos{0}});
    EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded) << "one is not free";
  }
  std::vector<SlotTable::Hold> all = table.acquire_all({}).value();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].slot(), 0u);
  EXPECT_EQ(all[0].contents().common(prompt_of(1000, 80)), 50u);
  EXPECT_FALSE(all[1].contents().is_owners()) << "another's";
  EXPECT_EQ(table.use().busy, 2u);
  all.clear();
  EXPECT_EQ(table.use().busy, 0u);
  EXPECT_EQ(table.best(prompt_of(1000, 80), ""), (SlotHit{0, 50}));
}

TEST_F(Slots, AShortCommonBeginningIsNoReason) {
  fill(1000, 100);
  fill(5000, 50);
  fill(1000, 100);  // slot 0 again: it is the older one
  Tokens branch = prompt_of(5000, 20);
  branch.insert(branch.end(), 60, 7);
  const SlotTable::Hold hold = table.acquire({.prompt = branch}).value();
  EXPECT_EQ(hold.slot(), 1u) << "the one that was not used for longest";
}

TEST_F(Slots, ByLikenessTheOneIsTakenThatBeginsMostLikeThePrompt) {
  table.set_habits({.rolls_back = false});
  fill(1000, 100);
  fill(5000, 50);
  Tokens branch = prompt_of(1000, 20);
  branch.insert(branch.end(), 60, 7);
  {
    const SlotTable::Hold hold = table.acquire({.prompt = branch, .by_likeness = true}).value();
    EXPECT_EQ(hold.slot(), 0u) << "of which it can use nothing";
  }
  fill(5000, 50);
  fill(1000, 100);
  SlotTable::Hold other = table.acquire({.prompt = prompt_of(1000, 20), .owner = "you", .by_likeness = true}).value();
  EXPECT_TRUE(other.contents().is_unknown()) << "another's: it is emptied first";
}

TEST_F(Slots, AServerThatChoosesOtherwiseIsNotLedForLong) {
  for (int i = 0; i < 100; ++i) table.note_choice(i % 4 == 0);
  EXPECT_FALSE(table.chooses_by_likeness());
  SlotTable other(2, 3, real_clock());
  for (int i = 0; i < 100; ++i) other.note_choice(i % 4 != 0);
  EXPECT_TRUE(other.chooses_by_likeness());
  for (int i = 0; i < 8; ++i) other.note_choice(false);
  EXPECT_FALSE(other.chooses_by_likeness());
}

TEST_F(Slots, WhatIsNotNotedIsForgotten) {
  fill(1000, 50);
  { const SlotTable::Hold both = table.acquire({.count = 2}).value(); }
  EXPECT_LE(table.best(prompt_of(1000, 80), "").tokens, 50u);
  fill(1000, 50);
  table.forget_all();
  EXPECT_EQ(table.best(prompt_of(1000, 80), "").tokens, 0u);
  SlotTable::Hold hold = table.acquire({}).value();
  table.forget_all();
  hold.contents().computed(prompt_of(1000, 50), 0, true, table.habits());
  hold.give_back();
  EXPECT_EQ(table.best(prompt_of(1000, 80), "").tokens, 0u) << "the server was started anew meanwhile";
}

TEST_F(Slots, WhatIsAnothersIsNotUsed) {
  fill(1000, 50);
  const Tokens longer = prompt_of(1000, 80);
  EXPECT_EQ(table.best(longer, "you").tokens, 0u);
  SlotTable::Hold one = table.acquire({.prompt = longer, .owner = "you"}).value();
  SlotTable::Hold two = table.acquire({.prompt = longer, .owner = "you"}).value();
  for (SlotTable::Hold* hold : {&one, &two}) {
    EXPECT_TRUE(hold->contents().is_unknown()) << "it is emptied first";
    EXPECT_EQ(hold->contents().reusable(longer, table.habits()), 0u);
  }
}

TEST_F(Slots, AlsoOfOthersTheComposedOnesAreKnown) {
  fill(1000, 50);
  {
    SlotTable::Hold hold = table.acquire({}).value();
    EXPECT_EQ(hold.slot(), 1u);
    hold.contents().restored(prompt_of(5000, 50));
    table.forget_all();
  }
  const std::vector<SlotTable::Hold> composed = table.take_free(true);
  ASSERT_EQ(composed.size(), 1u);
  EXPECT_EQ(composed.front().slot(), 1u);
  EXPECT_EQ(table.use().busy, 1u);
}

// One context of 1000 tokens for three slots.
class SharedSlots : public testing::Test {
 protected:
  SharedSlots() {
    table.set_habits({.rolls_back = true, .shared_context = 1000});
    for (SlotTable::Hold& hold : table.take_free()) {
      hold.contents().restored({});
      hold.note_size(0);
    }
  }
  std::uint32_t fill(TokenId first, std::size_t count) {
    const Tokens tokens = prompt_of(first, count);
    SlotTable::Hold hold = table.acquire({.prompt = tokens}).value();
    hold.contents().computed(tokens, 0, true, table.habits());
    hold.note_size(count);
    return hold.slot();
  }
  [[nodiscard]] bool is_doubted(TokenId first, std::size_t count) {
    const Tokens tokens = prompt_of(first, count + 1);
    SlotTable::Hold hold = table.acquire({.prompt = tokens}).value();
    EXPECT_EQ(hold.contents().reusable(tokens, table.habits()), count) << "its tokens stay known";
    return hold.contents().is_doubted();
  }
  SlotTable table{3, 3, real_clock()};
};

TEST_F(SharedSlots, TheOnesNotUsedForLongestMakeRoom) {
  EXPECT_EQ(fill(1000, 300), 0u);
  EXPECT_EQ(fill(2000, 300), 1u);
  EXPECT_EQ(fill(1000, 300), 0u);
  SlotTable::Hold mine = table.acquire({}).value();
  EXPECT_EQ(mine.slot(), 2u);
  EXPECT_TRUE(table.take_crowding(mine, 300).empty()) << "they fit";
  const auto one = table.take_crowding(mine, 600);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].slot(), 1u);
}

TEST_F(SharedSlots, TheUnknownOnesMakeRoomFirst) {
  (void)fill(1000, 300);
  (void)fill(2000, 300);
  {
    SlotTable::Hold hold = table.acquire({}).value();
    EXPECT_EQ(hold.slot(), 2u);
    hold.contents().forget();
    hold.note_size(300);
  }
  SlotTable::Hold mine = table.acquire({.prompt = prompt_of(1000, 301)}).value();
  EXPECT_EQ(mine.slot(), 0u);
  const auto one = table.take_crowding(mine, 500);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].slot(), 2u);
}

TEST_F(SharedSlots, WhatOthersHoldIsDoubtedOnceItMayHaveBeenTooMuch) {
  (void)fill(1000, 300);
  (void)fill(2000, 300);
  EXPECT_FALSE(is_doubted(1000, 300));
  {
    SlotTable::Hold hold = table.acquire({}).value();
    hold.note_size(100, 1000);
    SlotTable::Hold other = table.acquire({.prompt = prompt_of(1000, 301)}).value();
    EXPECT_TRUE(other.contents().is_doubted()) << "the answer may have grown, and nobody tells";
  }
  EXPECT_TRUE(is_doubted(1000, 300)) << "the doubt stays";
  EXPECT_FALSE(is_doubted(2000, 300));
  (void)fill(3000, 500);
  EXPECT_TRUE(is_doubted(2000, 300));
  (void)fill(2000, 300);
  EXPECT_FALSE(SlotTable(3, 3, real_clock()).acquire({}).value().contents().is_doubted()) << "each has its own";
}

TEST_F(SharedSlots, OneThatIsInUseIsDoubtedBehindItsUse) {
  const Tokens tokens = prompt_of(1000, 300);
  SlotTable::Hold hold = table.acquire({.prompt = tokens}).value();
  hold.note_size(300);
  (void)fill(2000, 800);
  hold.contents().computed(tokens, 0, true, table.habits());
  hold.give_back();
  EXPECT_TRUE(is_doubted(1000, 300));
}

TEST_F(Slots, ThoseWhoWaitHaveTheirTurnInOrder) {
  ThreadPoolExecutor threads("waiters", 2, 2);
  SlotTable::Hold first = table.acquire({}).value(), second = table.acquire({}).value();
  std::atomic<int> turns = 0;
  std::atomic<int> both_at = 0, one_at = 0;
  ASSERT_TRUE(threads
                  .post([&] {
                    const SlotTable::Hold hold = table.acquire({.count = 2}).value();
                    both_at = ++turns;
                  })
                  .is_ok());
  while (table.use().waiting < 1) std::this_thread::yield();
  ASSERT_TRUE(threads
                  .post([&] {
                    const SlotTable::Hold hold = table.acquire({}).value();
                    one_at = ++turns;
                  })
                  .is_ok());
  while (table.use().waiting < 2) std::this_thread::yield();
  first.give_back();
  EXPECT_EQ(table.use().waiting, 2u) << "one is free, and the first in line wants two";
  second.give_back();
  threads.wait_idle();
  EXPECT_EQ(both_at, 1);
  EXPECT_EQ(one_at, 2);
  EXPECT_EQ(table.use().busy, 0u);
}

TEST_F(Slots, WaitingHasLimits) {
  SlotTable::Hold both = table.acquire({.count = 2}).value();
  EXPECT_EQ(table.acquire({.limit = Nanos{0}}).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(table.acquire({.is_gone = [] { return true; }}).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(table.acquire({.count = 3}).status().code(), StatusCode::kInvalidArgument);
  SlotTable narrow(1, 0, real_clock());
  EXPECT_EQ(narrow.acquire({}).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(table.use().waiting, 0u);
}

}  // namespace
}  // namespace larder::llama
