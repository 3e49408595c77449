// SPDX-License-Identifier: Apache-2.0
// What the file store says to the log, it says without its lock: the sink may be an engine's, and may block.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/log.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

// While the store says something, another thread asks it for its statistics, which takes the lock.
class FileStoreLogTest : public FailureTest {
 protected:
  void SetUp() override {
    FailureTest::SetUp();
    set_log_level(LogLevel::kInfo);
    set_log_sink([this](LogLevel, std::string_view, std::string_view message) {
      if (!backend_ || asked_.valid()) return;
      said_ = message;
      asked_ = std::async(std::launch::async, [this] { (void)backend_->stats(); });
      was_answered_ = asked_.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    });
  }
  void TearDown() override {
    set_log_sink({});
    files_->inner.clear_fault();
    if (asked_.valid()) asked_.wait();
    FailureTest::TearDown();
  }
  void expect_answered(std::string_view words) {
    EXPECT_NE(said_.find(words), std::string::npos) << said_;
    EXPECT_TRUE(was_answered_) << said_;
  }

  InlineExecutor executor_;
  std::string said_;
  std::future<void> asked_;
  bool was_answered_ = false;
};

TEST_F(FileStoreLogTest, ThatWritingIsSuspended) {
  open(executor_);
  ASSERT_TRUE(put(1, 1000).is_ok());
  files_->inner.fail_nth(1, sim::FileFault::kIoError, 1'000'000'000);
  for (std::uint64_t i = 2; i < 8; ++i) (void)put(i, 1000);
  expect_answered("is suspended");
}

TEST_F(FileStoreLogTest, ThatTheDiskIsFull) {
  open(executor_);
  files_->inner.fail_nth(1, sim::FileFault::kNoSpace, 1'000'000'000);
  for (std::uint64_t i = 2; i < 8; ++i) (void)put(i, 1000);
  expect_answered("is full");
}

}  // namespace
}  // namespace larder::file_store
