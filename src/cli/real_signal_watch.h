// SPDX-License-Identifier: Apache-2.0
// Hears of a signal while its process is in the middle of something that does not look for one.
//
// Threads: made and destroyed on one thread, in main(), with the signals blocked in it and so in all threads that it
// begins. `came` runs on a thread of this class.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "base/clock.h"

namespace larder {

class SignalWatch {
 public:
  // Calls `came` at most once, when a signal of `set` has come and this is still there after `grace`. The signal stays
  // pending. Where the system has no descriptors left, nothing is heard.
  SignalWatch(const sigset_t& set, Nanos grace, std::function<void()> came);
  // Waits for `came` if it runs.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void run() const;

  const Nanos grace_;
  const std::function<void()> came_;
  const int signals_, end_;  // descriptors; end_ can be read once this dies
  std::thread thread_;       // last: it uses the rest
};

}  // namespace larder
