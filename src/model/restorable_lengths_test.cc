// SPDX-License-Identifier: Apache-2.0
#include "model/restorable_lengths.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder {
namespace {

struct Case {
  std::size_t pages = 0;
  std::vector<Presence> presence;
  std::vector<JointNeed> needs;
};

// The definition, page by page.
bool is_restorable(const Case& c, std::size_t length) {
  for (std::size_t n = 0; n < c.needs.size(); ++n) {
    const JointNeed& need = c.needs[n];
    const std::size_t window = need.policy == HitPolicy::kAllPages ? length : need.trailing_pages;
    for (std::size_t back = 1; back <= std::min(window, length); ++back) {
      const std::size_t page = length - back;
      if (page >= c.presence[n].size() || !c.presence[n][page]) return false;
    }
  }
  return true;
}

Case draw(Rng& rng) {
  Case c;
  c.pages = rng.below(200);
  const std::size_t pools = 1 + rng.below(4);
  c.presence.resize(pools);
  c.needs.resize(pools);
  for (std::size_t i = 0; i < pools; ++i) {
    const bool is_all = i == 0 || rng.below(2) == 0;
    c.needs[i].policy = is_all ? HitPolicy::kAllPages : HitPolicy::kTrailingPages;
    c.needs[i].trailing_pages = is_all ? 0 : static_cast<std::uint32_t>(1 + rng.below(5));
    const std::uint64_t holes = 1 + rng.below(is_all ? 100 : 8);  // one page in so many is missing
    c.presence[i].resize(c.pages - std::min<std::size_t>(c.pages, rng.below(3)));
    for (std::size_t page = 0; page < c.presence[i].size(); ++page) c.presence[i][page] = rng.below(holes + 1) != 0;
    c.needs[i].present = &c.presence[i];
  }
  return c;
}

TEST(JointPagesTest, EveryLengthIsThatOfTheDefinition) {
  std::size_t lengths = 0;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    Rng rng(seed);
    const Case c = draw(rng);
    std::vector<std::uint64_t> words(words_for(c.pages), 0x5555);  // what was there before does not matter
    restorable_lengths(c.needs, c.pages, words);
    for (std::size_t length = 1; length <= words.size() * 64; ++length) {
      const bool bit = (words[(length - 1) / 64] >> ((length - 1) % 64) & 1) != 0;
      ASSERT_EQ(bit, length <= c.pages && is_restorable(c, length)) << "seed " << seed << ", length " << length;
      lengths += bit ? 1u : 0u;
    }
  }
  EXPECT_GT(lengths, 100'000u);  // the patterns are not all empty
}

TEST(JointPagesTest, TheMinimumOfThePoolsIsNoRestorePoint) {
  // State after page 3 only, window of one page at page 2 only: each pool alone has something, both together nothing.
  const Presence kv{true, true, true}, state{false, false, true}, window{false, true, false};
  const std::vector<JointNeed> needs{
      {&kv, HitPolicy::kAllPages, 0}, {&state, HitPolicy::kTrailingPages, 1}, {&window, HitPolicy::kTrailingPages, 1}};
  std::vector<std::uint64_t> words(1);
  restorable_lengths(needs, 3, words);
  EXPECT_EQ(words[0], 0u);
  restorable_lengths(std::span(needs).first(2), 3, words);
  EXPECT_EQ(words[0], 0b100u);
}

// The same bits whatever pieces the presence comes in; and is_over() when nothing can follow.
TEST(JointPagesTest, PiecesAreTheWhole) {
  std::size_t over = 0;
  for (std::uint64_t seed = 0; seed < 5'000; ++seed) {
    Rng rng(seed);
    const Case c = draw(rng);
    std::vector<std::uint64_t> whole(words_for(c.pages)), parts(words_for(c.pages), ~std::uint64_t{0});
    restorable_lengths(c.needs, c.pages, whole);
    if (c.pages % 64 != 0) parts.back() = (std::uint64_t{1} << (c.pages % 64)) - 1;
    RestorableScan scan;
    while (scan.at() < c.pages) {
      const std::size_t from = scan.at(), pages = std::min<std::size_t>(c.pages - from, 1 + rng.below(90));
      std::vector<Presence> piece(c.needs.size());
      std::vector<JointNeed> needs = c.needs;
      for (std::size_t n = 0; n < needs.size(); ++n) {
        const Presence& all = c.presence[n];
        for (std::size_t i = from; i < std::min(from + pages, all.size()); ++i) piece[n].push_back(all[i]);
        needs[n].present = &piece[n];
      }
      scan.add(needs, pages, parts);
      if (!scan.is_over()) continue;
      ++over;
      for (std::size_t i = scan.at(); i < c.pages; ++i) ASSERT_EQ(whole[i / 64] >> (i % 64) & 1, 0u) << "seed " << seed;
    }
    ASSERT_EQ(parts, whole) << "seed " << seed;
  }
  EXPECT_GT(over, 1000u);
}

}  // namespace
}  // namespace larder
