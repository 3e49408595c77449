// SPDX-License-Identifier: Apache-2.0
// Simulated time: a clock that jumps from event to event, and an executor whose tasks take simulated time.
//
// Purpose: a whole cache (tree, controller, workers, backends) runs in one thread, and every interleaving replays from
// a seed. Time passes only in run_next() and advance(); an hour of timeouts costs nothing.
// Threads: confined to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/executor.h"
#include "base/rng.h"

namespace larder::sim {

class SimClock final : public Clock {
 public:
  SimClock() = default;
  SimClock(const SimClock&) = delete;
  SimClock& operator=(const SimClock&) = delete;

  [[nodiscard]] TimePoint now() const override { return now_; }
  [[nodiscard]] std::int64_t wall_unix_seconds() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count();
  }

  // Runs `event` when time reaches now() + delay (a negative delay counts as 0). Equal times run in the order given.
  void after(Nanos delay, Task event);
  // Jumps to the earliest event and runs it; false if there is none. An event may add events.
  bool run_next();
  // Runs all events up to now() + by, in order, then stands there. An event may call it: that is a thread that sleeps
  // while others go on; what it lets run may in turn do so, and then ends first.
  void advance(Nanos by);
  // Runs until no event is left, or `limit` ran. The number run.
  std::size_t run_all(std::size_t limit = 1'000'000);
  [[nodiscard]] std::size_t waiting() const { return events_.size(); }
  // Events run so far.
  [[nodiscard]] std::uint64_t ran() const { return ran_; }
  // Destroys all waiting events unrun: what a crash does to timers.
  void drop_all() { events_.clear(); }

 private:
  TimePoint now_{};
  std::uint64_t next_order_ = 0, ran_ = 0;
  std::map<std::pair<TimePoint, std::uint64_t>, Task> events_;  // by time, then by order given
};

// Runs each task at a random simulated time in [min_delay, max_delay] after post(): completions overtake each other.
// Lifetime: the clock and this executor outlive the tasks. Limits: `queue_limit` tasks not yet run.
class SimExecutor final : public Executor {
 public:
  SimExecutor(SimClock& clock, std::uint64_t seed, Nanos min_delay, Nanos max_delay, std::size_t queue_limit = 4096);
  [[nodiscard]] Status post(Task task) override;
  // The n-th task from now (1: the next), and the `count` - 1 after it, are refused: kOverloaded. 0: none is.
  void refuse_nth(std::uint64_t n, std::uint64_t count = 1) {
    refuse_from_ = n == 0 ? 0 : posts_ + n, refuse_until_ = refuse_from_ + count;
  }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }  // because of that
  [[nodiscard]] std::size_t waiting() const { return waiting_; }
  [[nodiscard]] std::uint64_t failed_tasks() const { return failed_; }

 private:
  SimClock& clock_;
  Rng rng_;
  const Nanos min_delay_;
  const Nanos max_delay_;
  const std::size_t queue_limit_;
  std::uint64_t posts_ = 0, refuse_from_ = 0, refuse_until_ = 0, refused_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace larder::sim
