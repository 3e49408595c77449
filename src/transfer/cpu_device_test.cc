// SPDX-License-Identifier: Apache-2.0
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

StreamId stream_of(Device& device, std::size_t queue_limit = 64) { return device.create_stream(queue_limit).value(); }

StreamWork logging_work(std::vector<int>& log, int first, int count) {
  StreamWork work;
  work.steps = static_cast<std::uint32_t>(count);
  work.done = [&log, first](std::uint32_t step, Status status) {
    log.push_back(status.is_ok() ? first + static_cast<int>(step) : -1);
  };
  return work;
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
  StreamWork copies;
  copies.make_ops = [&](std::uint32_t, std::vector<CopyOp>& out) {
    out.push_back({dst.data(), src.data(), 2, 3, 5, 4});
    out.push_back({dst.data() + 15, src.data(), 5, 1, 5, 5});
  };
  ASSERT_TRUE(device->enqueue(stream, kDown, std::move(copies)).is_ok());
  Status seen = internal_error("not called");
  StreamWork last;
  last.done = [&](std::uint32_t, Status status) { seen = std::move(status); };
  ASSERT_TRUE(device->enqueue(stream, kDown, std::move(last)).is_ok());
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
  ASSERT_TRUE(device->enqueue(a, kDown, logging_work(log, 0, 3)).is_ok());
  ASSERT_TRUE(device->enqueue(b, kDown, logging_work(log, 10, 3)).is_ok());
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(log, (std::vector<int>{0}));
  executor.run_all();
  EXPECT_EQ(log, (std::vector<int>{0, 10, 1, 11, 2, 12}));
}

// The limit counts entries that wait, however many steps they have; the one whose turn it is does not.
TEST(CpuDevice, AFullQueueTakesNothing) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  const StreamId stream = stream_of(*device, 2);
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue(stream, kDown, logging_work(log, 0, 3)).is_ok());
  ASSERT_TRUE(device->enqueue(stream, kDown, logging_work(log, 3, 5)).is_ok());
  EXPECT_EQ(device->enqueue(stream, kDown, logging_work(log, 90, 1)).code(), StatusCode::kOverloaded);
  ASSERT_TRUE(executor.run_one());
  ASSERT_TRUE(device->enqueue(stream, kDown, logging_work(log, 8, 1)).is_ok());
  EXPECT_EQ(device->enqueue(stream, kDown, logging_work(log, 90, 1)).code(), StatusCode::kOverloaded);
  executor.run_all();
  EXPECT_EQ(log, numbers(9));
  EXPECT_EQ(device->enqueue(stream, kDown, logging_work(log, 90, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->enqueue(7, kDown, logging_work(log, 90, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->create_stream(0).status().code(), StatusCode::kInvalidArgument);
}

TEST(CpuDevice, ARefusedTaskTakesNothing) {
  ManualExecutor executor(1);
  const auto device = make_cpu_device(executor);
  const StreamId a = stream_of(*device), b = stream_of(*device);
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue(a, kDown, logging_work(log, 0, 2)).is_ok());
  EXPECT_EQ(device->enqueue(b, kDown, logging_work(log, 90, 2)).code(), StatusCode::kOverloaded);
  executor.run_all();
  ASSERT_TRUE(device->enqueue(b, kDown, logging_work(log, 2, 2)).is_ok());
  executor.run_all();
  EXPECT_EQ(log, numbers(4));
}

TEST(CpuDevice, AStreamWhoseNextPostIsRefusedRunsOn) {
  ManualExecutor executor(1);
  const auto device = make_cpu_device(executor);
  const StreamId stream = stream_of(*device);
  std::vector<int> log;
  StreamWork work = logging_work(log, 0, 3);
  work.make_ops = [&](std::uint32_t step, std::vector<CopyOp>&) {
    if (step > 0) return;
    EXPECT_TRUE(executor.post([] {}).is_ok());  // takes the only place
  };
  ASSERT_TRUE(device->enqueue(stream, kDown, std::move(work)).is_ok());
  ASSERT_TRUE(executor.run_one());
  EXPECT_EQ(log, numbers(3));
}

TEST(CpuDevice, SynchronizeAndDestructionDoWhatNoThreadBegan) {
  std::vector<int> log;
  ManualExecutor executor;
  {
    const auto device = make_cpu_device(executor);
    const StreamId stream = stream_of(*device);
    ASSERT_TRUE(device->enqueue(stream, kDown, logging_work(log, 0, 2)).is_ok());
    device->synchronize();
    EXPECT_EQ(log, numbers(2));
    // The task of the first batch is still in the executor; it may serve the second one.
    ASSERT_TRUE(device->enqueue(stream, kDown, logging_work(log, 2, 2)).is_ok());
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
  ASSERT_TRUE(device->enqueue(stream_of(*device), kDown, logging_work(log, 0, 100)).is_ok());
  EXPECT_EQ(log, numbers(100));
}

TEST(CpuDevice, AThrowingStepFailsAndTheStreamGoesOn) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  std::vector<int> log;
  StreamWork work = logging_work(log, 0, 3);
  work.make_ops = [](std::uint32_t step, std::vector<CopyOp>&) {
    if (step == 0) throw std::bad_alloc();
  };
  work.done = [log_it = std::move(work.done)](std::uint32_t step, Status status) {
    if (step == 1) throw 7;
    log_it(step, std::move(status));
  };
  ASSERT_TRUE(device->enqueue(stream_of(*device), kDown, std::move(work)).is_ok());
  executor.run_all();
  EXPECT_EQ(log, (std::vector<int>{-1, 2}));
}

TEST(CpuDevice, StreamsAreBounded) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  for (std::size_t i = 0; i < kMaxStreams; ++i) ASSERT_TRUE(device->create_stream(1).is_ok());
  EXPECT_EQ(device->create_stream(1).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(device->name(), "cpu");
}

// ---- events

StreamWork waiting_work(std::vector<int>& log, int first, int count, std::shared_ptr<DeviceEvent> event) {
  StreamWork work = logging_work(log, first, count);
  work.after = std::move(event);
  return work;
}

TEST(CpuDevice, AStreamThatWaitsForAnEventHoldsNoThread) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  const StreamId a = stream_of(*device), b = stream_of(*device);
  const auto event = std::make_shared<DeviceEvent>();
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue(a, kDown, logging_work(log, 0, 1)).is_ok());
  ASSERT_TRUE(device->enqueue(a, kDown, waiting_work(log, 1, 2, event)).is_ok());
  ASSERT_TRUE(device->enqueue(a, kDown, logging_work(log, 3, 1)).is_ok());
  ASSERT_TRUE(device->enqueue(b, kDown, logging_work(log, 10, 1)).is_ok());
  executor.run_all();
  EXPECT_EQ(log, (std::vector<int>{0, 10}));
  EXPECT_EQ(executor.waiting(), 0u);
  event->fire();
  EXPECT_EQ(log.size(), 2u) << "nothing is copied on the engine's thread";
  executor.run_all();
  EXPECT_EQ(log, (std::vector<int>{0, 10, 1, 2, 3}));
  event->fire();
  ASSERT_TRUE(device->enqueue(a, kDown, waiting_work(log, 4, 1, event)).is_ok());  // it has fired
  executor.run_all();
  EXPECT_EQ(log.back(), 4);
}

TEST(CpuDevice, AnIdleStreamWaitsForTheFirstEntrysEvent) {
  ManualExecutor executor;
  const auto device = make_cpu_device(executor);
  const StreamId stream = stream_of(*device);
  const auto first = std::make_shared<DeviceEvent>(), second = std::make_shared<DeviceEvent>();
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue(stream, kDown, waiting_work(log, 0, 1, first)).is_ok());
  ASSERT_TRUE(device->enqueue(stream, kDown, waiting_work(log, 1, 1, second)).is_ok());
  second->fire();
  executor.run_all();
  EXPECT_TRUE(log.empty());
  first->fire();
  executor.run_all();
  EXPECT_EQ(log, numbers(2));
}

TEST(CpuDevice, AStreamWhosePostIsRefusedAfterAnEventRunsOn) {
  ManualExecutor executor(1);
  const auto device = make_cpu_device(executor);
  const auto event = std::make_shared<DeviceEvent>();
  std::vector<int> log;
  ASSERT_TRUE(device->enqueue(stream_of(*device), kDown, waiting_work(log, 0, 2, event)).is_ok());
  ASSERT_TRUE(executor.post([] {}).is_ok());
  event->fire();
  EXPECT_EQ(log, numbers(2));
}

// An engine that dies never fires: what waits is not copied, and is told so.
TEST(CpuDevice, WhatWaitsAtTheEndIsNotCopied) {
  ManualExecutor executor;
  const auto event = std::make_shared<DeviceEvent>();
  std::vector<int> log;
  {
    const auto device = make_cpu_device(executor);
    const StreamId stream = stream_of(*device);
    StreamWork work = waiting_work(log, 0, 2, event);
    work.make_ops = [](std::uint32_t, std::vector<CopyOp>&) { ADD_FAILURE() << "copied"; };
    ASSERT_TRUE(device->enqueue(stream, kDown, std::move(work)).is_ok());
    ASSERT_TRUE(device->enqueue(stream, kDown, logging_work(log, 2, 1)).is_ok());
    device->synchronize();
    EXPECT_EQ(log, (std::vector<int>{-1, -1, 2}));
    ASSERT_TRUE(device->enqueue(stream, kDown, waiting_work(log, 0, 1, event)).is_ok());
  }
  EXPECT_EQ(log.back(), -1);
  event->fire();
}

TEST(CpuDevice, EventsFireUnderThreads) {
  constexpr int kRounds = 300;
  std::vector<int> log;
  {
    ThreadPoolExecutor executor("copy", 2, 1 << 10);
    ThreadPoolExecutor engine("engine", 2, 1 << 10);
    const auto device = make_cpu_device(executor);
    const StreamId stream = stream_of(*device, kRounds + 1);
    for (int i = 0; i < kRounds; ++i) {
      const auto event = i % 3 == 0 ? nullptr : std::make_shared<DeviceEvent>();
      ASSERT_TRUE(device->enqueue(stream, kDown, waiting_work(log, i, 1, event)).is_ok());
      if (event) {
        ASSERT_TRUE(engine.post([event] { event->fire(); }).is_ok());
      }
    }
    std::atomic<bool> is_done{false};
    StreamWork last;
    last.done = [&](std::uint32_t, Status) {
      is_done = true;
      is_done.notify_one();
    };
    ASSERT_TRUE(device->enqueue(stream, kDown, std::move(last)).is_ok());
    is_done.wait(false);
    device->synchronize();
  }
  EXPECT_EQ(log, numbers(kRounds));
}

// Real threads: order within each stream, every callback once, with synchronize() taking part at random points.
TEST(CpuDevice, StreamsKeepTheirOrderUnderThreads) {
  constexpr int kStreams = 4, kBatches = 200;
  std::array<std::vector<int>, kStreams> logs;  // each written by one stream: serial
  {
    ThreadPoolExecutor executor("copy", 3, 2);  // a queue so short that posts are refused now and then
    const auto device = make_cpu_device(executor);
    std::array<int, kStreams> next{};
    for (int s = 0; s < kStreams; ++s) (void)stream_of(*device);
    for (int batch = 0; batch < kBatches; ++batch) {
      for (int s = 0; s < kStreams; ++s) {
        auto& log = logs[static_cast<std::size_t>(s)];
        int& at = next[static_cast<std::size_t>(s)];
        const int count = 1 + (batch + s) % 5;
        if (device->enqueue(static_cast<StreamId>(s), kDown, logging_work(log, at, count)).is_ok()) at += count;
      }
      if (batch % 37 == 0) device->synchronize();
    }
    device->synchronize();
    for (std::size_t s = 0; s < kStreams; ++s) EXPECT_EQ(logs[s], numbers(next[s])) << "stream " << s;
  }
}

}  // namespace
}  // namespace larder
