// SPDX-License-Identifier: Apache-2.0
// Status, strong types, bytes, clock and rng: the small values.
#include <gtest/gtest.h>

#include <array>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/strong.h"

namespace larder {
namespace {

TEST(Status, NamesItsCode) {
  EXPECT_EQ(Status::ok().to_string(), "ok");
  EXPECT_EQ(overloaded("queue").to_string(), "overloaded: queue");
  EXPECT_EQ(Result<int>(not_found("x")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Result<int>(Status::ok()).status().code(), StatusCode::kInternal);
  EXPECT_EQ(Result<int>(3).value_or(4), 3);
}

TEST(Strong, SlotsStartInvalidAndHash) {
  EXPECT_FALSE(DeviceSlot().valid());
  EXPECT_TRUE(HostSlot(0).valid());
  const std::unordered_set<OpId> ops = {OpId(1), OpId(2), OpId(1)};
  EXPECT_EQ(ops.size(), 2u);
}

TEST(Bytes, LoadsAndStoresLittleEndianUnaligned) {
  std::array<std::uint8_t, 9> buffer{};
  store_le<std::uint32_t>(buffer.data() + 1, 0x01020304u);
  EXPECT_EQ(buffer[1], 4);
  EXPECT_EQ(buffer[4], 1);
  EXPECT_EQ(load_le<std::uint32_t>(buffer.data() + 1), 0x01020304u);
}

TEST(Bytes, HexGoesBothWaysAndRefusesTheRest) {
  Digest256 digest;
  digest.bytes[0] = 0xab;
  digest.bytes[31] = 0x01;
  const std::string text = digest.hex();
  EXPECT_EQ(text.size(), 64u);
  EXPECT_EQ(text.substr(0, 4), "ab00");
  EXPECT_EQ(Digest256::from_hex(text).value(), digest);
  EXPECT_EQ(Digest256::from_hex(text.substr(2)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Digest256::from_hex("zz" + text.substr(2)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(digest.prefix64(), 0xabu);
  EXPECT_TRUE(Digest256{}.is_zero());
}

TEST(Rng, SequenceIsFixedForever) {
  Rng rng(42);
  EXPECT_EQ(rng.next_u64(), 1546998764402558742u);
  EXPECT_EQ(rng.next_u64(), 6990951692964543102u);
}

TEST(Rng, StaysInRangeAndShufflesAll) {
  Rng rng(7);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(rng.below(7), 7u);
    const double u = rng.uniform();
    EXPECT_TRUE(u >= 0 && u < 1);
    const std::uint64_t b = rng.between(3, 5);
    EXPECT_TRUE(b >= 3 && b <= 5);
  }
  EXPECT_FALSE(rng.chance(0, 5));
  EXPECT_TRUE(rng.chance(5, 5));
  std::vector<int> items = {0, 1, 2, 3, 4, 5, 6, 7};
  rng.shuffle(std::span(items));
  EXPECT_EQ(std::unordered_set<int>(items.begin(), items.end()).size(), 8u);
}

TEST(Clock, ManualMovesOnlyWhenToldAndRealNeverBack) {
  ManualClock manual;
  const TimePoint start = manual.now();
  manual.advance(std::chrono::seconds(2));
  EXPECT_EQ(manual.now() - start, Nanos(2'000'000'000));
  EXPECT_EQ(manual.wall_unix_seconds(), 2);
  const TimePoint first = real_clock().now();
  EXPECT_LE(first, real_clock().now());
}

}  // namespace
}  // namespace larder
