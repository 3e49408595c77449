// SPDX-License-Identifier: Apache-2.0
// A DeviceEvent that is an event of the CUDA driver: streams wait for it without the host.
//
// Larder records one after each step of a copy; an engine records one on its own stream for Cache::complete_step()
// (CudaDevice::record).
//
// Threads: any. Lifetime: shared; its driver event goes back to the pool with the last owner. A stream that was told to
// wait has the state of that moment: the event may be recorded again at once.
#pragma once

#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "transfer/cuda/driver.h"
#include "transfer/device_event.h"

namespace larder {

// Keeps driver events for the next use: making one costs ten times what recording one does.
class CudaEventPool {
 public:
  explicit CudaEventPool(std::shared_ptr<CudaDriver> driver) : driver_(std::move(driver)) {}
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;
  ~CudaEventPool();

  [[nodiscard]] Result<CudaEventHandle> take() LARDER_EXCLUDES(mutex_);
  void give_back(CudaEventHandle event) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] CudaDriver& driver() const { return *driver_; }

 private:
  const std::shared_ptr<CudaDriver> driver_;
  RankedMutex mutex_{LockRank::kTransfer};
  std::vector<CudaEventHandle> free_ LARDER_GUARDED_BY(mutex_);
};

class CudaEvent final : public DeviceEvent {
 public:
  // Recorded on `stream` now.
  [[nodiscard]] static Result<std::shared_ptr<CudaEvent>> record(std::shared_ptr<CudaEventPool> pool,
                                                                 CudaStream stream);
  ~CudaEvent() override;

  // A lost device has fired nothing, and never will.
  [[nodiscard]] bool has_fired() const override;
  // What is launched on `stream` from now on runs after this. Cost: 0.3 us of the host; no thread waits.
  [[nodiscard]] Status make_wait(CudaStream stream) const;
  // Blocks this thread until it has fired, or the device is lost.
  [[nodiscard]] Status synchronize() const;
  [[nodiscard]] CudaDriver& driver() const { return pool_->driver(); }

 private:
  CudaEvent(std::shared_ptr<CudaEventPool> pool, CudaEventHandle handle) : pool_(std::move(pool)), handle_(handle) {}
  const std::shared_ptr<CudaEventPool> pool_;
  const CudaEventHandle handle_;
};

}  // namespace larder
