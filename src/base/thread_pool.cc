// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <pthread.h>

#include <utility>

namespace larder {

ThreadPoolExecutor::ThreadPoolExecutor(std::string name, std::size_t threads, std::size_t queue_limit,
                                       OnShutdown on_shutdown)
    : name_(std::move(name)), queue_limit_(queue_limit), on_shutdown_(on_shutdown) {
  const std::size_t count = threads == 0 ? 1 : threads;
  waiting_workers_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) workers_.push_back(std::make_unique<Worker>());
  threads_.reserve(count);
  try {
    for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { run_worker(i); });
  } catch (...) {  // no thread more is to be had: those that run would wait for ever, and their join with them
    {
      LockGuard guard(mutex_);
      stopping_ = true;
    }
    for (const auto& worker : workers_) worker->called.notify_one();
    threads_.clear();  // joins
    throw;
  }
}

ThreadPoolExecutor::~ThreadPoolExecutor() {
  std::deque<Task> dropped;
  {
    LockGuard guard(mutex_);
    stopping_ = true;
    if (on_shutdown_ == OnShutdown::kDrop) dropped.swap(tasks_);
  }
  dropped.clear();  // what the tasks captured dies outside the lock, and before the join that may wait for it
  for (const auto& worker : workers_) worker->called.notify_one();
  threads_.clear();  // joins
}

Status ThreadPoolExecutor::post(Task task) {
  Worker* worker = nullptr;
  {
    LockGuard guard(mutex_);
    if (stopping_) return cancelled("thread pool '" + name_ + "' is shutting down");
    if (tasks_.size() >= queue_limit_) return overloaded("thread pool '" + name_ + "': task queue is full");
    tasks_.push_back(std::move(task));
    if (!waiting_workers_.empty()) {
      worker = waiting_workers_.back();
      waiting_workers_.pop_back();
      worker->is_called = true;
    }
  }
  if (worker != nullptr) worker->called.notify_one();
  return Status::ok();
}

std::size_t ThreadPoolExecutor::waiting() const {
  LockGuard guard(mutex_);
  return tasks_.size();
}

void ThreadPoolExecutor::wait_idle() {
  LockGuard guard(mutex_);
  while (busy_ > 0 || !tasks_.empty()) idle_.wait(mutex_);
}

bool ThreadPoolExecutor::take(Worker& me, Task& task) {
  LockGuard guard(mutex_);
  while (tasks_.empty() && !stopping_) {  // a worker that was busy may have taken what this one was called for
    waiting_workers_.push_back(&me);
    me.is_called = false;
    while (!me.is_called && !stopping_) me.called.wait(mutex_);
  }
  if (tasks_.empty()) return false;
  task = std::move(tasks_.front());
  tasks_.pop_front();
  ++busy_;
  return true;
}

void ThreadPoolExecutor::run_worker(std::size_t index) {
  const std::string thread_name = (name_ + "-" + std::to_string(index)).substr(0, 15);
  pthread_setname_np(pthread_self(), thread_name.c_str());
  Task task;
  while (take(*workers_[index], task)) {
    if (run_task_catching(task)) failed_.fetch_add(1, std::memory_order_relaxed);
    task = nullptr;  // what it captured dies here, outside the lock
    bool is_idle = false;
    {
      LockGuard guard(mutex_);
      --busy_;
      is_idle = busy_ == 0 && tasks_.empty();
    }
    if (is_idle) idle_.notify_all();
  }
}

}  // namespace larder
