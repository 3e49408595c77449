// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_copies.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace larder::file_store {
namespace {

// One page in two segments: 1 is sealed, 2 takes appends.
class PageCopiesTest : public testing::Test {
 protected:
  PageCopiesTest() {
    for (const SegmentId id : {1u, 2u}) (void)segments_.add(id, 0, 1);
    segments_.at(2).active = std::make_shared<ActiveSegment>();
    segments_.at(2).active->id = 2;
    page_.key.bytes[0] = 7;
  }
  ListedPage copy_in(SegmentId segment, std::uint64_t generation) const {
    ListedPage page = page_;
    page.location = {segment, 4096, 64, generation, {}};
    return page;
  }
  bool is_here(bool is_durable, PageLocation& at) {
    return copies_.is_here(index_.find_identity(page_.identity), page_.key, 64, is_durable, at);
  }
  SegmentId found_in() {
    PageLocation at;
    return index_.find(index_.find_identity(page_.identity), page_.key, at) ? at.segment : 0;
  }
  // The page lies in segment 1, and a durable write finds that not good enough and writes it to 2.
  void replace() {
    ASSERT_TRUE(copies_.insert(copy_in(1, 1), false, {}).is_ok());
    segments_.at(1).is_doubtful = true;
    PageLocation before;
    ASSERT_FALSE(is_here(true, before));
    ASSERT_EQ(before.segment, 1u);
    ASSERT_TRUE(copies_.insert(copy_in(2, 2), true, before).is_ok());
    ASSERT_EQ(found_in(), 2u);
    ASSERT_EQ(segments_.at(1).holds, 1u);
  }

  PageIndex index_;
  SegmentTable segments_{{}, 3, 1, 8};
  PageCopies copies_{FsyncMode::kOff, index_, segments_};
  ListedPage page_;
  std::vector<FilePtr> closed_;
};

TEST_F(PageCopiesTest, ADurableWriteCountsOnWhatASyncCanStillReach) {
  PageLocation at;
  EXPECT_FALSE(is_here(false, at));
  EXPECT_EQ(at.segment, 0u);
  ASSERT_TRUE(copies_.insert(copy_in(1, 1), false, {}).is_ok());
  EXPECT_TRUE(is_here(false, at));
  segments_.at(1).is_listed = true;
  EXPECT_FALSE(is_here(true, at)) << "sealed without a sync: too late";
  segments_.at(1).is_synced = true;
  EXPECT_TRUE(is_here(true, at));
  segments_.at(1).is_synced = segments_.at(1).is_listed = false;
  EXPECT_TRUE(is_here(true, at));
  EXPECT_TRUE(segments_.at(1).has_durable) << "so that it is synced before it is sealed";
}

TEST_F(PageCopiesTest, ASyncLetsTheOldCopyGo) {
  replace();
  copies_.synced(segments_.at(2));
  EXPECT_EQ(segments_.at(1).holds, 1u) << "that sync may have begun before the copy was written";
  segments_.at(2).replaced[0].is_syncing = true;
  copies_.synced(segments_.at(2));
  EXPECT_EQ(segments_.at(1).holds, 0u);
  EXPECT_EQ(found_in(), 2u);
}

TEST_F(PageCopiesTest, AfterAFailedSyncTheOldCopyCounts) {
  replace();
  copies_.doubt(segments_.at(2));
  EXPECT_EQ(found_in(), 1u);
  EXPECT_EQ(segments_.at(1).holds, 0u);
  EXPECT_EQ(copies_.returns(), 1u);
}

TEST_F(PageCopiesTest, AFileThatIsGoneGivesTheOldCopyBack) {
  replace();
  copies_.forget(2, closed_);
  EXPECT_EQ(found_in(), 1u);
  EXPECT_EQ(segments_.find(2), nullptr);
  EXPECT_EQ(segments_.at(1).holds, 0u);
}

TEST_F(PageCopiesTest, WhatCouldNotBeReadIsReplacedAndHeld) {
  ASSERT_TRUE(copies_.insert(copy_in(1, 1), false, {}).is_ok());
  EXPECT_FALSE(copies_.note_unread(copy_in(1, 1).location)) << "it is sealed";
  PageLocation at;
  for (const bool is_durable : {true, false}) EXPECT_FALSE(is_here(is_durable, at));
  ASSERT_EQ(at.segment, 1u);
  ASSERT_TRUE(copies_.insert(copy_in(2, 2), false, at).is_ok());
  EXPECT_EQ(found_in(), 2u);
  EXPECT_TRUE(is_here(false, at));
  EXPECT_EQ(segments_.at(1).holds, 1u) << "a durable write may count on it";
  EXPECT_TRUE(segments_.at(2).has_durable) << "so that it is synced before it is sealed";
  segments_.at(2).replaced.at(0).is_syncing = true;
  copies_.synced(segments_.at(2));
  EXPECT_EQ(segments_.at(1).holds, 0u);
}

// Its footer lists it, so it is there again after the next start, whatever becomes of the new copy.
TEST_F(PageCopiesTest, WhatCouldNotBeReadIsBackWhenTheNewCopyGoes) {
  ASSERT_TRUE(copies_.insert(copy_in(1, 1), false, {}).is_ok());
  segments_.at(1).is_listed = segments_.at(1).is_synced = true;
  (void)copies_.note_unread(copy_in(1, 1).location);
  PageLocation at;
  EXPECT_FALSE(is_here(false, at));
  ASSERT_TRUE(copies_.insert(copy_in(2, 2), false, at).is_ok());
  copies_.settle(segments_.at(2), true);
  EXPECT_EQ(found_in(), 1u);
}

// Its footer is to list the page, for a durable write counts on it.
TEST_F(PageCopiesTest, WhatADurableWriteCountsOnIsReplacedWhenItsSegmentHasEnded) {
  ASSERT_TRUE(copies_.insert(copy_in(2, 1), false, {}).is_ok());
  segments_.at(2).has_durable = true;
  EXPECT_TRUE(copies_.note_unread(copy_in(2, 1).location));
  PageLocation at;
  EXPECT_TRUE(is_here(false, at));
  EXPECT_TRUE(is_here(true, at));
  segments_.at(2).is_listed = true;
  EXPECT_FALSE(is_here(false, at));
  EXPECT_FALSE(is_here(true, at));
}

TEST_F(PageCopiesTest, OfWhatCouldNotBeReadTheLastAreKnown) {
  ASSERT_TRUE(copies_.insert(copy_in(1, 1), false, {}).is_ok());
  (void)copies_.note_unread(copy_in(1, 1).location);
  for (std::uint64_t i = 2; i < 100'000; ++i) (void)copies_.note_unread(copy_in(1, i).location);
  EXPECT_FALSE(copies_.is_unread(copy_in(1, 1).location));
  EXPECT_TRUE(copies_.is_unread(copy_in(1, 99'999).location));
}

TEST_F(PageCopiesTest, NobodyCountsOnAPageThatWasCleared) {
  replace();
  index_.clear();
  copies_.settle(segments_.at(2), false);
  EXPECT_EQ(segments_.at(1).holds, 0u);
  EXPECT_EQ(found_in(), 0u);
}

TEST_F(PageCopiesTest, WhatWasMovedIsBackWhenTheMoveFails) {
  for (const bool is_sync_of_target : {false, true}) {
    index_.clear();
    ASSERT_TRUE(copies_.insert(copy_in(1, 1), false, {}).is_ok());
    auto record = std::make_shared<WriteRecord>();
    record->pages = {copy_in(2, 1)};
    record->moved_from = {copy_in(1, 1).location};
    record->segment = segments_.at(2).active;
    ASSERT_TRUE(index_.move(page_.identity, page_.key, record->moved_from[0], record->pages[0].location));
    copies_.begin_move(record);
    EXPECT_EQ(found_in(), 2u);
    if (is_sync_of_target) copies_.doubt(segments_.at(2));
    if (!is_sync_of_target) copies_.end_move(*record, false);
    EXPECT_EQ(found_in(), 1u);
  }
}

}  // namespace
}  // namespace larder::file_store
