// SPDX-License-Identifier: Apache-2.0
// An executor whose queue is full refuses what the file store gives it: that says nothing about a disk.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

class FullQueueTest : public FailureTest {};

// Runs tasks at once, but for those that it refuses.
class RefusingExecutor final : public Executor {
 public:
  std::optional<unsigned> refuse_after;  // so many tasks, one is refused
  [[nodiscard]] Status post(Task task) override {
    if (refuse_after && (*refuse_after)-- == 0) {
      refuse_after.reset();
      return overloaded("the executor's queue is full");
    }
    return inner_.post(std::move(task));
  }

 private:
  InlineExecutor inner_;
};

// The defect: a full queue counted as a failure of the disk, and the second one suspended writing.
TEST_F(FullQueueTest, SuspendsNothing) {
  constexpr std::size_t kPage = 30'000;
  ManualExecutor executor(2);
  open(executor);
  std::uint64_t next = 0, refused = 0;
  for (unsigned turn = 0; turn < 40; ++turn) {
    std::vector<std::shared_ptr<Status>> written;
    for (unsigned i = 0; i < 2 + turn % 4; ++i) written.push_back(begin_put(next++, kPage));
    executor.run_all();
    for (const auto& status : written) {
      refused += status->is_ok() ? 0 : 1;
      EXPECT_TRUE(status->is_ok() || status->code() == StatusCode::kUnavailable) << status->to_string();
    }
    const auto after = begin_put(next++, kPage);
    executor.run_all();
    EXPECT_TRUE(after->is_ok()) << after->to_string();
  }
  EXPECT_GT(refused, 0u);
  kill();  // so that what is not sealed is scanned: it has no footer
  open(executor);
  EXPECT_EQ(backend_->stats().corrupt, 0u) << "a hole was left";
}

// A sync that never began says nothing about the disk: the next one counts.
TEST_F(FullQueueTest, ASyncThatIsRefusedAPlaceLeavesTheSegmentGood) {
  RefusingExecutor executor;
  open(executor);
  ASSERT_TRUE(put(1, 50'000).is_ok());
  ASSERT_TRUE(put(2, 1000).is_ok());
  unsigned refused = 0;
  for (unsigned after = 0; after < 4; ++after) {  // one of these tasks is the sync
    executor.refuse_after = after;
    const std::uint64_t page = 3 + after;
    const bool is_ok = put(page, 1000, true).is_ok();
    executor.refuse_after.reset();
    refused += is_ok ? 0 : 1;
    EXPECT_TRUE(put(page, 1000, true).is_ok()) << after;
    EXPECT_EQ(backend_->stats().evicted, 0u) << after;
    EXPECT_EQ(segments_on_disk(), 2u) << after;
    EXPECT_EQ(backend_->stats().suspended_volumes, 0u) << after;
  }
  EXPECT_GT(refused, 0u);
  EXPECT_TRUE(get(1, 50'000).is_ok());
}

}  // namespace
}  // namespace larder::file_store
