// SPDX-License-Identifier: Apache-2.0
// Lets layer k compute while layer k+1 is still being copied (step 3 of a prefix's life).
//
// Two kinds of waiting: the host waits until a layer has arrived (wait); or, on devices whose streams run without the
// host, a stream of the engine waits for the event of its copies (launch_of), and the host only for their launch.
//
// Threads: arrive() and launch() from a device callback, wait() from the engine thread, ready() from anywhere.
// Lifetime: shared_ptr held by the transfer and by the engine's step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "transfer/device_event.h"

namespace larder {

class LayerGate {
 public:
  // layers: ModelSpec::layer_count().
  explicit LayerGate(std::uint32_t layers) : layers_(layers) {}

  // Layers 0..layer are on the device; monotone.
  void arrive(std::uint32_t layer);
  // The copies of layers 0..layer are on a stream of the device; `event` fires when they have completed. In order.
  void launch(std::uint32_t layer, std::shared_ptr<DeviceEvent> event);
  // The load failed: every waiter gets this status, now and later. First failure wins.
  void fail(Status status);

  // Returns at once when the layer has arrived. kDeadlineExceeded after `limit` (real time: this guards a GPU wait).
  [[nodiscard]] Status wait(std::uint32_t layer, std::chrono::nanoseconds limit) const;
  struct Launch {
    std::uint32_t end = 0;               // the copies of layers below it
    std::shared_ptr<DeviceEvent> event;  // after them; null: they have arrived
  };
  // The first that covers `layer`. kDeadlineExceeded: its copies were not launched within `limit`; the failure, if the
  // load has failed.
  [[nodiscard]] Result<Launch> launch_of(std::uint32_t layer, std::chrono::nanoseconds limit) const;
  [[nodiscard]] bool ready(std::uint32_t layer) const;
  [[nodiscard]] bool finished() const;  // all layers arrived, or failed

 private:
  [[nodiscard]] Status check(std::uint32_t layer) const;

  const std::uint32_t layers_;
  mutable std::mutex mutex_;  // leaf lock: nothing is called under it
  mutable std::condition_variable changed_;
  std::uint32_t arrived_ = 0;     // guarded by mutex_: number of layers on the device
  std::vector<Launch> launches_;  // guarded by mutex_: by end
  Status failure_;                // guarded by mutex_
};

}  // namespace larder
