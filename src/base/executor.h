// SPDX-License-Identifier: Apache-2.0
// Where work runs.
//
// Purpose: a component posts tasks and does not know whether a thread pool, the caller, or a test runs them.
// Tasks: a task runs once, or never if the executor refuses or is destroyed first (each implementation says which).
// It must not throw; if it does, the exception is caught and counted, and the executor goes on.
// Threads: post() may be called from any thread unless the implementation says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "base/rng.h"
#include "base/status.h"

namespace larder {

using Task = std::function<void()>;

class Executor {
 public:
  virtual ~Executor() = default;
  // Takes the task, or refuses: kOverloaded when the queue is full, kCancelled when shutting down.
  // A refused task is destroyed without having run. Never blocks.
  [[nodiscard]] virtual Status post(Task task) = 0;
};

// Runs `task`; true if it threw (the exception is dropped). Shared by all executors.
[[nodiscard]] bool run_task_catching(Task& task);

// Runs each task inside post(), on the caller's thread. A task may post; the inner one runs first, nested.
class InlineExecutor final : public Executor {
 public:
  [[nodiscard]] Status post(Task task) override;
  [[nodiscard]] std::uint64_t failed_tasks() const { return failed_; }

 private:
  std::uint64_t failed_ = 0;  // owned by the posting thread
};

// Keeps tasks until told to run them: the executor of tests and simulation.
// Order: first in, first out; with a seed, each step takes a random waiting task (the order replays from the seed).
// Threads: confined to one thread. Destruction drops waiting tasks.
class ManualExecutor final : public Executor {
 public:
  explicit ManualExecutor(std::size_t queue_limit = 4096, std::optional<std::uint64_t> seed = std::nullopt);
  [[nodiscard]] Status post(Task task) override;
  // Runs one waiting task; false if there is none.
  bool run_one();
  // Runs until nothing waits, tasks posted meanwhile included, or until `limit` tasks ran. The number run.
  std::size_t run_all(std::size_t limit = 1'000'000);
  // Destroys the waiting tasks without running them. The number dropped.
  std::size_t drop_all();
  [[nodiscard]] std::size_t waiting() const { return tasks_.size(); }
  [[nodiscard]] std::uint64_t failed_tasks() const { return failed_; }

 private:
  const std::size_t queue_limit_;
  std::optional<Rng> rng_;
  std::deque<Task> tasks_;
  std::uint64_t failed_ = 0;
};

}  // namespace larder
