// SPDX-License-Identifier: Apache-2.0
// What an executor may do to the tasks of a batch, and what files may do to a transfer. The common suite is in
// io_queue_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "sim/sim_file_system.h"
#include "storage/file/io_queue.h"
#include "storage/file/io_queue_test_util.h"

namespace larder::file_store {
namespace {

using namespace io_queue_test;

class ExecutorQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    file_ = files_.open("/f", {.write = true, .create = true}).value();
    ASSERT_TRUE(write_fully(*file_, content_, 0).is_ok());
  }
  void TearDown() override {
    if (HasFailure()) printf("replay with LARDER_TEST_SEED=%llu\n", static_cast<unsigned long long>(test_seed()));
  }
  std::vector<IoOperation> reads(std::size_t count) {
    std::vector<IoOperation> operations;
    for (std::size_t i = 0; i < count; ++i) {
      operations.push_back(operation(Kind::kRead, file_, i, {{memory_.data() + i, 1}}, answers_.take(i)));
    }
    return operations;
  }

  // From `offset` of the file to its end, and the front of memory_.
  Status run(Kind kind, std::uint64_t offset) {
    InlineExecutor executor;
    const auto queue = create_executor_queue(executor);
    const std::size_t size = content_.size() - static_cast<std::size_t>(offset);
    Answers answers;
    std::vector<Segment> buffers = {{memory_.data(), 300}, {memory_.data() + 300, size - 300}};
    LARDER_RETURN_IF_ERROR(queue->submit(one(operation(kind, file_, offset, std::move(buffers), answers.take()))));
    return answers.all().at(0).status;
  }

  Rng rng_{test_seed()};
  sim::SimFileSystem files_{test_seed()};
  Bytes content_ = random_bytes(rng_, 1000);
  Bytes memory_ = Bytes(1000);
  std::shared_ptr<File> file_;
  Answers answers_;
};

TEST_F(ExecutorQueueTest, AFullExecutorRefusesTheWholeBatch) {
  ManualExecutor executor(1);
  ASSERT_TRUE(executor.post([] {}).is_ok());
  const auto queue = create_executor_queue(executor);
  EXPECT_EQ(queue->submit(reads(5)).code(), StatusCode::kOverloaded);
  executor.run_all();
  EXPECT_EQ(answers_.count(), 0u);
  EXPECT_TRUE(queue->submit(reads(5)).is_ok());
  executor.run_all();
  EXPECT_EQ(answers_.count_of(StatusCode::kOk), 5u);
}

TEST_F(ExecutorQueueTest, TasksRunWhatHasNoTaskOfItsOwn) {
  ManualExecutor executor(3);
  const auto queue = create_executor_queue(executor);
  ASSERT_TRUE(queue->submit(reads(10)).is_ok());
  EXPECT_EQ(executor.run_all(), 3u);
  EXPECT_EQ(answers_.count_of(StatusCode::kOk), 10u);
  EXPECT_TRUE(std::equal(memory_.begin(), memory_.begin() + 10, content_.begin()));
}

TEST_F(ExecutorQueueTest, DroppedTasksEndAsCancelled) {
  for (std::size_t ran = 0; ran <= 3; ++ran) {
    Answers answers;
    ManualExecutor executor(3);
    const auto queue = create_executor_queue(executor);
    std::vector<IoOperation> operations = reads(10);
    for (IoOperation& op : operations) op.done = answers.take();
    ASSERT_TRUE(queue->submit(std::move(operations)).is_ok());
    for (std::size_t i = 0; i < ran; ++i) executor.run_one();
    executor.drop_all();
    EXPECT_EQ(answers.count(), 10u) << ran;
    EXPECT_EQ(answers.count_of(StatusCode::kCancelled), 10 - answers.count_of(StatusCode::kOk));
    EXPECT_GE(answers.count_of(StatusCode::kOk), ran);
  }
}

TEST_F(ExecutorQueueTest, EachOperationRunsInItsOwnTaskAndReplays) {
  std::vector<std::size_t> orders[2];
  for (auto& seen : orders) {
    Answers answers;
    ManualExecutor executor(4096, test_seed());
    const auto queue = create_executor_queue(executor);
    std::vector<IoOperation> operations = reads(50);
    for (std::size_t i = 0; i < 50; ++i) operations[i].done = answers.take(i);
    ASSERT_TRUE(queue->submit(std::move(operations)).is_ok());
    for (std::size_t i = 1; i <= 50; ++i) {
      ASSERT_TRUE(executor.run_one());
      EXPECT_EQ(answers.count(), i);
    }
    for (const auto& answer : answers.all()) seen.push_back(answer.id);
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_FALSE(std::is_sorted(orders[0].begin(), orders[0].end())) << "the executor's order must show";
}

TEST_F(ExecutorQueueTest, ASmallPoolThatRefusesLosesNothing) {
  ThreadPoolExecutor pool("io", 2, 2);
  const auto queue = create_executor_queue(pool);
  std::size_t taken = 0;
  for (int round = 0; round < 300; ++round) {
    const Status status = queue->submit(reads(7));
    if (status.is_ok()) taken += 7;
    EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kOverloaded) << status.to_string();
  }
  EXPECT_GT(taken, 0u);
  ASSERT_TRUE(answers_.wait_for(taken));
  pool.wait_idle();
  EXPECT_EQ(answers_.count(), taken);
  EXPECT_EQ(answers_.count_of(StatusCode::kOk), taken);
}

TEST_F(ExecutorQueueTest, GoesOnAfterShortTransfers) {
  for (const std::uint64_t offset : {0, 8}) {  // at a block's start, where it goes back to that, and elsewhere
    const std::size_t size = content_.size() - static_cast<std::size_t>(offset);
    files_.fail_nth(1, sim::FileFault::kShort, 5);
    EXPECT_TRUE(run(Kind::kRead, offset).is_ok());
    EXPECT_TRUE(files_.fault_fired());
    EXPECT_TRUE(std::equal(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(size),
                           content_.begin() + static_cast<std::ptrdiff_t>(offset)));
    memory_ = random_bytes(rng_, 1000);
    std::memcpy(content_.data() + offset, memory_.data(), size);
    files_.fail_nth(1, sim::FileFault::kShort, 5);
    EXPECT_TRUE(run(Kind::kWrite, offset).is_ok());
    files_.clear_fault();
    Bytes on_disk(1000);
    ASSERT_TRUE(read_exactly(*file_, on_disk, 0).is_ok());
    EXPECT_TRUE(on_disk == content_);
  }
}

TEST_F(ExecutorQueueTest, ReportsFaults) {
  files_.fail_nth(1, sim::FileFault::kIoError);
  EXPECT_EQ(run(Kind::kRead, 0).code(), StatusCode::kUnavailable);
  files_.fail_nth(1, sim::FileFault::kNoSpace);
  EXPECT_EQ(run(Kind::kWrite, 0).code(), StatusCode::kOverloaded);
  files_.fail_nth(1, sim::FileFault::kIoError);
  EXPECT_EQ(run(Kind::kSyncData, 0).code(), StatusCode::kUnavailable);
  files_.fail_nth(1, sim::FileFault::kShort, 1000);  // a disk that never gets on
  EXPECT_FALSE(run(Kind::kRead, 0).is_ok());
}

TEST_F(ExecutorQueueTest, AShortAnswerInsideABlockOfADirectFile) {
  InlineExecutor executor;
  const auto queue = create_executor_queue(executor);
  const std::shared_ptr<File> direct = files_.open("/g", {.write = true, .create = true, .direct = true}).value();
  const AlignedBuffer buffer(3 * kDirectAlignment);
  std::memset(buffer.data(), 7, buffer.size());
  for (const Kind kind : {Kind::kWrite, Kind::kRead}) {
    files_.fail_nth(1, sim::FileFault::kShort, 3);
    Status status = internal_error("no answer");
    ASSERT_TRUE(queue
                    ->submit(one(operation(kind, direct, 0, {{buffer.data(), buffer.size()}},
                                           [&](Status s) { status = std::move(s); })))
                    .is_ok());
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_TRUE(
        std::all_of(buffer.data(), buffer.data() + buffer.size(), [](std::byte b) { return b == std::byte{7}; }));
    if (kind == Kind::kWrite) std::memset(buffer.data(), 0, buffer.size());
  }
}

TEST(AlignedBufferTest, IsAlignedRoundedAndMoves) {
  AlignedBuffer a(5000);
  EXPECT_EQ(a.size(), 2 * kDirectAlignment);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % kDirectAlignment, 0u);
  std::byte* const data = a.data();
  AlignedBuffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  AlignedBuffer c(1);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 2 * kDirectAlignment);
  const AlignedBuffer none(0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(AlignedBuffer().size(), 0u);
}

}  // namespace
}  // namespace larder::file_store
