// SPDX-License-Identifier: Apache-2.0
// Writes that failed for a reason that may pass, kept with their bytes and written again later.
//
// SGLang offers a page once and never again after a failure, so a store that was sick for a second would lack those
// pages for ever. An offer copies the group's bytes; tick() submits what is due, oldest first, one operation of up to
// kBatchGroups groups at a time, and the end of one submits the next; after a failure there is a pause, which doubles.
// What has failed goes behind what waits, so groups that fail for ever hold up no others. A group goes when it is
// stored, declined for good, cleared, or older than its limit.
//
// Clears. A write that was answered ok must not appear after a clear that came later, by whichever process. So each
// group keeps the mark of when its put began (ClearMark), and is written as of that: if its namespace was cleared
// since, the backend refuses it (kCancelled), and it goes. forget() only makes room earlier.
//
// Threads: all methods from any thread. Lifetime: shared with the completions of its operations; stop() before the
// backend ends. Limits: bytes and age, both options; an offer that is being copied does not count yet. Cost of an
// offer: a copy of the bytes. Without memory an offer is refused, and a tick does nothing.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "storage/backend.h"

namespace larder {

struct RetryOptions {
  std::uint64_t most_bytes = std::uint64_t{256} << 20;  // 0: nothing is kept
  Nanos oldest = std::chrono::minutes(10);
  Nanos first_pause = std::chrono::milliseconds(200), longest_pause = std::chrono::seconds(10);
};

struct RetryStats {
  std::uint64_t taken = 0, stored = 0;
  std::uint64_t refused = 0;  // offers that found the queue full
  std::uint64_t dropped = 0;  // too old, declined for good, cleared, or left at the end
  std::uint64_t waiting = 0, waiting_bytes = 0;
};

class WriteRetry : public std::enable_shared_from_this<WriteRetry> {
 public:
  // Both outlive the last stop().
  WriteRetry(StorageBackend& backend, Clock& clock, RetryOptions options)
      : backend_(&backend), clock_(clock), options_(options) {}

  // True for failures that may pass: kOverloaded, kUnavailable, kDeadlineExceeded, kInternal.
  [[nodiscard]] static bool is_worth_it(const Status& status);
  // Copies the group; as_of: when its put began. False: no room, no memory, or stopped.
  [[nodiscard]] bool offer(const std::shared_ptr<const StoreScope>& scope, const PageGroup& group, bool durable,
                           const ClearMark& as_of) LARDER_EXCLUDES(mutex_);
  // Submits what is due. Call it a few times a second. Cost: once a second, a look at each group that waits.
  void tick() LARDER_EXCLUDES(mutex_);
  // After a clear: drops what waits of the namespace (null: of all) and is as of `before` or earlier, of when the clear
  // had not begun.
  void forget(const StoreScope* scope, const ClearMark& before) LARDER_EXCLUDES(mutex_);
  // Nothing is submitted any more; what waits is dropped.
  void stop() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] RetryStats stats() const LARDER_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::shared_ptr<const StoreScope> scope;
    PageGroup group;  // its segments lie in `bytes`
    std::vector<std::byte> bytes;
    bool durable = false;
    ClearMark as_of;
    TimePoint offered;
  };
  using Entries = std::list<std::shared_ptr<Entry>>;  // one goes from list to list without memory
  using Batch = std::vector<std::shared_ptr<Entry>>;
  static constexpr std::size_t kBatchGroups = 64;
  static constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;
  static constexpr std::size_t kMostLookedAt = 4096;  // for one batch
  static constexpr Nanos kDropEach = std::chrono::seconds(1);
  [[nodiscard]] bool may_take(std::uint64_t bytes) LARDER_REQUIRES(mutex_);
  [[nodiscard]] static std::shared_ptr<Entry> copy_of(const PageGroup& group, std::uint64_t bytes);
  void drop_old(TimePoint now) LARDER_REQUIRES(mutex_);
  // The first entry that waits, and those like it (of its scope, durability and mark), if they are due. They are in
  // flight then. Empty: nothing is due, and nobody submits any more.
  [[nodiscard]] Batch take_batch() LARDER_EXCLUDES(mutex_);
  // Of a submit, which may fail in the middle: false after the first call.
  struct End;
  void submit_due();
  [[nodiscard]] Status submit(const Batch& batch, const std::shared_ptr<End>& end);
  // What is in flight has ended; without an answer it has failed for a reason that may pass.
  void answered(const std::vector<Status>& answers) LARDER_EXCLUDES(mutex_);
  void uncount(const Entry& entry) LARDER_REQUIRES(mutex_);

  StorageBackend* const backend_;
  Clock& clock_;
  const RetryOptions options_;

  mutable RankedMutex mutex_{LockRank::kController};
  Entries waiting_ LARDER_GUARDED_BY(mutex_), in_flight_ LARDER_GUARDED_BY(mutex_);
  bool is_submitting_ LARDER_GUARDED_BY(mutex_) = false;  // a thread does, and looks again before it stops
  TimePoint next_try_ LARDER_GUARDED_BY(mutex_){}, next_drop_ LARDER_GUARDED_BY(mutex_){};
  Nanos pause_ LARDER_GUARDED_BY(mutex_){0};
  RetryStats stats_ LARDER_GUARDED_BY(mutex_);
  bool is_stopped_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder
