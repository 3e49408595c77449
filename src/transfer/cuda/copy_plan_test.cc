// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/copy_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "sim/sim_cuda_driver.h"

namespace larder {
namespace {

CopyGroup group(std::uint32_t width, std::uint32_t rows) {
  CopyGroup g{};
  g.width = width;
  g.rows = rows;
  g.dst_pitch = width + 5;
  g.src_pitch = width + 9;
  cut_into_tiles(g);
  return g;
}

TEST(CopyTiles, CoverEachByteOfAPieceOnce) {
  Rng rng(3);
  for (int round = 0; round < 400; ++round) {
    const auto width = static_cast<std::uint32_t>(rng.chance(1, 2) ? rng.between(1, 64) : rng.between(1, 20'000));
    const auto rows = static_cast<std::uint32_t>(rng.between(1, 70));
    const CopyGroup g = group(width, rows);
    std::vector<int> seen(g.src_pitch * rows, 0);
    for (std::uint32_t i = 0; i < g.tiles_per_pair; ++i) {
      const CopyTile tile = tile_of(g, i);
      ASSERT_GT(tile.rows, 0U);
      ASSERT_LE(std::uint64_t{tile.width} * tile.rows, kTileBytes);
      for (std::uint32_t row = 0; row < tile.rows; ++row) {
        for (std::uint32_t at = 0; at < tile.width; ++at) ++seen[tile.src_offset + row * g.src_pitch + at];
      }
      EXPECT_EQ(tile.dst_offset / g.dst_pitch, tile.src_offset / g.src_pitch);
      EXPECT_EQ(tile.dst_offset % g.dst_pitch, tile.src_offset % g.src_pitch);
    }
    for (std::size_t at = 0; at < seen.size(); ++at) {
      ASSERT_EQ(seen[at], at % g.src_pitch < width ? 1 : 0) << width << " x " << rows << " at " << at;
    }
  }
}

// Memory that is registered in pieces of 8 KiB, and random copies from it to memory that plays the device.
class CopyPlanTest : public testing::Test {
 protected:
  static constexpr std::size_t kPiece = 8192, kBytes = 16 * kPiece;
  CopyPlanTest() {
    host = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
    device.resize(kBytes);
    EXPECT_TRUE(pinned.add(host, kBytes).is_ok());
    for (std::size_t i = 0; i < kBytes; ++i) host[i] = static_cast<std::byte>(rng.next_u64() >> 30);
  }
  ~CopyPlanTest() override {
    pinned.remove(host);
    std::free(host);
    EXPECT_TRUE(driver->violations().empty());
  }

  // What the plan copies, done here.
  void perform(CopyPlan& plan, std::size_t room) {
    for (const CudaCopy& copy : plan.engine_copies()) {
      EXPECT_GE(copy.bytes, 1U);
      EXPECT_LE((copy.src - host) % kPiece + copy.bytes, kPiece) << "a copy of the engines leaves its registration";
      std::memcpy(copy.dst, copy.src, copy.bytes);
    }
    std::vector<CopyPair> pairs(room);
    CopyLaunch launch;
    while (plan.pieces_left() > 0) {
      const std::size_t before = plan.pieces_left();
      const std::size_t written = plan.next_launch(pairs, launch);
      ASSERT_GT(written, 0U);
      ASSERT_EQ(plan.pieces_left(), before - written);
      ++launches;
      for_each_row(launch, [](std::byte* dst, const std::byte* src, std::size_t bytes, const CopyGroup&) {
        std::memcpy(dst, src, bytes);
      });
    }
  }

  Rng rng{11};
  std::shared_ptr<sim::SimCudaDriver> driver = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{});
  PinnedRanges pinned{driver, kPiece};
  std::byte* host = nullptr;
  std::vector<std::byte> device;
  int launches = 0;
};

TEST_F(CopyPlanTest, CopiesWhatTheOperationsSay) {
  CopyPlan plan(pinned, 6000, 6000);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    std::vector<CopyOp> ops;
    std::vector<std::byte> expected(kBytes, std::byte{0});
    std::fill(device.begin(), device.end(), std::byte{0});
    for (std::size_t at = 0; at < kBytes;) {  // destinations do not overlap
      CopyOp op;
      op.width = rng.chance(1, 4) ? rng.between(1, 12'000) : rng.between(1, 300);
      op.rows = rng.chance(1, 2) ? 1 : rng.between(2, 20);
      op.dst_pitch = op.width + (op.rows > 1 ? rng.below(20) : 0);
      op.src_pitch = op.width + (op.rows > 1 ? rng.below(20) : 0);
      const std::size_t dst_extent = (op.rows - 1) * op.dst_pitch + op.width;
      const std::size_t src_extent = (op.rows - 1) * op.src_pitch + op.width;
      if (at + dst_extent > kBytes || src_extent > kBytes) break;
      op.dst = device.data() + at;
      op.src = host + rng.below(kBytes - src_extent + 1);
      for (std::size_t row = 0; row < op.rows; ++row) {
        std::memcpy(expected.data() + at + row * op.dst_pitch, op.src + row * op.src_pitch, op.width);
      }
      ops.push_back(op);
      at += dst_extent;
    }
    rng.shuffle(std::span(ops));
    ASSERT_TRUE(plan.make(CopyDirection::kHostToDevice, ops).is_ok());
    perform(plan, rng.between(1, 100));
    ASSERT_TRUE(device == expected);
  }
}

// As much at once as the parameters of a kernel hold, and each lane as wide as the addresses allow.
TEST_F(CopyPlanTest, GroupsPiecesOfOneShape) {
  constexpr std::size_t kNever = std::size_t{1} << 30;
  CopyPlan plan(pinned, kNever, kNever);
  std::vector<CopyOp> ops;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t width = i % 2 == 0 ? 256 : 128;
    ops.push_back({device.data() + i * 256, host + i * 512, width, 1, width, width});
  }
  ASSERT_TRUE(plan.make(CopyDirection::kHostToDevice, ops).is_ok());
  std::vector<CopyPair> pairs(100);
  CopyLaunch launch;
  ASSERT_EQ(plan.next_launch(pairs, launch), 64U);
  EXPECT_EQ(launch.group_count, 2U);
  EXPECT_EQ(launch.groups[0].vector, 16U);
  EXPECT_EQ(plan.pieces_left(), 0U);

  ops.clear();
  for (std::size_t i = 0; i < 2 * kMaxCopyGroups; ++i) {
    ops.push_back({device.data() + i * 256 + 4, host + i * 256 + 8, 4 * (i + 1), 1, 4 * (i + 1), 4 * (i + 1)});
  }
  ASSERT_TRUE(plan.make(CopyDirection::kHostToDevice, ops).is_ok());
  ASSERT_EQ(plan.next_launch(pairs, launch), kMaxCopyGroups);
  EXPECT_EQ(launch.groups[0].vector, 4U);
  ASSERT_EQ(plan.next_launch(pairs, launch), kMaxCopyGroups);
  EXPECT_EQ(plan.pieces_left(), 0U);
}

TEST_F(CopyPlanTest, HostMemoryThatIsNotPinnedIsRefused) {
  constexpr std::size_t kNever = std::size_t{1} << 30;
  CopyPlan plan(pinned, kNever, kNever);
  std::vector<std::byte> pageable(64);
  std::vector<CopyOp> ops{{pageable.data(), device.data(), 64, 1, 64, 64}};
  EXPECT_EQ(plan.make(CopyDirection::kDeviceToHost, ops).code(), StatusCode::kInvalidArgument);
  ops = {{device.data(), host + kBytes - 8, 16, 1, 16, 16}};  // its end is not
  EXPECT_EQ(plan.make(CopyDirection::kHostToDevice, ops).code(), StatusCode::kInvalidArgument);
  ops = {{device.data(), host + kPiece - 8, 16, 1, 16, 16}};  // in two pieces: the kernel does not mind
  EXPECT_TRUE(plan.make(CopyDirection::kHostToDevice, ops).is_ok());
}

TEST(PinnedRanges, AreAllOrNothing) {
  const auto driver = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{});
  PinnedRanges pinned(driver, 4096);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, 5 * 4096));
  driver->fail_call("register_host", 3, overloaded("CUDA_ERROR_OUT_OF_MEMORY"));
  const Status failed = pinned.add(memory, 5 * 4096 - 100);
  EXPECT_EQ(failed.code(), StatusCode::kOverloaded);
  EXPECT_EQ(driver->registered_bytes(), 0U);
  EXPECT_TRUE(pinned.around(memory).empty());
  ASSERT_TRUE(pinned.add(memory, 5 * 4096 - 100).is_ok());
  EXPECT_EQ(pinned.around(memory + 9000).data(), memory);
  EXPECT_EQ(pinned.around(memory + 9000).size(), 5U * 4096 - 100);
  EXPECT_TRUE(pinned.around(memory + 5 * 4096 - 100).empty());
  const auto region = pinned.around(memory);
  EXPECT_EQ(pinned.in_one_piece(region, memory + 4000, 1000), 96U);
  EXPECT_EQ(pinned.in_one_piece(region, memory + 4096, 1000), 1000U);
  EXPECT_EQ(pinned.in_one_piece(region, memory + 4 * 4096, 5000), 3996U);
  pinned.remove(memory);
  EXPECT_EQ(driver->registered_bytes(), 0U);
  EXPECT_TRUE(driver->violations().empty());
  std::free(memory);
}

}  // namespace
}  // namespace larder
