// SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/inbox.h"
#include "base/sanitized.h"
#include "base/thread_pool.h"

namespace larder {
namespace {

TEST(InlineExecutor, RunsAtOnceAndCountsThrows) {
  InlineExecutor executor;
  int ran = 0;
  EXPECT_TRUE(executor.post([&] { ++ran; }).is_ok());
  EXPECT_TRUE(executor.post([] { throw std::runtime_error("x"); }).is_ok());
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(executor.failed_tasks(), 1u);
}

std::vector<int> order_with(std::optional<std::uint64_t> seed) {
  ManualExecutor executor(100, seed);
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(executor.post([&order, i] { order.push_back(i); }).is_ok());
  EXPECT_EQ(executor.run_all(), 20u);
  return order;
}

TEST(ManualExecutor, IsFifoOrSeeded) {
  const std::vector<int> fifo = order_with(std::nullopt);
  EXPECT_TRUE(std::is_sorted(fifo.begin(), fifo.end()));
  EXPECT_EQ(order_with(1), order_with(1));
  EXPECT_NE(order_with(1), fifo);
}

TEST(ManualExecutor, IsBoundedAndDrops) {
  ManualExecutor executor(1);
  EXPECT_TRUE(executor.post([] { FAIL(); }).is_ok());
  EXPECT_EQ(executor.post([] {}).code(), StatusCode::kOverloaded);
  EXPECT_EQ(executor.drop_all(), 1u);
  EXPECT_FALSE(executor.run_one());
}

// A gate: tasks wait inside until it opens. No sleep: the test knows when a task is inside.
struct Gate {
  Inbox<int> inside{16};
  Inbox<int> open{16};
};

TEST(ThreadPoolExecutor, RefusesWhenFullAndDrainsAtTheEnd) {
  Gate gate;
  std::atomic<int> ran{0};
  {
    ThreadPoolExecutor pool("pool", 1, 2);
    EXPECT_TRUE(pool.post([&] {
                      EXPECT_TRUE(gate.inside.try_push(1).is_ok());
                      EXPECT_TRUE(gate.open.wait_for(std::chrono::seconds(30)));
                      ++ran;
                    })
                    .is_ok());
    EXPECT_TRUE(gate.inside.wait_for(std::chrono::seconds(30)));
    EXPECT_TRUE(pool.post([&] { ++ran; }).is_ok());
    EXPECT_TRUE(pool.post([&] { ++ran; }).is_ok());
    EXPECT_EQ(pool.post([&] { ++ran; }).code(), StatusCode::kOverloaded);
    EXPECT_EQ(pool.waiting(), 2u);
    EXPECT_TRUE(gate.open.try_push(1).is_ok());
  }
  EXPECT_EQ(ran, 3);
}

TEST(ThreadPoolExecutor, DropsQueuedTasksIfAsked) {
  Gate gate;
  std::atomic<int> ran{0};
  auto token = std::make_shared<int>(0);
  {
    ThreadPoolExecutor pool("pool", 1, 8, OnShutdown::kDrop);
    // The first task holds the only thread until the queued one is destroyed by the shutdown.
    EXPECT_TRUE(pool.post([&] {
                      EXPECT_TRUE(gate.inside.try_push(1).is_ok());
                      EXPECT_TRUE(gate.open.wait_for(std::chrono::seconds(30)));
                    })
                    .is_ok());
    EXPECT_TRUE(gate.inside.wait_for(std::chrono::seconds(30)));
    auto opener = std::shared_ptr<int>(new int(0), [&](int* p) {
      EXPECT_TRUE(gate.open.try_push(1).is_ok());
      delete p;
    });
    EXPECT_TRUE(pool.post([&ran, opener, token] { ++ran; }).is_ok());
  }
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(token.use_count(), 1);
}

TEST(ThreadPoolExecutor, CountsThrowsAndBecomesIdle) {
  ThreadPoolExecutor pool("pool", 2, 100);
  std::atomic<int> ran{0};
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(pool.post([&, i] {
                      ++ran;
                      if (i % 10 == 0) throw i;
                    })
                    .is_ok());
  }
  pool.wait_idle();
  EXPECT_EQ(ran, 50);
  EXPECT_EQ(pool.failed_tasks(), 5u);
}

// Ends with 0 if a pool whose threads cannot all be started says so; a pool that hangs ends with SIGALRM.
[[noreturn]] void start_too_many_threads() {
  ::alarm(20);
  std::size_t pages = 0;
  if (std::FILE* const statm = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statm, "%zu", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{24} << 20);
  const rlimit limit{bytes, bytes};
  if (pages == 0 || ::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
  try {
    ThreadPoolExecutor pool("pool", 64, 1);
  } catch (const std::system_error&) {
    std::_Exit(0);
  }
  std::_Exit(1);
}

TEST(ThreadPoolExecutor, SaysThatAThreadCannotBeStarted) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers take more address space than they may have here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_too_many_threads(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder
