// SPDX-License-Identifier: Apache-2.0
// Time as a dependency.
//
// Purpose: everything that measures or waits takes a Clock, so that the same code runs on real and on simulated time.
// steady_clock::now appears in clock.cc and nowhere else (tools/check_bans.py).
// Units: durations are std::chrono::nanoseconds; a TimePoint has no relation to the calendar. Wall time is separate and
// only for people (logs, file headers); nothing is ordered by it.
// Threads: now() and wall_unix_seconds() may be called from any thread.
// Cost: one vDSO call, ~25 ns, no allocation.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace larder {

using Nanos = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Nanos>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic: never less than an earlier answer.
  [[nodiscard]] virtual TimePoint now() const = 0;
  // Seconds since 1970, UTC. May jump.
  [[nodiscard]] virtual std::int64_t wall_unix_seconds() const = 0;
};

// The process's clock. Lives forever.
[[nodiscard]] Clock& real_clock();

// A clock that moves only when told. Starts at `start` after its epoch.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(Nanos start = Nanos{0}) : now_ns_(start.count()) {}
  [[nodiscard]] TimePoint now() const override { return TimePoint(Nanos(now_ns_.load(std::memory_order_acquire))); }
  [[nodiscard]] std::int64_t wall_unix_seconds() const override {
    return now_ns_.load(std::memory_order_acquire) / 1'000'000'000;
  }
  // Precondition: by >= 0.
  void advance(Nanos by) { now_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

 private:
  std::atomic<std::int64_t> now_ns_;  // atomic: tests advance it while workers read it
};

}  // namespace larder
