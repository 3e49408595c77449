// SPDX-License-Identifier: Apache-2.0
// Pages that a read has found damaged: gone, and not there again after a restart.
#include <gtest/gtest.h>

#include <string>

#include "base/executor.h"
#include "storage/file/segment_format.h"
#include "storage/file/store_check.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

class DamageTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 12'000;  // three per segment, in records of kRecord bytes
  static constexpr std::uint64_t kRecord = 16'384, kPerSegment = 3;

  void start(std::uint64_t pages, const std::string& fsync = "segment") {
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(3);
    open(executor_, {{"fsync", fsync}});
    for (std::uint64_t i = 0; i < pages; ++i) ASSERT_TRUE(put(i, kPage).is_ok()) << i;
  }
  void reopen(const std::string& fsync = "segment") {
    backend_.reset();
    open(executor_, {{"fsync", fsync}});
  }
  static std::string path_of(std::uint64_t i) {
    return "/d/" + segment_name(static_cast<SegmentId>(1 + i / kPerSegment));
  }
  // Flips a bit of the page's bytes, where start() has put them.
  void damage(std::uint64_t i) {
    const std::uint64_t offset = kBlockBytes + i % kPerSegment * kRecord + kRecord / 4;
    ASSERT_TRUE(files_->inner.corrupt_byte(path_of(i), offset, 0x10).is_ok());
  }
  void damage_and_read(std::uint64_t i) {
    damage(i);
    ASSERT_EQ(get(i, kPage).code(), StatusCode::kCorrupt);
    ASSERT_FALSE(has(i));
  }
  bool has(std::uint64_t i) {
    bool present = false;
    const Status asked = backend_->submit_exists({scope_, {key(i)}, {PoolName::kKv}, {}},
                                                 [&](const ExistsResult& r) { present = r.presence.at(0).present[0]; });
    return asked.is_ok() && present;
  }
  // All but `damaged`, whole.
  void expect_others(std::uint64_t pages, std::uint64_t damaged) {
    for (std::uint64_t i = 0; i < pages; ++i) {
      if (i == damaged) continue;
      EXPECT_TRUE(get(i, kPage).is_ok()) << i;
    }
  }

  InlineExecutor executor_;
};

TEST_F(DamageTest, OfASealedSegmentStaysAwayAfterARestart) {
  start(7);
  damage_and_read(1);
  reopen();
  EXPECT_FALSE(has(1));
  expect_others(7, 1);
}

TEST_F(DamageTest, StaysAwayAfterAPowerCut) {
  start(7);
  damage_and_read(1);
  cut_power();
  open(executor_);
  EXPECT_FALSE(has(1));
  expect_others(6, 1);
}

// The last record says that those before it are on disk: the next opening does not read them.
TEST_F(DamageTest, OfASegmentThatIsWrittenStaysAwayAfterAKill) {
  start(3, "group");
  damage_and_read(0);
  kill();
  open(executor_);
  EXPECT_FALSE(has(0));
  expect_others(3, 0);
}

// Several at once, in segments that earlier processes have sealed, with and without a sync.
TEST_F(DamageTest, OfEarlierProcessesStaysAway) {
  for (const char* fsync : {"segment", "off"}) {
    SCOPED_TRACE(fsync);
    start(9, fsync);
    reopen(fsync);
    for (const std::uint64_t i : {1, 2, 3, 4, 5}) damage_and_read(i);
    reopen(fsync);
    for (const std::uint64_t i : {1, 2, 3, 4, 5}) EXPECT_FALSE(has(i)) << i;
    for (const std::uint64_t i : {0, 6, 7, 8}) EXPECT_TRUE(get(i, kPage).is_ok()) << i;
  }
}

// A copy that nobody waited for gives way to a synced one with the same bytes at opening; not to a damaged one.
TEST_F(DamageTest, ACopyThatIsWrittenAgainCounts) {
  for (const char* fsync : {"segment", "off"}) {
    SCOPED_TRACE(fsync);
    start(7);
    reopen(fsync);
    damage_and_read(1);
    EXPECT_TRUE(put(1, kPage).is_ok());
    EXPECT_TRUE(get(1, kPage).is_ok());
    reopen(fsync);
    EXPECT_TRUE(get(1, kPage).is_ok());
    expect_others(7, 1);
  }
}

// The mark is lost: then the page is promised once more, and nothing else is different.
TEST_F(DamageTest, WhateverBecomesOfTheMarkNothingElseIsLost) {
  for (const sim::FileFault fault : {sim::FileFault::kIoError, sim::FileFault::kNoSpace, sim::FileFault::kShort,
                                     sim::FileFault::kWriteTorn, sim::FileFault::kSyncLost}) {
    for (const bool has_power_cut : {false, true}) {
      bool any_fired = true;
      for (std::uint64_t n = 1; any_fired; ++n) {
        SCOPED_TRACE("operation " + std::to_string(n) + ", fault " + std::to_string(static_cast<int>(fault)));
        ASSERT_LT(n, 100u);
        start(7);
        damage(1);
        files_->inner.fail_nth(n, fault);
        const Status read = get(1, kPage);
        any_fired = files_->inner.fault_fired();
        EXPECT_FALSE(read.is_ok());
        files_->inner.clear_fault();
        EXPECT_EQ(backend_->stats().suspended_volumes, 0u) << "writes have nothing to do with it";
        EXPECT_EQ(backend_->stats().evicted, 0u);
        EXPECT_TRUE(put(20, kPage).is_ok());
        if (has_power_cut) {
          cut_power();
          open(executor_);
        } else {
          reopen();
          // A mark that failed is tried again when the store is closed.
          EXPECT_TRUE(!has(1) || read.code() != StatusCode::kCorrupt);
        }
        expect_others(6, 1);
        if (HasFailure()) return;
        if (!has(1)) continue;
        EXPECT_EQ(get(1, kPage).code(), StatusCode::kCorrupt);
        reopen();
        EXPECT_FALSE(has(1));
        expect_others(6, 1);
      }
    }
  }
}

TEST_F(DamageTest, FsckFindsNothingWrongWithTheRest) {
  start(7);
  damage_and_read(1);
  damage_and_read(3);
  backend_.reset();
  const Result<CheckReport> report = check_store(*files_, clock_, std::vector<std::string>{"/d"}, {});
  ASSERT_TRUE(report.is_ok()) << report.status().to_string();
  EXPECT_TRUE(report->findings.empty()) << report->findings[0].what;
  EXPECT_EQ(report->pages, 5u);
}

}  // namespace
}  // namespace larder::file_store
