// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/arena_room.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder::share {
namespace {

TEST(ArenaRoom, GivesTheLowestPieceThatFits) {
  ArenaRoom room(10 * kArenaPageBytes + 17);
  EXPECT_EQ(room.size(), 10 * kArenaPageBytes);
  EXPECT_EQ(room.take(1), 0u);
  EXPECT_EQ(room.take(kArenaPageBytes + 1), kArenaPageBytes);
  EXPECT_EQ(room.take(1), 3 * kArenaPageBytes);
  EXPECT_TRUE(room.give_back(kArenaPageBytes, kArenaPageBytes + 1));
  EXPECT_EQ(room.take(3 * kArenaPageBytes), 4 * kArenaPageBytes) << "the hole is too small";
  EXPECT_EQ(room.take(2 * kArenaPageBytes), kArenaPageBytes);
}

TEST(ArenaRoom, NoBytesTakeNoRoom) {
  ArenaRoom room(0);
  EXPECT_EQ(room.take(0), 0u);
  EXPECT_FALSE(room.take(1).has_value());
  EXPECT_TRUE(room.give_back(0, 0));
}

TEST(ArenaRoom, TakesBackOnlyWhatItGave) {
  ArenaRoom room(8 * kArenaPageBytes);
  const std::uint64_t at = room.take(2 * kArenaPageBytes).value();
  EXPECT_FALSE(room.give_back(at, kArenaPageBytes));
  EXPECT_FALSE(room.give_back(at + kArenaPageBytes, kArenaPageBytes));
  EXPECT_TRUE(room.give_back(at, 2 * kArenaPageBytes));
  EXPECT_FALSE(room.give_back(at, 2 * kArenaPageBytes));
  EXPECT_EQ(room.free_bytes(), room.size());
}

// Pieces never overlap, and when all are back the room is whole.
TEST(ArenaRoom, IsWholeAgainInTheEnd) {
  constexpr std::uint64_t kPages = 64;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    ArenaRoom room(kPages * kArenaPageBytes);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    std::vector<int> owners(kPages);
    const auto mark = [&](std::uint64_t offset, std::uint64_t bytes, int by) {
      for (std::uint64_t page = offset / kArenaPageBytes; page * kArenaPageBytes < offset + bytes; ++page) {
        owners[page] += by;
        EXPECT_GE(owners[page], 0);
        EXPECT_LE(owners[page], 1) << "two have a page, seed " << seed;
      }
    };
    for (int step = 0; step < 500; ++step) {
      if (taken.empty() || rng.chance(1, 2)) {
        const std::uint64_t bytes = 1 + rng.below(9 * kArenaPageBytes);
        if (const auto offset = room.take(bytes)) {
          taken.emplace_back(*offset, bytes);
          mark(*offset, bytes, 1);
        }
        continue;
      }
      const std::size_t at = rng.below(taken.size());
      EXPECT_TRUE(room.give_back(taken[at].first, taken[at].second));
      mark(taken[at].first, taken[at].second, -1);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (const auto& [offset, bytes] : taken) EXPECT_TRUE(room.give_back(offset, bytes));
    EXPECT_EQ(room.take(kPages * kArenaPageBytes), 0u);
  }
}

TEST(LiesWithin, KnowsNoOverflow) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  EXPECT_TRUE(lies_within({0, 100}, 100));
  EXPECT_TRUE(lies_within({100, 0}, 100));
  EXPECT_FALSE(lies_within({1, 100}, 100));
  EXPECT_FALSE(lies_within({kMost, 2}, 100));
  EXPECT_FALSE(lies_within({2, kMost}, 100));
  EXPECT_FALSE(lies_within({kMost, kMost}, 100));
}

}  // namespace
}  // namespace larder::share
