// SPDX-License-Identifier: Apache-2.0
// One suite for every implementation of IoQueue, and what is particular to each.
#include "storage/file/io_queue.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "base/thread_pool.h"
#include "sim/sim_file_system.h"
#include "storage/file/io_queue_test_util.h"

namespace larder::file_store {
namespace {

using namespace io_queue_test;

enum class Setup : std::uint8_t { kUring, kThreads, kInlineSim, kManualSim };

std::string setup_name(const testing::TestParamInfo<Setup>& info) {
  static const char* const names[] = {"Uring", "Threads", "InlineSim", "ManualSim"};
  return names[static_cast<int>(info.param)];
}

// [data, data + size) in `pieces` random parts, empty ones among them.
std::vector<Segment> cut(Rng& rng, std::byte* data, std::size_t size, std::size_t pieces) {
  std::vector<std::size_t> ends(pieces, size);
  for (std::size_t i = 0; i + 1 < pieces; ++i) ends[i] = static_cast<std::size_t>(rng.below(size + 1));
  std::sort(ends.begin(), ends.end());
  std::vector<Segment> buffers;
  std::size_t from = 0;
  for (const std::size_t end : ends) {
    buffers.push_back({data + from, end - from});
    from = end;
  }
  return buffers;
}

class IoQueueTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    root_ = "/d";
    if (!simulated()) {
      root_ = testing::TempDir() + "larder_io_" + std::to_string(getpid());
      std::filesystem::remove_all(root_);
    }
    ASSERT_TRUE(files().make_dirs(root_).is_ok());
    make_queue(16);
  }
  void TearDown() override {
    queue_.reset();
    if (!simulated()) std::filesystem::remove_all(root_);
    if (HasFailure()) printf("replay with LARDER_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  void make_queue(std::size_t depth) {
    queue_.reset();
    switch (GetParam()) {
      case Setup::kUring: {
        auto queue = create_uring_queue(depth);
        if (!queue.is_ok()) {
          ASSERT_EQ(queue.status().code(), StatusCode::kUnsupported);
          GTEST_SKIP() << "no io_uring here: " << queue.status().message();
        }
        queue_ = std::move(queue).value();
        break;
      }
      case Setup::kThreads: queue_ = create_executor_queue(pool_); break;
      case Setup::kInlineSim: queue_ = create_executor_queue(inline_); break;
      case Setup::kManualSim: queue_ = create_executor_queue(manual_); break;
    }
  }
  [[nodiscard]] bool simulated() const { return GetParam() == Setup::kInlineSim || GetParam() == Setup::kManualSim; }
  FileSystem& files() { return simulated() ? static_cast<FileSystem&>(sim_) : real_file_system(); }

  std::shared_ptr<File> open(const std::string& name, OpenOptions options) {
    auto file = files().open(join_path(root_, name), options);
    if (!file.is_ok()) throw std::runtime_error(file.status().to_string());
    return std::move(file).value();
  }
  // Null where the file system has no direct files.
  std::shared_ptr<File> open_direct(const std::string& name) {
    auto file = files().open(join_path(root_, name), {.write = true, .direct = true});
    return file.is_ok() ? std::move(file).value() : nullptr;
  }
  std::shared_ptr<File> make_file(const std::string& name, const Bytes& content) {
    std::shared_ptr<File> file = open(name, {.write = true, .create = true, .truncate = true});
    EXPECT_TRUE(write_fully(*file, content, 0).is_ok());
    return file;
  }
  // Until `count` answers are there, or no more come.
  bool settle(Answers& answers, std::size_t count) {
    if (GetParam() == Setup::kManualSim) manual_.run_all();
    return simulated() ? answers.count() >= count : answers.wait_for(count);
  }
  // The status of one operation.
  Status run(Kind kind, const std::shared_ptr<File>& file, std::uint64_t offset, std::vector<Segment> buffers) {
    Answers answers;
    LARDER_RETURN_IF_ERROR(queue_->submit(one(operation(kind, file, offset, std::move(buffers), answers.take()))));
    if (!settle(answers, 1)) return internal_error("no answer");
    return answers.all().at(0).status;
  }

  const std::uint64_t seed_ = test_seed();
  Rng rng_{seed_};
  std::string root_;
  sim::SimFileSystem sim_{seed_};
  InlineExecutor inline_;
  ManualExecutor manual_{4096, seed_};
  ThreadPoolExecutor pool_{"io", 4, 4096};
  std::unique_ptr<IoQueue> queue_;
};

INSTANTIATE_TEST_SUITE_P(All, IoQueueTest,
                         testing::Values(Setup::kUring, Setup::kThreads, Setup::kInlineSim, Setup::kManualSim),
                         setup_name);

TEST_P(IoQueueTest, MovesExactlyTheBytesInAnyNumberOfPieces) {
  constexpr std::size_t kFileBytes = 300'000;
  Bytes expected = random_bytes(rng_, kFileBytes);
  const auto file = make_file("f", expected);
  for (int round = 0; round < 10; ++round) {
    const bool writes = round % 2 == 0;
    // Neighbours that do not overlap, and together cover the file.
    Bytes memory = writes ? random_bytes(rng_, kFileBytes) : Bytes(kFileBytes);
    Answers answers;
    std::vector<IoOperation> operations;
    for (const Segment& range : cut(rng_, memory.data(), kFileBytes, 40)) {
      const auto at = static_cast<std::uint64_t>(range.data - memory.data());
      const std::size_t pieces = operations.size() == 7 ? 3000 : 1 + static_cast<std::size_t>(rng_.below(50));
      operations.push_back(operation(writes ? Kind::kWrite : Kind::kRead, file, at,
                                     cut(rng_, range.data, range.size, pieces), answers.take()));
    }
    rng_.shuffle(std::span(operations));
    ASSERT_TRUE(queue_->submit(std::move(operations)).is_ok());
    ASSERT_TRUE(settle(answers, 40));
    EXPECT_EQ(answers.count_of(StatusCode::kOk), 40u) << answers.all().at(0).status.to_string();
    if (writes) expected = memory;
    EXPECT_TRUE(memory == expected) << "round " << round;
    Bytes on_disk(kFileBytes);
    ASSERT_TRUE(read_exactly(*file, on_disk, 0).is_ok());
    EXPECT_TRUE(on_disk == expected) << "round " << round;
  }
}

TEST_P(IoQueueTest, TakesMoreOperationsThanItsDepth) {
  make_queue(3);
  const Bytes content = random_bytes(rng_, 500 * 512);
  const auto file = make_file("f", content);
  Bytes memory(content.size());
  Answers answers;
  for (std::size_t batch = 0; batch < 2; ++batch) {
    std::vector<IoOperation> operations;
    for (std::size_t i = batch * 250; i < (batch + 1) * 250; ++i) {
      operations.push_back(operation(Kind::kRead, file, i * 512, {{memory.data() + i * 512, 512}}, answers.take(i)));
    }
    ASSERT_TRUE(queue_->submit(std::move(operations)).is_ok());
  }
  ASSERT_TRUE(settle(answers, 500));
  EXPECT_TRUE(memory == content);
  std::vector<int> seen(500);
  for (const auto& answer : answers.all()) {
    EXPECT_TRUE(answer.status.is_ok()) << answer.status.to_string();
    ++seen.at(answer.id);
  }
  EXPECT_EQ(seen, std::vector<int>(500, 1));
  queue_.reset();  // nothing runs twice at the end
  EXPECT_EQ(answers.count(), 500u);
}

TEST_P(IoQueueTest, SaysCorruptWhenTheFileEnds) {
  const auto file = make_file("f", random_bytes(rng_, 5000));
  Bytes memory(20'000);
  EXPECT_TRUE(run(Kind::kRead, file, 0, {{memory.data(), 5000}}).is_ok());
  for (const std::uint64_t offset : {0, 10, 4096, 4999, 5000, 9000}) {
    const Status status = run(Kind::kRead, file, offset, {{memory.data(), 3000}, {memory.data() + 3000, 3000}});
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << offset << ": " << status.to_string();
    EXPECT_NE(status.message().find(file->path()), std::string::npos);
  }
}

// A direct file takes no continuation inside a block; the answer is the same.
TEST_P(IoQueueTest, SaysCorruptWhenADirectFileEnds) {
  make_file("f", random_bytes(rng_, 5000));
  const auto direct = open_direct("f");
  if (!direct) GTEST_SKIP() << "no direct files in " << root_;
  const AlignedBuffer buffer(16384);
  EXPECT_EQ(run(Kind::kRead, direct, 0, {{buffer.data(), 16384}}).code(), StatusCode::kCorrupt);
  EXPECT_EQ(run(Kind::kRead, direct, 0, {{buffer.data(), 4096}, {buffer.data() + 4096, 4096}}).code(),
            StatusCode::kCorrupt);
  EXPECT_EQ(run(Kind::kRead, direct, 4096, {{buffer.data(), 4096}}).code(), StatusCode::kCorrupt);
  EXPECT_EQ(run(Kind::kRead, direct, 8192, {{buffer.data(), 4096}}).code(), StatusCode::kCorrupt);
  EXPECT_TRUE(run(Kind::kRead, direct, 0, {{buffer.data(), 4096}}).is_ok());
}

TEST_P(IoQueueTest, DoneMaySubmit) {
  const Bytes content = random_bytes(rng_, 64 * 100);
  const auto file = make_file("f", content);
  Bytes memory(content.size());
  Answers answers;
  std::function<void(std::size_t)> read_from = [&](std::size_t i) {
    const auto record = answers.take(i);
    const auto next = [&, i, record](const Status& status) {
      if (i + 1 < 100) read_from(i + 1);
      record(status);
    };
    const Status status =
        queue_->submit(one(operation(Kind::kRead, file, i * 64, {{memory.data() + i * 64, 64}}, next)));
    if (!status.is_ok()) record(status);
  };
  read_from(0);
  ASSERT_TRUE(settle(answers, 100));
  EXPECT_EQ(answers.count_of(StatusCode::kOk), 100u);
  EXPECT_TRUE(memory == content);
}

TEST_P(IoQueueTest, DestructionRunsEveryDone) {
  for (int round = 0; round < 20; ++round) {
    make_queue(4);
    const Bytes content = random_bytes(rng_, 300 * 100);
    const auto file = make_file("f", content);
    Bytes memory(content.size());
    Answers answers;
    Bytes late(1);
    std::atomic<std::size_t> taken{0};
    std::atomic<std::size_t> others{0};
    IoQueue* const queue = queue_.get();
    std::vector<IoOperation> operations;
    for (std::size_t i = 0; i < 300; ++i) {
      const auto record = answers.take(i);
      const auto done = [&, record, i](const Status& status) {
        record(status);
        if (i % 10 != 0) return;
        // While the queue ends this is refused, and then there is no `done`.
        const Status again = queue->submit(one(operation(Kind::kSyncData, file, 0, {}, answers.take())));
        if (again.is_ok()) ++taken;
        if (!again.is_ok() && again.code() != StatusCode::kCancelled) ++others;
      };
      operations.push_back(operation(Kind::kRead, file, i * 100, {{memory.data() + i * 100, 100}}, done));
    }
    ASSERT_TRUE(queue_->submit(std::move(operations)).is_ok());
    queue_.reset();
    manual_.run_all();  // tasks that come too late find nothing
    EXPECT_EQ(answers.count(), 300 + taken.load());
    EXPECT_EQ(answers.count_of(StatusCode::kOk), 300 + taken.load());
    EXPECT_EQ(others.load(), 0u);
    EXPECT_TRUE(memory == content);
  }
}

// Setups whose executor takes tasks from any thread.
class ThreadedIoQueueTest : public IoQueueTest {};
INSTANTIATE_TEST_SUITE_P(All, ThreadedIoQueueTest, testing::Values(Setup::kUring, Setup::kThreads), setup_name);

TEST_P(ThreadedIoQueueTest, ManyThreadsSubmit) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kBatches = 50;
  constexpr std::size_t kPerBatch = 8;
  constexpr std::size_t kTotal = kThreads * kBatches * kPerBatch;
  const Bytes content = random_bytes(rng_, kTotal * 64);
  const auto file = make_file("f", content);
  Bytes memory(content.size());
  Answers answers;
  std::atomic<int> refused{0};
  {
    ThreadPoolExecutor callers("caller", kThreads, kThreads);
    for (std::size_t t = 0; t < kThreads; ++t) {
      const auto submit_all = [&, t] {
        for (std::size_t b = 0; b < kBatches; ++b) {
          std::vector<IoOperation> operations;
          for (std::size_t i = 0; i < kPerBatch; ++i) {
            const std::size_t at = ((t * kBatches + b) * kPerBatch + i) * 64;
            operations.push_back(operation(Kind::kRead, file, at, {{memory.data() + at, 64}}, answers.take()));
          }
          if (!queue_->submit(std::move(operations)).is_ok()) ++refused;
        }
      };
      ASSERT_TRUE(callers.post(submit_all).is_ok());
    }
  }
  EXPECT_EQ(refused.load(), 0);
  ASSERT_TRUE(settle(answers, kTotal));
  EXPECT_EQ(answers.count_of(StatusCode::kOk), kTotal);
  EXPECT_TRUE(memory == content);
}

// io_uring gives up some of the requests of a thread that ends; the queue's callers must not see that.
TEST_P(ThreadedIoQueueTest, OperationsOutliveTheThreadThatSubmitted) {
  constexpr std::size_t kOperations = 64;
  constexpr std::size_t kBytes = 16384;
  const AlignedBuffer memory(kOperations * kBytes);
  for (std::size_t i = 0; i < memory.size(); ++i) memory.data()[i] = static_cast<std::byte>(i / kBytes);
  for (int round = 0; round < 10; ++round) {
    make_file("f", {});
    std::shared_ptr<File> file = round % 2 == 0 ? open_direct("f") : nullptr;
    if (!file) file = open("f", {.write = true});
    Answers answers;
    {
      ThreadPoolExecutor caller("caller", 1, 1);
      const auto write_all = [&] {
        std::vector<IoOperation> operations;
        for (std::size_t i = 0; i < kOperations; ++i) {
          operations.push_back(
              operation(Kind::kWrite, file, i * kBytes, {{memory.data() + i * kBytes, kBytes}}, answers.take(i)));
          operations.push_back(operation(Kind::kSyncData, file, 0, {}, answers.take(i)));
        }
        EXPECT_TRUE(queue_->submit(std::move(operations)).is_ok());
      };
      ASSERT_TRUE(caller.post(write_all).is_ok());
    }
    ASSERT_TRUE(settle(answers, 2 * kOperations));
    for (const auto& answer : answers.all()) EXPECT_TRUE(answer.status.is_ok()) << answer.status.to_string();
    const AlignedBuffer on_disk(memory.size());
    ASSERT_TRUE(read_exactly(*file, {on_disk.data(), on_disk.size()}, 0).is_ok());
    EXPECT_EQ(std::memcmp(on_disk.data(), memory.data(), memory.size()), 0);
  }
}

TEST_P(IoQueueTest, DirectFilesAndRegisteredMemory) {
  constexpr std::size_t kBlock = 8192;
  constexpr std::size_t kBlocks = 64;
  const AlignedBuffer first(kBlock * kBlocks / 2);
  const AlignedBuffer second(kBlock * kBlocks / 2);
  const AlignedBuffer outside(kBlock);
  const Segment regions[] = {{second.data(), second.size()}, {first.data(), first.size()}};
  // In two calls, as an engine's memory comes. A system may refuse it; then everything works without.
  for (const Segment& region : regions) {
    const Status registered = queue_->register_memory({&region, 1});
    EXPECT_TRUE(registered.code() == StatusCode::kOverloaded || registered.is_ok() == (GetParam() == Setup::kUring))
        << registered.to_string();
  }
  const auto block = [&](std::size_t i) { return (i % 2 == 0 ? first : second).data() + i / 2 * kBlock; };
  Bytes expected = random_bytes(rng_, kBlock * kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) std::memcpy(block(i), expected.data() + i * kBlock, kBlock);
  make_file("f", {});
  const auto file = open_direct("f");
  if (!file) GTEST_SKIP() << "no direct files in " << root_;
  for (const Kind kind : {Kind::kWrite, Kind::kRead}) {
    Answers answers;
    std::vector<IoOperation> operations;
    for (std::size_t i = 0; i < kBlocks; i += 4) {  // single ones, and two blocks from both regions at once
      operations.push_back(operation(kind, file, i * kBlock, {{block(i), kBlock}}, answers.take()));
      operations.push_back(operation(kind, file, (i + 1) * kBlock, {{block(i + 1), kBlock}}, answers.take()));
      operations.push_back(
          operation(kind, file, (i + 2) * kBlock, {{block(i + 2), kBlock}, {block(i + 3), kBlock}}, answers.take()));
    }
    const std::size_t count = operations.size();
    ASSERT_TRUE(queue_->submit(std::move(operations)).is_ok());
    ASSERT_TRUE(settle(answers, count));
    for (const auto& answer : answers.all()) EXPECT_TRUE(answer.status.is_ok()) << answer.status.to_string();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(std::memcmp(block(i), expected.data() + i * kBlock, kBlock), 0) << "block " << i;
      std::memset(block(i), 0, kBlock);
    }
  }
  EXPECT_TRUE(run(Kind::kRead, file, kBlock, {{outside.data(), kBlock}}).is_ok());
  EXPECT_EQ(std::memcmp(outside.data(), expected.data() + kBlock, kBlock), 0);
}

TEST_P(IoQueueTest, SyncsAndReportsErrors) {
  const auto file = make_file("f", random_bytes(rng_, 100));
  EXPECT_TRUE(run(Kind::kSyncData, file, 0, {}).is_ok());
  const auto read_only = open("f", {});
  Bytes memory(100);
  const Status status = run(Kind::kWrite, read_only, 0, {{memory.data(), 100}});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
  EXPECT_NE(status.message().find(read_only->path()), std::string::npos);
  EXPECT_TRUE(run(Kind::kRead, read_only, 0, {{memory.data(), 100}}).is_ok());
}

TEST_P(IoQueueTest, EmptyAndIncompleteOperations) {
  const auto file = make_file("f", random_bytes(rng_, 100));
  std::byte byte{};
  EXPECT_TRUE(queue_->submit({}).is_ok());
  EXPECT_TRUE(run(Kind::kRead, file, 1000, {}).is_ok());
  EXPECT_TRUE(run(Kind::kWrite, file, 0, {{&byte, 0}}).is_ok());
  Answers answers;
  std::vector<IoOperation> operations = one(operation(Kind::kRead, file, 0, {{&byte, 1}}, answers.take()));
  operations.push_back(operation(Kind::kRead, nullptr, 0, {{&byte, 1}}, answers.take()));
  EXPECT_EQ(queue_->submit(std::move(operations)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(queue_->submit(one(operation(Kind::kRead, file, 0, {{&byte, 1}}, nullptr))).code(),
            StatusCode::kInvalidArgument);
  queue_.reset();
  EXPECT_EQ(answers.count(), 0u);
}

TEST_P(IoQueueTest, HoldsAndReleasesTheFile) {
  std::shared_ptr<File> file = make_file("f", random_bytes(rng_, 100));
  const std::weak_ptr<File> watch = file;
  Bytes memory(100);
  Answers answers;
  std::atomic<bool> gone{false};
  const auto record = answers.take();
  const auto done = [&, record](const Status& status) {
    gone = watch.expired();
    record(status);
  };
  auto operations = one(operation(Kind::kRead, file, 0, {{memory.data(), 100}}, done));
  file.reset();
  ASSERT_TRUE(queue_->submit(std::move(operations)).is_ok());
  ASSERT_TRUE(settle(answers, 1));
  EXPECT_TRUE(answers.all().at(0).status.is_ok());
  EXPECT_TRUE(gone) << "the queue holds the file longer than the operation";
}

TEST(UringQueueTest, RefusesSimulatedFiles) {
  auto queue = create_uring_queue(0);
  if (!queue.is_ok()) GTEST_SKIP() << "no io_uring here: " << queue.status().message();
  sim::SimFileSystem files(1);
  const std::shared_ptr<File> file = files.open("/f", {.write = true, .create = true}).value();
  Answers answers;
  EXPECT_EQ((*queue)->submit(one(operation(Kind::kSyncData, file, 0, {}, answers.take()))).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(answers.count(), 0u);
}

// The wake-up may come before the thread waits, while it looks for completions, or while it sleeps.
TEST(UringQueueTest, EndsAtAnyMoment) {
  if (!create_uring_queue(1).is_ok()) GTEST_SKIP() << "no io_uring here";
  for (int i = 0; i < 500; ++i) {
    auto queue = create_uring_queue(1);
    ASSERT_TRUE(queue.is_ok()) << queue.status().to_string();
    for (int spins = 0; spins < (i % 50) * 400; ++spins) std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

}  // namespace
}  // namespace larder::file_store
