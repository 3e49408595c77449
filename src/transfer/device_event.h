// SPDX-License-Identifier: Apache-2.0
// A point in the engine's own work on the device, such as the end of a step that it has launched, which copies wait
// for.
//
//   engine:  launch a step ──► complete_step(token, tokens, after = event) ──► ... the step ends ──► event->fire()
//   copies:  those of the step's pages, and into slots that it let go, begin then
//
// A CUDA engine fires it from a host function on its stream; a CUDA device may have events of its own (a subclass) and
// let its streams wait without the host. Streams that wait hold no thread.
//
// Threads: any. Lifetime: shared by the engine and the copies that wait. Used once: it never unfires.
// Limits: none of its own; who waits is bounded by the streams.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "base/ranked_mutex.h"

namespace larder {

class DeviceEvent {
 public:
  DeviceEvent() = default;
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  virtual ~DeviceEvent() = default;

  // The work before it has completed. Again: nothing. Runs what waits, which is short.
  void fire() LARDER_EXCLUDES(mutex_);
  // It may become true at any time, also between two looks of one caller.
  [[nodiscard]] virtual bool has_fired() const { return has_fired_.load(std::memory_order_acquire); }
  // Calls `then` once it has fired: now, if it has, else in fire(). Never, if it never fires.
  void when_fired(std::function<void()> then) LARDER_EXCLUDES(mutex_);

 private:
  RankedMutex mutex_{LockRank::kTransfer};
  std::atomic<bool> has_fired_{false};  // set under mutex_; release: what the engine wrote is seen by who reads it
  std::vector<std::function<void()>> waiting_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder
