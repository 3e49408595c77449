// SPDX-License-Identifier: Apache-2.0
// What opening a store takes from its disk and its segments: sizes, and memory for the index.
#include "storage/file/file_store_open.h"

#include <gtest/gtest.h>

#include "sim/sim_file_system.h"
#include "storage/file/store_tools_test_util.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

using FileStoreOpen = FailureTest;

// Some file systems say 0 of all: ramfs, tmpfs without a limit, FUSE without statfs. The defect: segments were sized
// for a disk of no bytes, so that each write had a file of its own.
TEST_F(FileStoreOpen, ADiskThatSaysNoSizeHasSegmentsAsTheyWereAskedFor) {
  files_->change_space = [](SpaceInfo) { return SpaceInfo{}; };
  InlineExecutor executor;
  open(executor, {{"segment_size", "256Ki"}});
  for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(put(i, 8000).is_ok()) << i;
  EXPECT_LE(segments_on_disk(), 3u);
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(get(i, 8000).is_ok()) << i;
}

// Small pages at first, large ones since. The defect: the index was made as large as if all segments held as many pages
// as the oldest do.
TEST(FileStoreOpenIndex, IsNotMadeForPagesThatAreNotThere) {
  constexpr SegmentId kOld = 16, kAll = 800;
  constexpr std::uint64_t kSmallPages = 1000;
  sim::SimFileSystem files(7);
  make_test_volume(files, "/a", test_store_id(5), 0);
  std::uint64_t key = 0;
  for (SegmentId number = 1; number <= kAll; ++number) {
    SegmentBuilder segment(files, "/a", test_store_id(5), number);
    std::vector<SegmentBuilder::Page> pages(number <= kOld ? kSmallPages : 1);
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      ++key;
      pages[i] = {.key = key, .bytes = 64, .generation = key, .group = i};
    }
    (void)segment.record(pages);
    segment.seal();
  }
  FileStoreOptions options;
  options.directories = {"/a"};
  ManualClock clock;
  const auto opened = open_store(options, files, clock, nullptr);
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  ASSERT_EQ((*opened)->index.size(), key);
  PageIndex needed;
  for (SegmentId number = 1; number <= kAll; ++number) {
    std::vector<ListedPage> pages;
    (*opened)->index.list_segment(number, kSmallPages, pages);
    for (const ListedPage& page : pages) {
      ASSERT_TRUE(needed.insert(page.identity, page.key, page.parent, page.location).is_ok());
    }
  }
  EXPECT_LT((*opened)->index.memory_bytes(), 2 * needed.memory_bytes());
}

}  // namespace
}  // namespace larder::file_store
