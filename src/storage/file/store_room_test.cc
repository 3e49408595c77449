// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_room.h"

#include <gtest/gtest.h>

#include <memory>

namespace larder::file_store {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr TimePoint kNow{std::chrono::hours(1)};

// Two volumes, 160 MiB together, segments of 8 MiB.
class StoreRoomTest : public testing::Test {
 protected:
  StoreRoomTest() : volumes_(2) {
    options_.max_bytes = 160 * kMiB;
    options_.segment_bytes = 8 * kMiB;
  }
  void add(SegmentId id, unsigned volume, std::uint64_t bytes, std::uint32_t live_bytes) {
    SegmentInfo& segment = segments_.add(id, volume, 1);
    segments_.set_size(segment, bytes);
    if (live_bytes == 0) return;
    ListedPage page;
    page.key.bytes[0] = static_cast<std::uint8_t>(id);
    page.location = {id, 4096, live_bytes, id, {}};
    ASSERT_TRUE(index_.insert(page.identity, page.key, {}, page.location).is_ok());
  }
  void fill(unsigned volume, std::uint64_t free) {
    LogLines lines;
    (void)room_.note_full_disk(lines, volume, 8 * kMiB, free, kNow);
  }

  FileStoreOptions options_;
  std::vector<Volume> volumes_;
  SegmentTable segments_{{}, 1, 2, 8};
  PageIndex index_;
  StoreRoom room_{options_, volumes_, segments_, index_};
};

TEST_F(StoreRoomTest, OneSegmentIsKeptForCleaning) {
  EXPECT_EQ(room_.most_bytes(), 160 * kMiB);
  EXPECT_EQ(room_.segment_bytes(0), 8 * kMiB);
  add(1, 0, 145 * kMiB, 0);
  EXPECT_FALSE(room_.has_room(8 * kMiB, false));
  EXPECT_TRUE(room_.has_room(8 * kMiB, true));
  EXPECT_TRUE(room_.has_disk_room(0, 500 * kMiB)) << "no disk was found to be full";
}

TEST_F(StoreRoomTest, AStoreThatOpensAboveItsBudgetHasOneSegmentMoreForCleaning) {
  add(1, 0, 190 * kMiB, 0);
  StoreRoom room{options_, volumes_, segments_, index_};
  EXPECT_FALSE(room.has_room(8 * kMiB, false));
  EXPECT_TRUE(room.has_room(8 * kMiB, true));
  add(2, 0, 8 * kMiB, 0);
  EXPECT_FALSE(room.has_room(8 * kMiB, true)) << "one, and not one more";
  segments_.set_size(segments_.at(1), 170 * kMiB);
  room.note_held();
  EXPECT_TRUE(room.has_room(8 * kMiB, true)) << "beside what is left";
  segments_.set_size(segments_.at(1), 180 * kMiB);
  EXPECT_FALSE(room.has_room(8 * kMiB, true)) << "it does not grow again";
}

TEST_F(StoreRoomTest, RoomThatCleaningStillHasIsNotFilled) {
  add(1, 0, 8 * kMiB, 0);
  EXPECT_EQ(room_.filled_bytes(), 8 * kMiB);
  add(2, 1, 8 * kMiB, 0);
  auto active = std::make_shared<ActiveSegment>();
  active->capacity_bytes = 8 * kMiB;
  active->end_bytes = 2 * kMiB;
  segments_.at(2).active = active;
  volumes_[1].log(LogKind::kNew).active = active;
  EXPECT_EQ(room_.filled_bytes(), 16 * kMiB) << "new pages may come at any time";
  volumes_[1].log(LogKind::kNew).active = nullptr;
  volumes_[1].log(LogKind::kMoved).active = active;
  EXPECT_EQ(room_.filled_bytes(), 10 * kMiB + ActiveSegment::footer_room(0));
  volumes_[1].log(LogKind::kMoved).active = nullptr;
  active->is_full = true;
  EXPECT_EQ(room_.filled_bytes(), 10 * kMiB + ActiveSegment::footer_room(0)) << "the seal gives the rest back";
}

TEST_F(StoreRoomTest, AFullDiskIsALimitForItsVolume) {
  add(1, 0, 32 * kMiB, 64);
  fill(0, 0);
  EXPECT_EQ(room_.full_volume, 0u);
  EXPECT_EQ(room_.segment_bytes(0), 4 * kMiB) << "an eighth of what the volume may hold";
  EXPECT_EQ(room_.segment_bytes(1), 8 * kMiB);
  EXPECT_EQ(room_.least_segment(), 4 * kMiB);
  EXPECT_EQ(room_.most_bytes(), 160 * kMiB) << "the other disk has said nothing";
  EXPECT_FALSE(room_.has_disk_room(0, kMiB));
  EXPECT_TRUE(room_.has_disk_room(1, kMiB));
  EXPECT_TRUE(room_.is_too_large(0, 17 * kMiB));
  room_.forget_full_if_there_is_room();
  EXPECT_TRUE(room_.full_volume);
  segments_.set_size(segments_.at(1), 20 * kMiB);
  room_.forget_full_if_there_is_room();
  EXPECT_FALSE(room_.full_volume);
  add(2, 1, 16 * kMiB, 64);
  fill(1, 0);
  EXPECT_EQ(room_.most_bytes(), 48 * kMiB) << "now both disks are the limit";
}

TEST_F(StoreRoomTest, AGroupThatIsTooLargeMakesTheLimitGrow) {
  EXPECT_TRUE(room_.check_new(30 * kMiB, 1).is_ok());
  EXPECT_EQ(room_.check_new(41 * kMiB, 1).code(), StatusCode::kInvalidArgument) << "max_size never has room for it";
  add(1, 0, 32 * kMiB, 64);
  add(2, 1, 32 * kMiB, 64);
  fill(0, 0);
  fill(1, 0);
  const TimePoint later = kNow + std::chrono::minutes(1);
  segments_.set_size(segments_.at(1), 0);
  EXPECT_FALSE(room_.wants_to_grow(0, 0, later)) << "there is much room below the limit";
  EXPECT_EQ(room_.check_new(30 * kMiB, 1).code(), StatusCode::kOverloaded);
  EXPECT_FALSE(room_.wants_to_grow(0, 0, kNow)) << "too soon";
  ASSERT_TRUE(room_.wants_to_grow(0, 0, later));
  room_.grow(0, 500 * kMiB, later);
  EXPECT_TRUE(room_.check_new(30 * kMiB, 1).is_ok());
}

TEST_F(StoreRoomTest, TheEmptiestSegmentIsTheOneWithTheSmallestShareAlive) {
  EXPECT_EQ(room_.emptiest_segment(std::nullopt, kNow).id, 0u);
  add(1, 0, 8 * kMiB, 4 * kMiB);
  add(2, 0, 2 * kMiB, 512 << 10);
  add(3, 1, 8 * kMiB, 3 * kMiB);
  EXPECT_EQ(room_.emptiest_segment(std::nullopt, kNow).id, 2u);
  EXPECT_EQ(room_.emptiest_segment(std::nullopt, kNow).live_bytes, 512u << 10);
  EXPECT_EQ(room_.emptiest_segment(1, kNow).id, 3u);
  segments_.at(2).holds = 1;
  EXPECT_EQ(room_.emptiest_segment(std::nullopt, kNow).id, 3u);
  segments_.at(3).clean_again = kNow + std::chrono::seconds(1);
  EXPECT_EQ(room_.emptiest_segment(std::nullopt, kNow).id, 1u) << "3 could not be read";
  EXPECT_EQ(room_.emptiest_segment(1, kNow).id, 3u) << "to be dropped, it may";
}

}  // namespace
}  // namespace larder::file_store
