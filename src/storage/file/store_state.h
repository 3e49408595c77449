// SPDX-License-Identifier: Apache-2.0
// What the rooms of a file store share: its options and means, and, under one mutex, what it knows of its pages and
// segments. How it behaves is in the rooms (file_store.h names them).
//
// Threads: `mutex` guards what names it; the rest is constant or synchronises itself. Nothing waits for the disk under
// the mutex, and no room is called under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/file_system.h"
#include "base/log_lines.h"
#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/file/cleared_list.h"
#include "storage/file/file_store_open.h"
#include "storage/file/page_copies.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_table.h"
#include "storage/file/store_options.h"
#include "storage/file/store_room.h"
#include "storage/file/volume.h"
#include "storage/file/write_record.h"
#include "storage/operation.h"

namespace larder::file_store {

inline constexpr auto kRelaxed = std::memory_order_relaxed;

// Relaxed atomics: statistics.
struct StoreCounters {
  std::atomic<std::uint64_t> reads{0}, read_hits{0}, read_misses{0}, read_errors{0}, writes{0}, write_errors{0};
  std::atomic<std::uint64_t> duplicate_writes{0}, declined{0}, corrupt{0}, evicted{0}, moved{0}, torn_tails{0};
  std::atomic<std::uint64_t> written_bytes{0};
  void add_to(BackendStats& out) const;
};

// Pages that a footer lists; a segment with more has none, and is scanned.
inline constexpr std::size_t kMaxListed = std::size_t{1} << 26;

[[nodiscard]] inline PageIdentity identity_of(const StoreScope& scope, PoolName pool) {
  return {scope.namespace_digest, scope.fingerprint(pool), pool};
}

// A segment that takes no more appends, to be settled (segment_log.h).
struct EndedSegment {
  std::shared_ptr<ActiveSegment> segment;
  unsigned volume = 0;
};

struct StoreState {
  StoreState(const FileStoreOptions& with, const BackendEnvironment& environment, OpenedStore opened);

  // Runs a step where it may block: on the executor, or here if that is full. The store does not close before it ended.
  void post(Task task) LARDER_EXCLUDES(mutex);
  // Not ok: the volume is not where it should be, or another process has it; what is not found there says nothing.
  // Blocks.
  [[nodiscard]] Status check_here(unsigned volume) LARDER_EXCLUDES(mutex);
  // StoreRoom::kUnlimited: the system does not say, which explains nothing. Blocks.
  [[nodiscard]] std::uint64_t free_bytes(unsigned volume) const;
  // Disks that have had no room for a while: perhaps others have left some. Blocks.
  void grow_limits() LARDER_EXCLUDES(mutex);
  // A write, a sync or a new file failed. What was written before stays readable.
  // `free`: on a full disk, as the system says. `asked`: by a new segment; else its usual size counts.
  void note_failure(LogLines& lines, unsigned volume, const Status& why, const std::shared_ptr<ActiveSegment>& segment,
                    std::uint64_t free = 0, std::uint64_t asked = 0) LARDER_REQUIRES(mutex);
  // No more is appended to any of them (of that kind). The caller settles them.
  [[nodiscard]] std::vector<EndedSegment> end_active(std::optional<LogKind> kind = std::nullopt) LARDER_REQUIRES(mutex);
  // What a segment needs for the write that has waited longest; 0: none waits.
  [[nodiscard]] std::uint64_t awaited_bytes() const LARDER_REQUIRES(mutex);
  // To be called by what takes the mutex again and again, without it: callers that wait for it go first. (A mutex does
  // not go by turns: who lets it go and takes it again would get it before all of them.)
  void let_callers_go_first() const LARDER_EXCLUDES(mutex);
  // close() was called, and no write waits for room: maintenance ends.
  [[nodiscard]] bool is_closing() const LARDER_EXCLUDES(mutex);

  const FileStoreOptions options;
  FileSystem& files;
  Clock& clock;
  Executor& executor;
  const StoreId store;
  OperationGate gate;
  StoreCounters counters;
  std::vector<Volume> volumes;  // the vector is constant; see Volume for who guards what

  mutable RankedMutex mutex{LockRank::kStorage};
  mutable std::atomic<unsigned> callers{0};  // in CallerGuard, without the mutex yet
  PageIndex index LARDER_GUARDED_BY(mutex);
  SegmentTable segments LARDER_GUARDED_BY(mutex);
  PageCopies copies LARDER_GUARDED_BY(mutex);
  StoreRoom room LARDER_GUARDED_BY(mutex);
  ClearedList cleared LARDER_GUARDED_BY(mutex);
  std::uint64_t next_generation LARDER_GUARDED_BY(mutex);
  std::deque<RecordPtr> waiting LARDER_GUARDED_BY(mutex);  // for room
  bool is_finished LARDER_GUARDED_BY(mutex) = false;
};

// Holds the store's mutex for a call that somebody waits for: what goes in many steps lets it go first
// (StoreState::let_callers_go_first()).
class LARDER_SCOPED_CAPABILITY CallerGuard {
 public:
  // `callers`: StoreState::callers.
  CallerGuard(RankedMutex& mutex, std::atomic<unsigned>& callers) LARDER_ACQUIRE(mutex) : mutex_(mutex) {
    callers.fetch_add(1, kRelaxed);
    mutex_.lock();
    callers.fetch_sub(1, kRelaxed);
  }
  ~CallerGuard() LARDER_RELEASE() { mutex_.unlock(); }
  CallerGuard(const CallerGuard&) = delete;
  CallerGuard& operator=(const CallerGuard&) = delete;

 private:
  RankedMutex& mutex_;
};

// What a room asks of those that are made after it, without the mutex. go_on_with_maintenance() blocks.
class StoreSteps {
 public:
  StoreSteps() = default;
  StoreSteps(const StoreSteps&) = delete;
  StoreSteps& operator=(const StoreSteps&) = delete;

  virtual void place_waiting() = 0;              // there may be room, or a segment
  virtual void start_maintenance() = 0;          // there is too little
  virtual void start_maintenance_if_high() = 0;  // perhaps there is
  virtual void go_on_with_maintenance() = 0;     // what it waits for has happened
  virtual void tell_damage(SegmentId segment) = 0;
  virtual void write_cleared() = 0;     // CLEARED is missing
  virtual void try_clears_again() = 0;  // maintenance has ended: perhaps CLEARED has room

 protected:
  ~StoreSteps() = default;
};

}  // namespace larder::file_store
