// SPDX-License-Identifier: Apache-2.0
#include "storage/file/disk_limit.h"

#include <gtest/gtest.h>

namespace larder::file_store {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(DiskLimit, IsWhatWasHeldAndWhatWasFree) {
  DiskLimit limit;
  EXPECT_FALSE(limit.is_known());
  limit.disk_was_full(1000, 100, 30, kStart);
  EXPECT_EQ(limit.bytes(), 1030u);
  limit.disk_was_full(950, 50, 500, kStart);  // a quota: the free bytes do not explain it
  EXPECT_EQ(limit.bytes(), 950u);
  limit.disk_was_full(980, 50, 10, kStart);
  EXPECT_EQ(limit.bytes(), 950u) << "it never grows by that";
}

TEST(DiskLimit, GrowsInStepsToWhatTheDiskHas) {
  DiskLimit limit;
  limit.disk_was_full(1000, 100, 0, kStart);
  EXPECT_FALSE(limit.may_grow(kStart));
  TimePoint now = kStart + seconds(10);
  EXPECT_TRUE(limit.may_grow(now));
  limit.grow(900, 250, 100, now);
  EXPECT_EQ(limit.bytes(), 1100u);
  EXPECT_FALSE(limit.may_grow(now + seconds(9)));
  now += seconds(10);
  limit.grow(900, 250, 100, now);
  EXPECT_EQ(limit.bytes(), 1150u);
  limit.grow(1150, 0, 100, now + seconds(10));
  EXPECT_EQ(limit.bytes(), 1150u);
  limit.grow(900, DiskLimit::kUnknown, 100, now + seconds(20));
  EXPECT_EQ(limit.bytes(), 1250u);
}

// Free bytes that are never to be had.
TEST(DiskLimit, TriesInVainLessAndLessOften) {
  DiskLimit limit;
  TimePoint now = kStart;
  limit.disk_was_full(1000, 100, 1'000'000, now);
  unsigned tries = 0;
  for (; now < kStart + std::chrono::hours(24); now += seconds(1)) {
    if (!limit.may_grow(now)) continue;
    ++tries;
    limit.grow(1000, 1'000'000, 100, now);
    EXPECT_FALSE(limit.is_known());
    limit.disk_was_full(1000, 100, 1'000'000, now);
    EXPECT_EQ(limit.bytes(), 1000u);
  }
  EXPECT_LT(tries, 40u);
  EXPECT_GT(tries, 20u) << "but for ever";
}

}  // namespace
}  // namespace larder::file_store
