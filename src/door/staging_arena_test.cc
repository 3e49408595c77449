// SPDX-License-Identifier: Apache-2.0
#include "door/staging_arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"

namespace larder {
namespace {

using Use = StagingArena::Use;
using Piece = std::shared_ptr<StagingArena::Piece>;

Piece take(StagingArena& arena, std::size_t bytes, Use use) {
  Result<Piece> piece = arena.try_take(bytes, use);
  EXPECT_TRUE(piece.is_ok()) << piece.status().to_string();
  return piece.is_ok() ? *piece : nullptr;
}

TEST(StagingArenaTest, PiecesNeverOverlapAndAllRoomComesBack) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto arena = StagingArena::create(kBytes, host_memory_source()).value();
  Rng rng(7);
  std::vector<Piece> held;
  std::vector<std::uint8_t> marks;
  const auto check = [&](std::size_t i) {
    for (std::size_t at = 0; at < held[i]->size(); at += 512) {
      ASSERT_EQ(std::to_integer<std::uint8_t>(held[i]->data()[at]), marks[i]);
    }
  };
  for (int step = 0; step < 5'000; ++step) {
    if (rng.below(2) == 0) {
      auto piece = take(*arena, rng.below(200'000), rng.below(2) == 0 ? Use::kRead : Use::kWrite);
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
  EXPECT_TRUE(take(*arena, arena->memory().size, Use::kRead));  // free ranges have grown together again
}

TEST(StagingArenaTest, APieceLargerThanTheArenaComesAlone) {
  const auto arena = StagingArena::create(1 << 20, host_memory_source()).value();
  const std::size_t large = arena->memory().size + 1;
  auto piece = take(*arena, large, Use::kRead);
  ASSERT_TRUE(piece);
  EXPECT_GE(piece->size(), large);
  EXPECT_FALSE(take(*arena, large, Use::kRead));
  EXPECT_TRUE(take(*arena, large, Use::kWrite)) << "another use";
  EXPECT_TRUE(take(*arena, 4096, Use::kRead));
  const std::uint64_t seen = arena->changes();
  piece.reset();
  arena->wait_for_room(seen, std::chrono::hours(1));  // returns: something was given back since
  EXPECT_TRUE(take(*arena, large, Use::kRead));
}

TEST(StagingArenaTest, OneUseLeavesRoomForTheOther) {
  const auto arena = StagingArena::create(1 << 20, host_memory_source()).value();
  constexpr std::size_t kQuarter = std::size_t{256} << 10;
  std::vector<Piece> held;
  for (int i = 0; i < 3; ++i) held.push_back(take(*arena, kQuarter, Use::kRead));
  EXPECT_TRUE(held.back());
  EXPECT_FALSE(take(*arena, 4096, Use::kRead));
  EXPECT_TRUE(take(*arena, kQuarter, Use::kWrite));
  held.clear();
  EXPECT_TRUE(take(*arena, 4 * kQuarter, Use::kRead)) << "a single one may take all";
}

// Small pieces leave no run of free bytes for a large one, whoever comes and goes.
TEST(StagingArenaTest, ALargePieceThatFindsNoRoomHasMemoryOfItsOwn) {
  constexpr std::size_t kSmall = StagingArena::kOrdinaryBytes;
  const auto arena = StagingArena::create(8 * kSmall, host_memory_source()).value();
  std::vector<Piece> held;
  for (int i = 0; i < 4; ++i) held.push_back(take(*arena, kSmall, Use::kRead));
  for (int i = 0; i < 2; ++i) held.push_back(take(*arena, kSmall, Use::kWrite));
  Piece large = take(*arena, 3 * kSmall, Use::kRead);
  ASSERT_TRUE(large);
  EXPECT_EQ(arena->used_bytes(), 9 * kSmall);
  EXPECT_FALSE(take(*arena, 3 * kSmall, Use::kRead)) << "one at a time";
  EXPECT_TRUE(take(*arena, 9 * kSmall, Use::kWrite)) << "another use";
  held.push_back(take(*arena, 2 * kSmall, Use::kRead));
  EXPECT_TRUE(held.back()) << "that still fits into the arena";
  EXPECT_FALSE(take(*arena, kSmall, Use::kRead)) << "an ordinary one waits";
  large.reset();
  held.clear();
  EXPECT_EQ(arena->used_bytes(), 0u);
}

class PoorSource final : public MemorySource {
 public:
  Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    if (bytes > (std::size_t{1} << 20)) return overloaded("the machine has not that much");
    return host_memory_source().allocate(bytes);
  }
};

TEST(StagingArenaTest, WhatTheMachineHasNotIsAnError) {
  PoorSource source;
  const auto arena = StagingArena::create(1 << 20, source).value();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(arena->try_take(2 << 20, Use::kRead).status().code(), StatusCode::kOverloaded);
    EXPECT_EQ(arena->used_bytes(), 0u);
  }
  const Piece most = take(*arena, 512 << 10, Use::kRead);
  EXPECT_FALSE(take(*arena, 512 << 10, Use::kRead)) << "but what fits into the arena waits for room";
}

TEST(StagingArenaTest, APieceOutlivesTheArena) {
  auto arena = StagingArena::create(1 << 20, host_memory_source()).value();
  const auto piece = take(*arena, 4096, Use::kWrite);
  arena.reset();
  std::memset(piece->data(), 1, piece->size());
}

}  // namespace
}  // namespace larder
