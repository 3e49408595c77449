// SPDX-License-Identifier: Apache-2.0
// A limit on what cannot be given one: a destructor that waits for a disk.
//
// Threads: made and destroyed on one thread. `over` runs on a thread of this class, which the destructor joins.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace larder {

class TimeLimit {
 public:
  // Calls `over` once, if this is still there after `limit`. Where the system has no thread left there is no limit, and
  // the log says so: a stop has to go on.
  TimeLimit(Nanos limit, std::function<void()> over);
  // Waits for `over` if it runs.
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  void run();

  const Nanos limit_;
  const std::function<void()> over_;
  std::mutex mutex_;  // a leaf: nothing is called under it
  std::condition_variable ended_;
  bool has_ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace larder
