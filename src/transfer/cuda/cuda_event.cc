// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/cuda_event.h"

#include <utility>

namespace larder {

CudaEventPool::~CudaEventPool() {
  for (const CudaEventHandle event : free_) (void)driver_->destroy_event(event);
}

Result<CudaEventHandle> CudaEventPool::take() {
  {
    const LockGuard guard(mutex_);
    if (!free_.empty()) {
      const CudaEventHandle event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  return driver_->create_event();
}

void CudaEventPool::give_back(CudaEventHandle event) {
  const LockGuard guard(mutex_);
  free_.push_back(event);
}

Result<std::shared_ptr<CudaEvent>> CudaEvent::record(std::shared_ptr<CudaEventPool> pool, CudaStream stream) {
  LARDER_ASSIGN_OR_RETURN(CudaEventHandle handle, pool->take());
  CudaDriver& driver = pool->driver();
  std::shared_ptr<CudaEvent> event(new CudaEvent(std::move(pool), handle));
  LARDER_RETURN_IF_ERROR(driver.record(handle, stream));
  return event;
}

CudaEvent::~CudaEvent() { pool_->give_back(handle_); }

bool CudaEvent::has_fired() const { return pool_->driver().has_completed(handle_).value_or(false); }

Status CudaEvent::make_wait(CudaStream stream) const { return pool_->driver().wait(stream, handle_); }

Status CudaEvent::synchronize() const { return pool_->driver().synchronize_event(handle_); }

}  // namespace larder
