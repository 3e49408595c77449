// Lets layer k compute while layer k+1 is still being copied (step 3 of a prefix's life).
//
// Threads: arrive() from a device callback, wait() from the engine thread, ready() from anywhere.
// Lifetime: shared_ptr held by the transfer and by the engine's step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/status.h"

namespace larder {

class LayerGate {
 public:
  // layers: ModelSpec::layer_count().
  explicit LayerGate(std::uint32_t layers) : layers_(layers) {}

  // Layers 0..layer are on the device; monotone.
  void arrive(std::uint32_t layer);
  // The load failed: every waiter gets this status, now and later. First failure wins.
  void fail(Status status);

  // Returns at once when the layer has arrived. kDeadlineExceeded after `limit` (real time: this guards a GPU wait).
  [[nodiscard]] Status wait(std::uint32_t layer, std::chrono::nanoseconds limit) const;
  [[nodiscard]] bool ready(std::uint32_t layer) const;
  [[nodiscard]] bool finished() const;  // all layers arrived, or failed

 private:
  const std::uint32_t layers_;
  mutable std::mutex mutex_;  // leaf lock: nothing is called under it
  mutable std::condition_variable changed_;
  std::uint32_t arrived_ = 0;  // guarded by mutex_: number of layers on the device
  Status failure_;             // guarded by mutex_
};

}  // namespace larder
