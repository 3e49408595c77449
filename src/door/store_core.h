// SPDX-License-Identifier: Apache-2.0
// What the calls of an open store share (page_store.h opens it; get_call, put_call and exists_call use it).
//
// Threads: any; each part synchronises itself, the rest is constant after open.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/thread_pool.h"
#include "door/staging_arena.h"
#include "door/write_retry.h"
#include "storage/pipeline/storage_pipeline.h"

namespace larder {

// Calls look at their deadline and their cancel flag at least this often.
inline constexpr Nanos kCallSlice = std::chrono::milliseconds(20);

struct CallTerms {
  Nanos timeout{0};                                 // 0: the store's own
  std::shared_ptr<const std::atomic<bool>> cancel;  // null: never
  bool durable = false, retry = false;              // put
};

// One page of a call, as the engine has it.
struct CallPage {
  PageKey key;
  PageKey parent;  // put; zero: unknown
  std::size_t pool = 0;
  std::span<const Segment> segments;
  Status status;  // out
};

struct StoreLimits {
  Nanos timeout = std::chrono::seconds(5);
  std::size_t staging_bytes = std::size_t{128} << 20;
  bool is_zero_copy = false;
  RetryOptions retry;
};

// Relaxed atomics: statistics of the door's own.
struct CallCounters {
  std::atomic<std::uint64_t> exists_calls{0}, get_calls{0}, put_calls{0};
  std::atomic<std::uint64_t> pages_asked{0}, pages_restorable{0};
  std::atomic<std::uint64_t> pages_read{0}, pages_missed{0}, pages_corrupt{0}, pages_failed{0};
  std::atomic<std::uint64_t> pages_stored{0}, pages_declined{0}, pages_refused{0}, pages_to_retry{0};
  std::atomic<std::uint64_t> bytes_read{0}, bytes_stored{0};
  std::atomic<std::uint64_t> calls_late{0}, calls_cancelled{0};  // ended by their deadline, by their flag
};

// Memory that payloads lie in: the arena and what the engine lends. A store shared between processes may open its
// backend at any time, with what there is by then.
class LentMemory {
 public:
  void add(std::span<const Segment> regions) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    regions_.insert(regions_.end(), regions.begin(), regions.end());
  }
  [[nodiscard]] std::vector<Segment> regions() const LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    return regions_;
  }

 private:
  mutable RankedMutex mutex_{LockRank::kController};
  std::vector<Segment> regions_ LARDER_GUARDED_BY(mutex_);
};

struct StoreCore {
  std::string backend_name;
  StoreLimits limits;
  Clock* clock = nullptr;
  std::unique_ptr<MetricsRegistry> metrics;
  std::unique_ptr<StagingArena> arena;                // its pieces may outlive it
  LentMemory memory;                                  // what the backend may register
  std::unique_ptr<ThreadPoolExecutor> threads;        // of the backend
  std::unique_ptr<ThreadPoolExecutor> share_threads;  // of what shares it with other processes
  std::unique_ptr<StoragePipeline> pipeline;
  std::shared_ptr<WriteRetry> retry;
  CallCounters counters;

  [[nodiscard]] TimePoint deadline_of(const CallTerms& terms) const {
    return clock->now() + (terms.timeout > Nanos{0} ? terms.timeout : limits.timeout);
  }
};

// Whether a call still waits. Ends with kDeadlineExceeded or kCancelled.
[[nodiscard]] Status check_patience(const StoreCore& core, TimePoint deadline, const CallTerms& terms);

}  // namespace larder
