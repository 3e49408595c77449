// SPDX-License-Identifier: Apache-2.0
// Calls a function a few times a second, on a thread of its own, until it is destroyed.
#pragma once

#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/ranked_mutex.h"

namespace larder {

class Ticker {
 public:
  // `tick` must not throw. Not called before one period is over.
  Ticker(Nanos period, std::function<void()> tick);
  // Waits for a call that runs.
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  RankedMutex mutex_{LockRank::kInbox};
  RankedCondition ends_;
  bool is_ending_ LARDER_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last
};

}  // namespace larder
