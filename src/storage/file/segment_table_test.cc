// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_table.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "sim/sim_file_system.h"

namespace larder::file_store {
namespace {

class SegmentTableTest : public testing::Test {
 protected:
  FilePtr make_file() {
    OpenOptions options;
    options.create = true;
    auto file = files_.open("/segment" + std::to_string(made_++), options);
    EXPECT_TRUE(file.is_ok()) << file.status().to_string();
    return std::move(file).value();
  }
  void open(SegmentTable& table, SegmentId id) {
    SegmentInfo& segment = table.at(id);
    table.use(segment);
    table.open(segment, make_file(), closed_);
  }

  sim::SimFileSystem files_{1};
  int made_ = 0;
  std::vector<FilePtr> closed_;
};

TEST_F(SegmentTableTest, SizesAreCountedInAllAndByVolume) {
  SegmentInfo found;
  found.id = 3;
  found.volume = 1;
  found.physical_bytes = 100;
  SegmentTable table({{3, found}}, 4, 2, 8);
  EXPECT_EQ(table.physical_bytes(), 100u);
  EXPECT_EQ(table.held_bytes(1), 100u);
  const SegmentId next = table.take_number();
  EXPECT_EQ(next, 4u) << "a number is never used twice";
  SegmentInfo& made = table.add(next, 0, 17);
  EXPECT_EQ(made.first_generation, 17u);
  table.set_size(made, 1000);
  table.set_size(table.at(3), 60);
  EXPECT_EQ(table.physical_bytes(), 1060u);
  EXPECT_EQ(table.held_bytes(0), 1000u);
  EXPECT_EQ(table.held_bytes(1), 60u);
  table.erase(next, closed_);
  EXPECT_EQ(table.physical_bytes(), 60u);
  EXPECT_EQ(table.held_bytes(0), 0u);
  EXPECT_EQ(table.find(next), nullptr);
  EXPECT_EQ(table.size(), 1u);
}

TEST_F(SegmentTableTest, WhatIsNotWrittenYetIsNotOnDiskUnlessItIsReserved) {
  SegmentTable table({}, 1, 1, 8);
  for (const SegmentId id : {1u, 2u}) {
    SegmentInfo& segment = table.add(id, 0, 1);
    segment.active = std::make_shared<ActiveSegment>();
    segment.active->end_bytes = 300;
    segment.active->is_reserved = id == 2;
    table.set_size(segment, 1000);
  }
  EXPECT_EQ(table.held_bytes(0), 2000u);
  EXPECT_EQ(table.bytes_on_disk(0), 1300u);
}

TEST_F(SegmentTableTest, FilesUsedLongestAgoAreClosedButNoActiveOne) {
  SegmentTable table({}, 1, 1, 2);
  for (SegmentId id = 1; id <= 4; ++id) (void)table.add(id, 0, 1);
  table.at(1).active = std::make_shared<ActiveSegment>();
  open(table, 1);
  open(table, 2);
  EXPECT_TRUE(closed_.empty());
  open(table, 3);
  ASSERT_EQ(closed_.size(), 1u);
  EXPECT_EQ(table.at(2).file, nullptr) << "1 is older, and takes appends";
  open(table, 4);
  EXPECT_EQ(closed_.size(), 2u);
  EXPECT_EQ(table.at(3).file, nullptr);
  EXPECT_NE(table.at(1).file, nullptr);
  EXPECT_NE(table.close(table.at(4)), nullptr);
  open(table, 2);
  EXPECT_EQ(closed_.size(), 2u) << "one had been closed";
  table.erase(2, closed_);
  EXPECT_EQ(closed_.size(), 3u) << "the caller lets it go";
  open(table, 3);
  EXPECT_EQ(closed_.size(), 3u);
}

// The defect: for each file that was opened, all segments were looked at, with the store's mutex held.
TEST_F(SegmentTableTest, OpeningCostsTheSameHoweverManySegmentsThereAre) {
  constexpr std::size_t kMostOpen = 8;
  std::uint64_t looked_at[2] = {};
  for (const SegmentId segments : {20u, 2000u}) {
    SegmentTable table({}, 1, 1, kMostOpen);
    for (SegmentId id = 1; id <= segments; ++id) (void)table.add(id, 0, 1);
    for (SegmentId id = 1; id <= 2; ++id) {
      table.at(id).active = std::make_shared<ActiveSegment>();
      open(table, id);
    }
    for (SegmentId i = 0; i < 100; ++i) open(table, 3 + i % (segments - 2));
    looked_at[segments > 20] = table.looked_at();
  }
  EXPECT_GT(looked_at[0], 0u);
  EXPECT_EQ(looked_at[0], looked_at[1]);
  EXPECT_LE(looked_at[1], 100u * 3) << "two that take appends, and the one that is closed";
}

TEST_F(SegmentTableTest, AUseKeepsAFileOpen) {
  SegmentTable table({}, 1, 1, 2);
  for (SegmentId id = 1; id <= 3; ++id) (void)table.add(id, 0, 1);
  open(table, 1);
  open(table, 2);
  table.use(table.at(1));
  table.use(table.at(3));  // not open: nothing to keep
  open(table, 3);
  ASSERT_EQ(closed_.size(), 1u);
  EXPECT_EQ(table.at(2).file, nullptr);
  EXPECT_NE(table.at(1).file, nullptr);
}

}  // namespace
}  // namespace larder::file_store
