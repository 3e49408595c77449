// SPDX-License-Identifier: Apache-2.0
// A handful of threads that share the independent tasks of one stage.
//
// Private to the engine because a step must not queue behind other work, and because a stage lasts microseconds.
// Threads: run() from one thread at a time; it works too, as worker 0. Tasks must not depend on each other, so which
// worker takes which task cannot change a result. Takes rank kExecutor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/ranked_mutex.h"

namespace larder::reference {

class Workers {
 public:
  using Task = std::function<void(std::size_t task, std::size_t worker)>;

  explicit Workers(std::size_t threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] std::size_t size() const { return threads_.size() + 1; }

  // Calls task(i, worker) for i in [0, tasks), and returns when all are done. cost: rough operations of all tasks
  // together; a stage too small to be worth waking a thread (about 20 us) runs here. What a task throws comes out of
  // here once no task runs any more, the first if several threw; some may never have begun.
  void run(std::size_t tasks, double cost, const Task& task) LARDER_EXCLUDES(mutex_);

 private:
  void end() LARDER_EXCLUDES(mutex_);  // joins
  void work(std::size_t worker) LARDER_EXCLUDES(mutex_);
  void take_tasks(const Task& task, std::size_t tasks, std::size_t worker) LARDER_EXCLUDES(mutex_);

  RankedMutex mutex_{LockRank::kExecutor};
  RankedCondition changed_;                              // a job came, or stopping_
  RankedCondition done_;                                 // active_ fell to 0
  const Task* job_ LARDER_GUARDED_BY(mutex_) = nullptr;  // null between stages: a late waker finds nothing to do
  std::size_t job_tasks_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t epoch_ LARDER_GUARDED_BY(mutex_) = 0;
  std::size_t active_ LARDER_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ LARDER_GUARDED_BY(mutex_);  // of this stage, the first
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::atomic<std::size_t> next_{0};  // next task; results are published by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace larder::reference
