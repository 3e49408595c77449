// SPDX-License-Identifier: Apache-2.0
// The production executor: a fixed number of named threads behind one bounded queue.
//
// Threads: post() from any thread, also from a task. The pool creates its threads in create() and joins them in the
// destructor, which must not run on one of them. Thread names are "<name>-<index>", cut to 15 characters by the kernel.
// Shutdown: the destructor refuses new tasks (kCancelled), lets each thread end the task it runs, and then either runs
// what is queued (kDrain) or destroys it unrun (kDrop). A task that must always report is posted with kDrain pools.
// Limits: `queue_limit` waiting tasks; the threads' running ones are not counted.
// Cost: one short lock per post and per task; takes rank kExecutor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "base/ranked_mutex.h"

namespace larder {

enum class OnShutdown : unsigned char { kDrain, kDrop };

class ThreadPoolExecutor final : public Executor {
 public:
  // `threads` >= 1; 0 is taken as 1.
  ThreadPoolExecutor(std::string name, std::size_t threads, std::size_t queue_limit,
                     OnShutdown on_shutdown = OnShutdown::kDrain);
  ~ThreadPoolExecutor() override;
  ThreadPoolExecutor(const ThreadPoolExecutor&) = delete;
  ThreadPoolExecutor& operator=(const ThreadPoolExecutor&) = delete;

  [[nodiscard]] Status post(Task task) override LARDER_EXCLUDES(mutex_);
  // Tasks that threw.
  [[nodiscard]] std::uint64_t failed_tasks() const { return failed_.load(std::memory_order_relaxed); }
  // Tasks waiting now.
  [[nodiscard]] std::size_t waiting() const LARDER_EXCLUDES(mutex_);
  // Waits until no task waits or runs. Tests and orderly shutdown only.
  void wait_idle() LARDER_EXCLUDES(mutex_);

 private:
  struct Worker {
    RankedCondition called;
    bool is_called = false;  // guarded by mutex_
  };
  void run_worker(std::size_t index);
  // Waits for a task; false when the worker must end.
  bool take(Worker& me, Task& task) LARDER_EXCLUDES(mutex_);

  // constant after construction
  const std::string name_;
  const std::size_t queue_limit_;
  const OnShutdown on_shutdown_;

  mutable RankedMutex mutex_{LockRank::kExecutor};
  RankedCondition idle_;  // busy_ fell to 0 with an empty queue
  std::deque<Task> tasks_ LARDER_GUARDED_BY(mutex_);
  // Workers that wait. The last to come is the first to be called: its core is awake, and its caches are warm.
  std::vector<Worker*> waiting_workers_ LARDER_GUARDED_BY(mutex_);
  std::size_t busy_ LARDER_GUARDED_BY(mutex_) = 0;
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;

  std::atomic<std::uint64_t> failed_{0};  // relaxed: a statistic
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::jthread> threads_;  // last, so that they end before what they use
};

}  // namespace larder
