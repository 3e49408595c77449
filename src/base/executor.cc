// SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

namespace larder {

bool run_task_catching(Task& task) {
  try {
    task();
    return false;
  } catch (...) {
    return true;
  }
}

Status InlineExecutor::post(Task task) {
  if (run_task_catching(task)) ++failed_;
  return Status::ok();
}

ManualExecutor::ManualExecutor(std::size_t queue_limit, std::optional<std::uint64_t> seed) : queue_limit_(queue_limit) {
  if (seed) rng_.emplace(*seed);
}

Status ManualExecutor::post(Task task) {
  if (tasks_.size() >= queue_limit_) return overloaded("manual executor: task queue is full");
  tasks_.push_back(std::move(task));
  return Status::ok();
}

bool ManualExecutor::run_one() {
  if (tasks_.empty()) return false;
  if (rng_) std::swap(tasks_.front(), tasks_[static_cast<std::size_t>(rng_->below(tasks_.size()))]);
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  if (run_task_catching(task)) ++failed_;
  return true;
}

std::size_t ManualExecutor::run_all(std::size_t limit) {
  std::size_t ran = 0;
  while (ran < limit && run_one()) ++ran;
  return ran;
}

std::size_t ManualExecutor::drop_all() {
  std::deque<Task> dropped;
  dropped.swap(tasks_);
  return dropped.size();
}

}  // namespace larder
