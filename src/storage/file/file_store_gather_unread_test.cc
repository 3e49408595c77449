// SPDX-License-Identifier: Apache-2.0
// Writes that gather, of pages whose disk cannot be read; and files whose reads have failed.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

#include "base/executor.h"
#include "storage/file/file_store_open.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kGatheredPage = 1000;

class GatherUnreadTest : public FailureTest {
 protected:
  void TearDown() override {
    files_->before_read = files_->before_open = nullptr;
    executor_.run_all();
    FailureTest::TearDown();
  }
  void write(std::uint64_t from, std::uint64_t to) {
    std::vector<std::shared_ptr<Status>> ends;
    for (std::uint64_t i = from; i < to; ++i) ends.push_back(begin_put(i, kGatheredPage));
    executor_.run_all();
    for (const auto& end : ends) EXPECT_TRUE(end->is_ok()) << end->to_string();
  }
  [[nodiscard]] bool is_there(std::uint64_t i) {
    const std::shared_ptr<Status> end = begin_get(i, kGatheredPage);
    executor_.run_all();
    return end->is_ok();
  }
  ManualExecutor executor_;
};

// The one that avoids a disk may be any of those that go as one record; and it may be any disk's turn.
TEST_F(GatherUnreadTest, ARecordAvoidsTheDiskThatOneOfItsPagesCannotBeReadFrom) {
  for (std::uint64_t shift = 0; shift < 2; ++shift) {
    for (std::uint64_t ahead = 0; ahead < 14; ++ahead) {
      SCOPED_TRACE(std::to_string(shift) + " writes before, " + std::to_string(ahead) + " just before it");
      backend_.reset();
      files_ = std::make_unique<sim::HookedFiles>(3);
      open(executor_, {{"directory", "/bad:/good"}, {"segment_size", "256Ki"}});
      write(0, 4);
      write(100, 100 + shift);
      files_->before_read = [](const std::string& path) {
        return path.rfind("/bad/", 0) == 0 ? status_from_errno(EIO, "read", path) : Status::ok();
      };
      std::uint64_t lost = 0;
      while (lost < 4 && is_there(lost)) ++lost;
      ASSERT_LT(lost, 4u) << "one lies on each disk at least";
      // The first ones keep the disks busy, and those after them gather.
      std::vector<std::shared_ptr<Status>> ends;
      for (std::uint64_t i = 0; i < ahead; ++i) ends.push_back(begin_put(200 + i, kGatheredPage));
      ends.push_back(begin_put(lost, kGatheredPage));
      executor_.run_all();
      for (const auto& end : ends) EXPECT_TRUE(end->is_ok()) << end->to_string();
      EXPECT_EQ(backend_->stats().duplicate_writes, 0u);
      EXPECT_TRUE(is_there(lost)) << "the other disk has room";
    }
  }
}

// A handle may stay bad after its disk is well again, so the next read opens the file anew. Of a file that is written,
// the handle stays.
TEST_F(GatherUnreadTest, AFailedReadClosesTheFile) {
  open(executor_, {{"directory", "/d"}});
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto end = begin_put(i, 40'000);  // one per segment
    executor_.run_all();
    ASSERT_TRUE(end->is_ok());
  }
  std::size_t opened = 0;
  files_->before_open = [&](const std::string&) { return ++opened, Status::ok(); };
  const auto read = [&](std::uint64_t i) {
    const std::shared_ptr<Status> end = begin_get(i, 40'000);
    executor_.run_all();
    return end->is_ok();
  };
  EXPECT_TRUE(read(0));
  const std::size_t before = opened;
  EXPECT_TRUE(read(0));
  EXPECT_EQ(opened, before) << "it is open";
  files_->before_read = [](const std::string& path) { return status_from_errno(EIO, "read", path); };
  EXPECT_FALSE(read(0));
  EXPECT_FALSE(read(3));
  files_->before_read = nullptr;
  const std::size_t failed = opened;
  EXPECT_TRUE(read(0));
  EXPECT_EQ(opened, failed + 1);
  EXPECT_TRUE(read(3));
  EXPECT_EQ(opened, failed + 1) << "it takes the next writes";
}

}  // namespace
}  // namespace larder::file_store
