// SPDX-License-Identifier: Apache-2.0
#include "transfer/device_event.h"

#include <utility>

namespace larder {

void DeviceEvent::fire() {
  std::vector<std::function<void()>> waiting;
  {
    const LockGuard guard(mutex_);
    has_fired_.store(true, std::memory_order_release);
    waiting.swap(waiting_);
  }
  for (const auto& then : waiting) then();
}

void DeviceEvent::when_fired(std::function<void()> then) {
  {
    const LockGuard guard(mutex_);
    if (!has_fired()) {
      waiting_.push_back(std::move(then));
      return;
    }
  }
  then();
}

}  // namespace larder
