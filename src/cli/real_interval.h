// SPDX-License-Identifier: Apache-2.0
// Waiting between two looks of a tool that repeats itself.
#pragma once

#include "base/clock.h"

namespace larder {

// SIGINT and SIGTERM end the wait instead of the process from here on. Made in main() before any other thread.
class Interval {
 public:
  Interval();
  // True when `duration` is over; false when a signal asked to end.
  [[nodiscard]] bool wait(Nanos duration);
};

}  // namespace larder
