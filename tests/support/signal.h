// SPDX-License-Identifier: Apache-2.0
// One thread waits for another in a test, without sleeping.
// Threads: any. A wait ends after 20 s, and the test with it.
#pragma once

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/ranked_mutex.h"

namespace larder::support {

class Signal {
 public:
  // For good.
  void set() {
    LockGuard guard(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  void wait() {
    const TimePoint end = real_clock().now() + kLimit;
    LockGuard guard(mutex_);
    while (!is_set_ && real_clock().now() < end) changed_.wait_for(mutex_, kLimit);
    EXPECT_TRUE(is_set_) << "a signal never came";
  }

 private:
  static constexpr Nanos kLimit = std::chrono::seconds(20);
  RankedMutex mutex_{LockRank::kInbox};
  RankedCondition changed_;
  bool is_set_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder::support
