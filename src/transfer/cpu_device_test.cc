#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "transfer/device.h"

namespace larder {
namespace {

constexpr CopyDirection kDown = CopyDirection::kDeviceToHost;

StreamId stream_of(Device& device) { return device.create_stream().value(); }

std::vector<StreamStep> logging_steps(std::vector<int>& log, int first, int count) {
  std::vector<StreamStep> steps(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    steps[static_cast<std::size_t>(i)].done = [&log, n = first + i](Status status) {
      log.push_back(status.is_ok() ? n : -1);
    };
  }
  return steps;
}

std::vector<int> numbers(int count) {
  std::vector<int> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(CpuDevice, CopiesPitchedAndPlain) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  const StreamId stream = stream_of(*device);
  std::vector<std::byte> src(12), dst(20, std::byte{0xff});
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i);
  ASSERT_TRUE(
      device->enqueue(stream, kDown, {{dst.data(), src.data(), 2, 3, 5, 4}, {dst.data() + 15, src.data(), 5, 1, 5, 5}})
          .is_ok());
  Status seen = internal_error("not called");
  std::vector<StreamStep> last(1);
  last[0].done = [&](Status status) { seen = std::move(status); };
  ASSERT_TRUE(device->enqueue_steps(stream, kDown, std::move(last)).is_ok());
  EXPECT_EQ(dst[0], std::byte{0xff});  // nothing runs inside enqueue
  executor.run_all();
  EXPECT_EQ(seen.to_string(), "ok");
  const auto f = std::byte{0xff};
  const auto b = [](int n) { return static_cast<std::byte>(n); };
  EXPECT_EQ(dst, (std::vector<std::byte>{b(0), b(1), f, f, f, b(4), b(5), f,    f,    f,
                                         b(8), b(9), f, f, f, b(0), b(1), b(2), b(3), b(4)}));
}

TEST(CpuDevice, OneTaskRunsOneStepAndStreamsTakeTurns) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  const StreamId a = stream_of(*device), b = stream_of(*device);
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue_steps(a, kDown, logging_steps(log, 0, 3)).is_ok());
  ASSERT_TRUE(device->enqueue_steps(b, kDown, logging_steps(log, 10, 3)).is_ok());
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(log, (std::vector<int>{0}));
  executor.run_all();
  EXPECT_EQ(log, (std::vector<int>{0, 10, 1, 11, 2, 12}));
}

TEST(CpuDevice, AFullQueueTakesNothing) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor, 4);
  const StreamId stream = stream_of(*device);
  std::vector<int> log;
  EXPECT_EQ(device->enqueue_steps(stream, kDown, logging_steps(log, 90, 5)).code(), StatusCode::kOverloaded);
  ASSERT_TRUE(device->enqueue_steps(stream, kDown, logging_steps(log, 0, 3)).is_ok());
  EXPECT_EQ(device->enqueue_steps(stream, kDown, logging_steps(log, 90, 2)).code(), StatusCode::kOverloaded);
  ASSERT_TRUE(device->enqueue_steps(stream, kDown, logging_steps(log, 3, 1)).is_ok());
  EXPECT_TRUE(device->enqueue_steps(stream, kDown, {}).is_ok());
  executor.run_all();
  EXPECT_EQ(log, numbers(4));
  EXPECT_EQ(device->enqueue_steps(7, kDown, {}).code(), StatusCode::kInvalidArgument);
}

TEST(CpuDevice, ARefusedTaskTakesNothing) {
  ManualExecutor executor(1);
  const auto device = make_cpu_device(executor);
  const StreamId a = stream_of(*device), b = stream_of(*device);
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue_steps(a, kDown, logging_steps(log, 0, 2)).is_ok());
  EXPECT_EQ(device->enqueue_steps(b, kDown, logging_steps(log, 90, 2)).code(), StatusCode::kOverloaded);
  executor.run_all();
  ASSERT_TRUE(device->enqueue_steps(b, kDown, logging_steps(log, 2, 2)).is_ok());
  executor.run_all();
  EXPECT_EQ(log, numbers(4));
}

TEST(CpuDevice, AStreamWhoseNextPostIsRefusedRunsOn) {
  ManualExecutor executor(1);
  const auto device = make_cpu_device(executor);
  const StreamId stream = stream_of(*device);
  std::vector<int> log;
  std::vector<StreamStep> steps = logging_steps(log, 0, 3);
  steps[0].done = [&](Status) {
    log.push_back(0);
    EXPECT_TRUE(executor.post([] {}).is_ok());  // takes the only place
  };
  ASSERT_TRUE(device->enqueue_steps(stream, kDown, std::move(steps)).is_ok());
  ASSERT_TRUE(executor.run_one());
  EXPECT_EQ(log, numbers(3));
}

TEST(CpuDevice, SynchronizeAndDestructionDoWhatNoThreadBegan) {
  std::vector<int> log;
  ManualExecutor executor;
  {
    const auto device = make_cpu_device(executor);
    const StreamId stream = stream_of(*device);
    ASSERT_TRUE(device->enqueue_steps(stream, kDown, logging_steps(log, 0, 2)).is_ok());
    device->synchronize();
    EXPECT_EQ(log, numbers(2));
    // The task of the first batch is still in the executor; it may serve the second one.
    ASSERT_TRUE(device->enqueue_steps(stream, kDown, logging_steps(log, 2, 2)).is_ok());
    EXPECT_EQ(executor.waiting(), 2u);
    ASSERT_TRUE(executor.run_one());
    EXPECT_EQ(executor.drop_all(), 2u);  // an executor that loses its tasks
  }
  EXPECT_EQ(log, numbers(4));
  executor.run_all();
}

TEST(CpuDevice, InlineExecutorCompletesInsideEnqueue) {
  InlineExecutor executor;
  const auto device = make_cpu_device(executor);
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue_steps(stream_of(*device), kDown, logging_steps(log, 0, 100)).is_ok());
  EXPECT_EQ(log, numbers(100));
}

TEST(CpuDevice, AThrowingStepFailsAndTheStreamGoesOn) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  std::vector<int> log;
  std::vector<StreamStep> steps = logging_steps(log, 0, 3);
  steps[0].make_ops = [](std::vector<CopyOp>&) { throw std::bad_alloc(); };
  steps[1].done = [](Status) { throw 7; };
  ASSERT_TRUE(device->enqueue_steps(stream_of(*device), kDown, std::move(steps)).is_ok());
  executor.run_all();
  EXPECT_EQ(log, (std::vector<int>{-1, 2}));
}

TEST(CpuDevice, StreamsAreBounded) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  for (std::size_t i = 0; i < kMaxStreams; ++i) ASSERT_TRUE(device->create_stream().is_ok());
  EXPECT_EQ(device->create_stream().status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(device->name(), "cpu");
}

// Real threads: order within each stream, every callback once, with synchronize() taking part at random points.
TEST(CpuDevice, StreamsKeepTheirOrderUnderThreads) {
  constexpr int kStreams = 4, kBatches = 200;
  std::array<std::vector<int>, kStreams> logs;  // each written by one stream: serial
  {
    ThreadPoolExecutor executor("copy", 3, 2);  // a queue so short that posts are refused now and then
    const auto device = make_cpu_device(executor, 64);
    std::array<int, kStreams> next{};
    for (int s = 0; s < kStreams; ++s) (void)stream_of(*device);
    for (int batch = 0; batch < kBatches; ++batch) {
      for (int s = 0; s < kStreams; ++s) {
        auto& log = logs[static_cast<std::size_t>(s)];
        int& at = next[static_cast<std::size_t>(s)];
        const int count = 1 + (batch + s) % 5;
        if (device->enqueue_steps(static_cast<StreamId>(s), kDown, logging_steps(log, at, count)).is_ok()) at += count;
      }
      if (batch % 37 == 0) device->synchronize();
    }
    device->synchronize();
    for (std::size_t s = 0; s < kStreams; ++s) EXPECT_EQ(logs[s], numbers(next[s])) << "stream " << s;
  }
}

}  // namespace
}  // namespace larder
