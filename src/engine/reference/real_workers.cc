// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/real_workers.h"

#include <utility>

namespace larder::reference {
namespace {

// Operations that one core does in about the time it takes to wake another.
constexpr double kWorthWaking = 400'000;

}  // namespace

Workers::Workers(std::size_t threads) {
  try {
    for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {  // no thread more is to be had, and one that nobody joins ends the process
    end();
    throw;
  }
}

Workers::~Workers() { end(); }

void Workers::end() {
  {
    LockGuard guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Workers::run(std::size_t tasks, double cost, const Task& task) {
  if (threads_.empty() || tasks < 2 || cost < kWorthWaking) {
    for (std::size_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  next_.store(0, std::memory_order_relaxed);
  {
    LockGuard guard(mutex_);
    job_ = &task;
    job_tasks_ = tasks;
    ++epoch_;
  }
  changed_.notify_all();
  take_tasks(task, tasks, 0);
  LockGuard guard(mutex_);
  job_ = nullptr;
  while (active_ > 0) done_.wait(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// An exception must leave neither a thread, which would end the process, nor run() while others still use the task.
void Workers::take_tasks(const Task& task, std::size_t tasks, std::size_t worker) {
  try {
    for (;;) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= tasks) return;
      task(i, worker);
    }
  } catch (...) {
    next_.store(tasks, std::memory_order_relaxed);  // the others need not begin what is left
    LockGuard guard(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void Workers::work(std::size_t worker) {
  std::uint64_t seen = 0;
  for (;;) {
    const Task* task = nullptr;
    std::size_t tasks = 0;
    {
      LockGuard guard(mutex_);
      while (!stopping_ && (job_ == nullptr || epoch_ == seen)) changed_.wait(mutex_);
      if (stopping_) return;
      seen = epoch_;
      task = job_;
      tasks = job_tasks_;
      ++active_;
    }
    take_tasks(*task, tasks, worker);
    bool last = false;
    {
      LockGuard guard(mutex_);
      last = --active_ == 0;
    }
    if (last) done_.notify_one();
  }
}

}  // namespace larder::reference
