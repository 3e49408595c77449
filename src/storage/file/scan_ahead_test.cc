// SPDX-License-Identifier: Apache-2.0
#include "storage/file/scan_ahead.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "sim/sim_file_system.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kSegments = 40;

// Sealed segments of i % 7 + 1 pages each; number kMissing is not there.
class ScanAheadTest : public testing::Test {
 protected:
  static constexpr std::size_t kMissing = 23;

  void SetUp() override {
    store_[0] = 9;
    ASSERT_TRUE(files_.make_dirs("/d").is_ok());
    for (std::size_t i = 0; i < kSegments; ++i) {
      const auto id = static_cast<SegmentId>(i + 1);
      wanted_.push_back({id, "/d/" + segment_name(id)});
      if (i != kMissing) make_segment(id, pages_in(i));
    }
  }
  static std::size_t pages_in(std::size_t i) { return i % 7 + 1; }

  void make_segment(SegmentId id, std::size_t pages) {
    Footer footer;
    footer.store = store_;
    footer.segment = id;
    footer.start = 2 * kBlockBytes;
    footer.max_generation = footer.records = 1;
    for (std::size_t i = 0; i < pages; ++i) {
      ListedPage page;
      page.key.bytes[0] = static_cast<std::uint8_t>(i);
      page.location.segment = id;
      page.location.offset = kBlockBytes + i * kPayloadAlignment;
      page.location.payload_bytes = 10;
      page.location.generation = 1;
      footer.pages.push_back(page);
    }
    OpenOptions create;
    create.write = create.create = true;
    auto file = files_.open("/d/" + segment_name(id), create);
    ASSERT_TRUE(file.is_ok());
    ASSERT_TRUE(write_fully(**file, encode_segment_header({store_, id, 1, 1}), 0).is_ok());
    ASSERT_TRUE(write_fully(**file, encode_footer(footer), footer.start).is_ok());
  }

  void expect_all(Executor* executor) {
    ScanAhead scans(files_, store_, wanted_, executor);
    for (std::size_t i = 0; i < kSegments; ++i) {
      const ScanAhead::Found found = scans.take();
      if (i == kMissing) {
        EXPECT_EQ(found.opened.code(), StatusCode::kNotFound);
        continue;
      }
      ASSERT_TRUE(found.opened.is_ok() && found.scan.is_ok()) << i;
      ASSERT_EQ(found.scan->pages.size(), pages_in(i));
      EXPECT_EQ(found.scan->pages[0].location.segment, wanted_[i].segment) << "in order";
    }
  }

  sim::SimFileSystem files_{1};
  StoreId store_{};
  std::vector<ScanAhead::Wanted> wanted_;
};

TEST_F(ScanAheadTest, WithoutHelp) { expect_all(nullptr); }

TEST_F(ScanAheadTest, WithThreads) {
  ThreadPoolExecutor threads("scan", 3, 100);
  for (int i = 0; i < 20; ++i) expect_all(&threads);
}

TEST_F(ScanAheadTest, WithTasksThatRunInsidePost) {
  InlineExecutor executor;
  expect_all(&executor);
}

// Nobody runs the tasks: the consumer does all itself, and those that run later find nothing to do.
TEST_F(ScanAheadTest, WithTasksThatNobodyRuns) {
  ManualExecutor executor;
  expect_all(&executor);
  EXPECT_GT(executor.waiting(), 0u);
  const std::uint64_t operations = files_.operations();
  executor.run_all();
  EXPECT_EQ(files_.operations(), operations);
}

TEST_F(ScanAheadTest, WithAnExecutorThatRefuses) {
  ManualExecutor executor(0);
  expect_all(&executor);
}

// The tasks keep a bound, and an end in the middle waits for what runs, and no longer.
TEST_F(ScanAheadTest, StaysNearAndEndsEarly) {
  InlineExecutor executor;
  {
    ScanAhead scans(files_, store_, wanted_, &executor);
    const std::uint64_t before = files_.operations();
    (void)scans.take();
    const std::uint64_t of_one = [&] {
      ScanAhead alone(files_, store_, {wanted_[0]}, nullptr);
      const std::uint64_t begin = files_.operations();
      (void)alone.take();
      return files_.operations() - begin;
    }();
    EXPECT_LE(files_.operations() - before, of_one * (ScanAhead::kAhead + 2));
  }
  ThreadPoolExecutor threads("scan", 3, 100);
  for (std::size_t taken = 0; taken < 10; ++taken) {
    ScanAhead scans(files_, store_, wanted_, &threads);
    for (std::size_t i = 0; i < taken; ++i) EXPECT_TRUE(scans.take().scan.is_ok());
  }
}

}  // namespace
}  // namespace larder::file_store
