// SPDX-License-Identifier: Apache-2.0
#include "door/real_ticker.h"

#include <utility>

#include <pthread.h>

namespace larder {

Ticker::Ticker(Nanos period, std::function<void()> tick)
    : thread_([this, period, tick = std::move(tick)] {
        (void)pthread_setname_np(pthread_self(), "larder-tick");
        for (;;) {
          {
            LockGuard guard(mutex_);
            if (!is_ending_) (void)ends_.wait_for(mutex_, period);
            if (is_ending_) return;
          }
          tick();
        }
      }) {}

Ticker::~Ticker() {
  LockGuard guard(mutex_);
  is_ending_ = true;
  ends_.notify_all();
}

}  // namespace larder
