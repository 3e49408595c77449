// SPDX-License-Identifier: Apache-2.0
// Waiting between two looks of a tool that repeats itself.
#pragma once

#include <functional>
#include <optional>

#include "base/clock.h"
#include "cli/real_signal_watch.h"

namespace larder {

// SIGINT and SIGTERM end the wait instead of the process from here on. Made in main() before any other thread.
class Interval {
 public:
  // stop: runs at most once, on another thread, when one of them comes: it ends what goes on beside the waits, which it
  // outlives.
  explicit Interval(std::function<void()> stop = {});
  // One of them has come, and no wait has ended by it.
  [[nodiscard]] bool is_over() const;
  // True when `duration` is over; false when a signal asked to end.
  [[nodiscard]] bool wait(Nanos duration);

 private:
  std::optional<SignalWatch> watch_;
};

}  // namespace larder
