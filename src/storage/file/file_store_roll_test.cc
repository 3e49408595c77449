// SPDX-License-Identifier: Apache-2.0
// The next segment is made while the one before still takes appends.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/failing_file_store.h"

namespace larder {
namespace {

constexpr std::size_t kRollPage = std::size_t{1} << 20;
constexpr std::size_t kUntilNearlyFull = 14;  // pages of a segment of 16 MiB: an eighth is left behind them

class RollAheadTest : public file_store::FailureTest {
 protected:
  void TearDown() override {
    executor_.run_all();
    FailureTest::TearDown();
  }
  void open(const std::string& max_size = "80%") {
    FailureTest::open(executor_, {{"segment_size", "16Mi"}, {"max_size", max_size}});
  }
  void submit(std::uint64_t i) {
    content_.assign(kRollPage, std::byte{7});
    status_of_[i] = internal_error("not done");
    WriteRequest request{scope_, {}, false, {}};
    request.groups.push_back({{{PoolName::kKv, key(i), {{content_.data(), kRollPage}}, {}}}});
    ASSERT_TRUE(
        backend_
            ->submit_write(std::move(request), [this, i](WriteResult result) { status_of_[i] = result.groups.at(0); })
            .is_ok());
  }
  void write(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t i = from; i < to; ++i) {
      submit(i);
      executor_.run_all();
    }
  }
  [[nodiscard]] std::size_t stored() const {
    std::size_t count = 0;
    for (const auto& [i, status] : status_of_) count += status.is_ok() ? 1 : 0;
    return count;
  }

  ManualExecutor executor_;
  std::vector<std::byte> content_;
  std::map<std::uint64_t, Status> status_of_;
};

TEST_F(RollAheadTest, IsMadeBeforeItIsNeeded) {
  open();
  write(0, kUntilNearlyFull - 1);
  EXPECT_EQ(segments_on_disk(), 1u);
  write(kUntilNearlyFull - 1, kUntilNearlyFull);
  EXPECT_EQ(segments_on_disk(), 2u);
  EXPECT_EQ(backend_->stats().segments, 2u);
  write(kUntilNearlyFull, kUntilNearlyFull + 3);
  EXPECT_EQ(segments_on_disk(), 2u);
  EXPECT_EQ(stored(), kUntilNearlyFull + 3);
  ASSERT_TRUE(backend_->close(std::chrono::nanoseconds(0)).is_ok());
  backend_.reset();
  open();
  EXPECT_EQ(backend_->stats().pages, kUntilNearlyFull + 3);
}

// One that nobody needed leaves nothing behind.
TEST_F(RollAheadTest, AnEmptyOneGoesAtTheEnd) {
  open();
  write(0, kUntilNearlyFull);
  ASSERT_TRUE(backend_->close(std::chrono::nanoseconds(0)).is_ok());
  backend_.reset();
  EXPECT_EQ(segments_on_disk(), 1u);
}

// It fails, and nothing comes of that: the one before is filled, and then it is made after all.
TEST_F(RollAheadTest, AFailureIsNoFailure) {
  open();
  write(0, kUntilNearlyFull - 1);
  const std::uint64_t before = files_->inner.operations();
  submit(kUntilNearlyFull - 1);
  while (status_of_[kUntilNearlyFull - 1].code() == StatusCode::kInternal) ASSERT_TRUE(executor_.run_one());
  ASSERT_GT(files_->inner.operations(), before);
  EXPECT_EQ(segments_on_disk(), 1u) << "its making still waits for a thread";
  files_->inner.fail_nth(1, sim::FileFault::kIoError, 5);
  executor_.run_all();
  files_->inner.clear_fault();
  EXPECT_EQ(segments_on_disk(), 1u);
  EXPECT_EQ(backend_->stats().suspended_volumes, 0u);
  write(kUntilNearlyFull, kUntilNearlyFull + 3);
  EXPECT_EQ(stored(), kUntilNearlyFull + 3);
  EXPECT_EQ(segments_on_disk(), 2u);
}

// Where the budget has no room for it, room is made when it is needed.
TEST_F(RollAheadTest, KeepsTheBudget) {
  open("128Mi");  // eight segments, of which one is kept for cleaning
  write(0, 200);
  EXPECT_EQ(stored(), 200u);
  EXPECT_LE(backend_->stats().physical_bytes, std::uint64_t{128} << 20);
  EXPECT_GT(backend_->stats().pages, 60u);
}

// A disk too small for the size that is right elsewhere.
TEST_F(RollAheadTest, ASmallDiskGetsModestSegments) {
  sim::SimFileSystem small(5, std::uint64_t{200} << 20);
  auto opened =
      factory_.create("file", {{"directory", "/d"}, {"max_size", "unlimited"}}, {&small, &clock_, &executor_, {}});
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  backend_ = std::move(opened).value();
  write(0, 4);
  EXPECT_EQ(stored(), 4u);
  EXPECT_EQ(backend_->stats().physical_bytes, std::uint64_t{25} << 20) << "an eighth of it";
  EXPECT_TRUE(backend_->close(std::chrono::seconds(1)).is_ok());
  backend_.reset();
}

}  // namespace
}  // namespace larder
