// SPDX-License-Identifier: Apache-2.0
// Is the reference the reference? Examples of its published rules, worked out by hand, with no rule of ours switched
// on.
#include <gtest/gtest.h>

#include <string_view>

#include "tests/differential/reference_restore.h"
#include "tests/differential/reference_tree.h"

namespace larder::differential {
namespace {

TEST(ReferenceRules, WorkedExamplesOfTheExistenceQuery) {
  const auto bits = [](std::string_view text) {
    std::vector<bool> v;
    for (const char c : text) v.push_back(c == '1');
    return v;
  };
  const ReferenceTransfer indexer{"indexer", false, 0}, mamba{"mamba", true, 1}, swa{"swa", true, 3};
  const std::string all = "11111111";
  const auto answer = [&](const std::string& kv, const std::vector<std::pair<ReferenceTransfer, std::string>>& pools) {
    ReferencePages pages{{"kv", bits(kv)}};
    std::vector<ReferenceTransfer> transfers;
    for (const auto& [transfer, present] : pools) {
      pages[transfer.pool] = bits(present);
      transfers.push_back(transfer);
    }
    return existing_pages(pages, transfers, 8);
  };
  EXPECT_EQ(answer("11110111", {}), 4u);
  EXPECT_EQ(answer(all, {{indexer, "11111011"}}), 5u);
  EXPECT_EQ(answer(all, {{mamba, "00010001"}}), 8u);
  EXPECT_EQ(answer("11111110", {{mamba, "00010001"}}), 4u);
  EXPECT_EQ(answer(all, {{swa, "00111011"}}), 5u);
  EXPECT_EQ(answer(all, {{swa, "11000000"}}), 2u);
  EXPECT_EQ(answer(all, {{mamba, "00010001"}, {swa, "00001110"}}), 7u);
  EXPECT_EQ(answer(all, {{indexer, "11111000"}, {mamba, "00010001"}}), 5u);
  EXPECT_EQ(answer("01111111", {{mamba, all}}), 0u);
  EXPECT_EQ(answer(all, {{mamba, "00000000"}}), 0u);
}

// A tree whose pages are one token each; slots are numbered as they are handed in.
class ReferenceTreeRules : public testing::Test {
 protected:
  using Tokens = std::vector<std::uint32_t>;

  ReferenceTree make(std::size_t window, bool state) { return {{1, window, state}, {}, counts_}; }

  ReferenceInserted insert(ReferenceTree& tree, const Tokens& tokens, std::size_t owned = 0,
                           std::size_t window_from = 0, std::optional<Slot> state = std::nullopt) {
    ReferenceInsert request{"", tokens, owned, Slots(tokens.size()), window_from, Slots(tokens.size()), state};
    for (std::size_t i = 0; i < tokens.size(); ++i) request.full[i] = request.window[i] = next_slot_++;
    return tree.insert(request);
  }
  static std::size_t device(const ReferenceTree& tree, const Tokens& tokens) { return tree.answer("", tokens).device; }
  static std::size_t any(const ReferenceTree& tree, const Tokens& tokens) { return tree.answer("", tokens).any; }
  void back_up(ReferenceTree& tree, const Tokens& tokens) {
    tree.back_up("", tokens, tokens.size(), [&](std::size_t) { return next_slot_++; });
  }

  DifferenceCounts counts_;
  Slot next_slot_ = 0;
};

const std::vector<std::uint32_t> kSix = {1, 2, 3, 4, 5, 6};
const std::vector<std::uint32_t> kFork = {1, 2, 3, 9};

TEST_F(ReferenceTreeRules, ALookupCutsTheNodeItEndsIn) {
  ReferenceTree tree = make(0, false);
  insert(tree, kSix);
  EXPECT_EQ(tree.match("", kFork).device, 3u);
  EXPECT_EQ(tree.nodes().size(), 2u);
  EXPECT_EQ(tree.match("other", kFork).walked, 0u);
}

TEST_F(ReferenceTreeRules, AStateStandsAtItsEndOnly) {
  ReferenceTree tree = make(0, true);
  EXPECT_TRUE(insert(tree, kSix, 0, 0, 70).took_state);
  EXPECT_EQ(device(tree, kSix), 6u);
  EXPECT_EQ(tree.match("", kFork).device, 0u);  // cut at 3, and the state stays with the end
  EXPECT_EQ(device(tree, kSix), 6u);
  EXPECT_FALSE(insert(tree, kSix, 0, 0, 71).took_state);
  EXPECT_TRUE(tree.take_freed()[kStatePart][kOnDevice].contains(71));
  EXPECT_EQ(tree.evict(kStatePart, kOnDevice, 1).freed, 1u);
  EXPECT_EQ(device(tree, kSix), 0u);
}

TEST_F(ReferenceTreeRules, AWindowIsWholeOrReachesTheRoot) {
  ReferenceTree tree = make(3, false);
  insert(tree, kSix, 0, 4);  // pages 4 and 5 are all there is of the window
  EXPECT_EQ(device(tree, kSix), 0u);
  EXPECT_EQ(tree.nodes().size(), 2u);  // a tombstone, and what has a window
  insert(tree, {7, 8});
  EXPECT_EQ(device(tree, {7, 8}), 2u);  // shorter than a window: nothing is missing
}

TEST_F(ReferenceTreeRules, ALeafIsCappedAtAWindow) {
  ReferenceTree tree = make(2, false);
  insert(tree, kSix);
  ASSERT_EQ(tree.nodes().size(), 2u);
  EXPECT_EQ(tree.nodes().back()->key.size(), 2u);
  EXPECT_EQ(device(tree, kSix), 6u);
}

TEST_F(ReferenceTreeRules, ATombstoneIsFilledWithFullAndWindowOfTheRequest) {
  ReferenceTree tree = make(2, false);
  insert(tree, kSix, 0, 6);
  (void)tree.take_freed();
  const ReferenceInserted again = insert(tree, kSix, 0, 4);  // slots 6 to 11
  EXPECT_EQ(again.recovered, 2u);
  const FreedSlots freed = tree.take_freed();
  EXPECT_EQ(freed[kFullPart][kOnDevice], (std::multiset<Slot>{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(device(tree, kSix), 6u);
}

TEST_F(ReferenceTreeRules, ATombstoneOfLockedPagesKeepsThem) {
  ReferenceTree tree = make(2, false);
  insert(tree, kSix, 0, 6);
  (void)tree.lock("", kSix, 6, kOnDevice);
  insert(tree, kSix, 0, 4);
  EXPECT_EQ(tree.take_freed()[kFullPart][kOnDevice], (std::multiset<Slot>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(device(tree, kSix), 6u);
}

TEST_F(ReferenceTreeRules, LeavesGoWholeAndTheOldestFirst) {
  ReferenceTree tree = make(0, false);
  insert(tree, kSix);
  insert(tree, kFork);  // [1 2 3] with the children [4 5 6] and [9]
  EXPECT_EQ(tree.evict(kFullPart, kOnDevice, 1).freed, 3u);
  EXPECT_EQ(device(tree, kSix), 3u);
  const std::size_t lock = tree.lock("", kFork, 4, kOnDevice);
  EXPECT_EQ(tree.evict(kFullPart, kOnDevice, 1).freed, 0u);
  tree.unlock(lock);
  EXPECT_EQ(tree.evict(kFullPart, kOnDevice, 2).freed, 4u);
  EXPECT_TRUE(tree.nodes().empty());
}

TEST_F(ReferenceTreeRules, WhatHasACopyIsDemotedAndComesBack) {
  ReferenceTree tree = make(0, false);
  insert(tree, kSix);
  back_up(tree, kSix);
  EXPECT_EQ(tree.evict(kFullPart, kOnHost, 1).freed, 0u);  // the host gives nothing that the device has as well
  EXPECT_EQ(tree.evict(kFullPart, kOnDevice, 1).demoted, 6u);
  EXPECT_EQ(device(tree, kSix), 0u);
  EXPECT_EQ(any(tree, kSix), 6u);
  EXPECT_EQ(insert(tree, {1, 2, 3}).recovered, 3u);  // computed again: cut, and the head is on the device
  EXPECT_EQ(device(tree, kSix), 3u);
  EXPECT_EQ(tree.evict(kFullPart, kOnHost, 1).dropped, 3u);
  EXPECT_EQ(any(tree, kSix), 3u);
}

TEST_F(ReferenceTreeRules, AWindowInsideTakesTheStateAlongAndALeafGoesWhole) {
  ReferenceTree tree = make(1, true);
  insert(tree, {1, 2, 3}, 0, 0, 70);
  insert(tree, kSix, 3, 3, 71);
  (void)tree.match("", kSix);
  (void)tree.take_freed();
  EXPECT_EQ(device(tree, {1, 2, 3}), 3u);
  EXPECT_EQ(tree.evict(kWindowPart, kOnDevice, 3).freed, 3u);  // all of [1 2 3]
  EXPECT_EQ(tree.take_freed()[kStatePart][kOnDevice], (std::multiset<Slot>{70}));
  EXPECT_EQ(device(tree, kSix), 6u);
  (void)tree.evict(kStatePart, kOnDevice, 1);   // of the leaf, which goes
  EXPECT_EQ(tree.answer("", kSix).walked, 5u);  // capped at a window, the leaf was [6]
}

TEST_F(ReferenceTreeRules, ALockHoldsWhatIsThereAndStepsOverTheRest) {
  ReferenceTree tree = make(0, false);
  insert(tree, kSix);
  back_up(tree, kSix);
  (void)tree.evict(kFullPart, kOnDevice, 6);
  const std::size_t lock = tree.lock("", kSix, 6, kOnDevice);
  insert(tree, kSix);
  EXPECT_EQ(tree.evict(kFullPart, kOnDevice, 1).freed, 6u);  // came after the lock
  tree.unlock(lock);
}

}  // namespace
}  // namespace larder::differential
