// SPDX-License-Identifier: Apache-2.0
#include "door/staging_arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"

namespace larder {
namespace {

using Use = StagingArena::Use;

TEST(StagingArenaTest, PiecesNeverOverlapAndAllRoomComesBack) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto arena = StagingArena::create(kBytes, host_memory_source()).value();
  Rng rng(7);
  std::vector<std::shared_ptr<StagingArena::Piece>> held;
  std::vector<std::uint8_t> marks;
  const auto check = [&](std::size_t i) {
    for (std::size_t at = 0; at < held[i]->size(); at += 512) {
      ASSERT_EQ(std::to_integer<std::uint8_t>(held[i]->data()[at]), marks[i]);
    }
  };
  for (int step = 0; step < 5'000; ++step) {
    if (rng.below(2) == 0) {
      auto piece = arena->try_take(rng.below(200'000), rng.below(2) == 0 ? Use::kRead : Use::kWrite);
      if (!piece) continue;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece->data()) % StagingArena::kAlignment, 0u);
      marks.push_back(static_cast<std::uint8_t>(rng.below(256)));
      std::memset(piece->data(), marks.back(), piece->size());
      held.push_back(std::move(piece));
    } else if (!held.empty()) {
      const std::size_t i = rng.below(held.size());
      check(i);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      marks.erase(marks.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  held.clear();
  EXPECT_EQ(arena->used_bytes(), 0u);
  EXPECT_TRUE(arena->try_take(arena->memory().size, Use::kRead));  // free ranges have grown together again
}

TEST(StagingArenaTest, APieceLargerThanTheArenaComesAlone) {
  const auto arena = StagingArena::create(1 << 20, host_memory_source()).value();
  const std::size_t large = arena->memory().size + 1;
  auto piece = arena->try_take(large, Use::kRead);
  ASSERT_TRUE(piece);
  EXPECT_GE(piece->size(), large);
  EXPECT_FALSE(arena->try_take(large, Use::kRead));
  EXPECT_TRUE(arena->try_take(large, Use::kWrite)) << "another use";
  EXPECT_TRUE(arena->try_take(4096, Use::kRead));
  const std::uint64_t seen = arena->changes();
  piece.reset();
  arena->wait_for_room(seen, std::chrono::hours(1));  // returns: something was given back since
  EXPECT_TRUE(arena->try_take(large, Use::kRead));
}

TEST(StagingArenaTest, OneUseLeavesRoomForTheOther) {
  const auto arena = StagingArena::create(1 << 20, host_memory_source()).value();
  constexpr std::size_t kQuarter = std::size_t{256} << 10;
  std::vector<std::shared_ptr<StagingArena::Piece>> held;
  for (int i = 0; i < 3; ++i) held.push_back(arena->try_take(kQuarter, Use::kRead));
  EXPECT_TRUE(held.back());
  EXPECT_FALSE(arena->try_take(4096, Use::kRead));
  EXPECT_TRUE(arena->try_take(kQuarter, Use::kWrite));
  held.clear();
  EXPECT_TRUE(arena->try_take(4 * kQuarter, Use::kRead)) << "a single one may take all";
}

TEST(StagingArenaTest, APieceOutlivesTheArena) {
  auto arena = StagingArena::create(1 << 20, host_memory_source()).value();
  const auto piece = arena->try_take(4096, Use::kWrite);
  arena.reset();
  std::memset(piece->data(), 1, piece->size());
}

}  // namespace
}  // namespace larder
