// SPDX-License-Identifier: Apache-2.0
// The routes that change a running cache: flush, quiesce, and the storage tier (look, attach, detach, clear).
//
// Bodies and texts are the reference system's, which its clients search for words.
// Threads: any. Each call blocks, at most as long as its `timeout`, or a minute for storage: not on an I/O thread.
// Lifetime: scheduler and clock outlive it.
#pragma once

#include <atomic>
#include <string>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "engine/scheduler.h"
#include "server/http_message.h"

namespace larder {

class CacheAdmin {
 public:
  CacheAdmin(Scheduler& scheduler, Clock& clock);

  [[nodiscard]] HttpResponse flush(const HttpRequest& request);
  [[nodiscard]] HttpResponse quiesce(const HttpRequest& request);
  // GET looks, PUT attaches, DELETE detaches.
  [[nodiscard]] HttpResponse storage_backend(const HttpRequest& request);
  [[nodiscard]] HttpResponse clear_storage();

  // The attached backend as completions name it (engine/request_metrics.h: storage_class_name()); empty: none.
  [[nodiscard]] std::string storage_name();
  // A flush or quiesce that waits ends within a second.
  void stop() { is_stopping_.store(true, std::memory_order_relaxed); }

 private:
  template <class Attempt>
  Status wait_in_slices(double seconds, const Attempt& attempt);
  [[nodiscard]] HttpResponse view_storage();
  [[nodiscard]] HttpResponse attach(const HttpRequest& request);
  [[nodiscard]] HttpResponse detach();
  void set_storage_name(const std::string& backend);

  Scheduler& scheduler_;
  Clock& clock_;
  std::atomic<bool> is_stopping_{false};  // relaxed: ends waits a little early
  std::atomic<bool> is_flushing_{false};  // sequentially consistent: a try-lock
  std::atomic<bool> is_quiescing_{false};
  std::atomic<bool> is_switching_{false};  // attach, detach or clear
  RankedMutex storage_mutex_{LockRank::kServer};
  std::string storage_name_ LARDER_GUARDED_BY(storage_mutex_);
};

}  // namespace larder
