// SPDX-License-Identifier: Apache-2.0
// Writes that failed for a reason that may pass, kept with their bytes and written again later.
//
// SGLang offers a page once and never again after a failure, so a store that was sick for a second would lack those
// pages for ever. An offer copies the group's bytes; tick() submits what is due, oldest first, one operation of up to
// kBatchGroups groups at a time, with a doubling pause after a failure. A group goes when it is stored, declined for
// good, cleared, or older than its limit.
//
// Clears. A write that was answered ok must not appear after a clear that came later. So every write, those of calls
// and of connectors too, begins in an *epoch* here and ends here; a clear begins the next epoch, waits until its
// namespace's writes of earlier ones have ended, and an offer of an earlier epoch is refused. Other namespaces' writes
// go on. All of this is of one process: others that share the store have epochs of their own.
//
// Threads: all methods from any thread. Lifetime: shared with the completions of its operations; stop() before the
// backend ends. Limits: bytes and age, both options; an offer that is being copied does not count yet. Cost of an
// offer: a copy of the bytes. Without memory an offer is refused, and a tick does nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>
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
  // A write on its way to the backend: it began when this was made, and ends once, with end() or this, whatever becomes
  // of the submit. It keeps the queue.
  class Write {
   public:
    Write(const Write&) = delete;
    Write& operator=(const Write&) = delete;
    Write(std::shared_ptr<WriteRetry> retry, const Digest256& digest)
        : retry_(std::move(retry)), digest_(digest), epoch_(retry_->write_began(digest)) {}
    ~Write() { (void)end(); }
    [[nodiscard]] std::uint64_t epoch() const { return epoch_; }  // for offer()
    // False: it has ended before.
    bool end() {
      if (has_ended_.exchange(true, std::memory_order_relaxed)) return false;  // a single fact
      retry_->write_ended(digest_, epoch_);
      return true;
    }

   private:
    const std::shared_ptr<WriteRetry> retry_;
    const Digest256 digest_;
    const std::uint64_t epoch_;
    std::atomic<bool> has_ended_{false};
  };
  // A shared one: completions are copied. If there is no memory for it, it has not begun.
  [[nodiscard]] std::shared_ptr<Write> begin_write(const StoreScope& scope) {
    return std::make_shared<Write>(shared_from_this(), scope.namespace_digest);
  }
  [[nodiscard]] std::uint64_t epoch() const LARDER_EXCLUDES(mutex_);
  // Copies the group. False: no room, no memory, stopped, or its namespace was cleared since `epoch`.
  [[nodiscard]] bool offer(const std::shared_ptr<const StoreScope>& scope, const PageGroup& group, bool durable,
                           std::uint64_t epoch) LARDER_EXCLUDES(mutex_);
  // Submits what is due. Call it a few times a second.
  void tick() LARDER_EXCLUDES(mutex_);
  // Before a clear: forgets what waits of a namespace (null: of all), and begins an epoch.
  void begin_clear(const StoreScope* scope) LARDER_EXCLUDES(mutex_);
  // Until every write of the namespace (null: of all) that began before its clear has ended, or `limit` is over (real
  // time); true if they have.
  [[nodiscard]] bool wait_for_earlier(const StoreScope* scope, Nanos limit) LARDER_EXCLUDES(mutex_);
  // A clear of all has ended, whatever came of it.
  void end_clear() LARDER_EXCLUDES(mutex_);
  // How many have: who remembers what the store has asks before that counts.
  [[nodiscard]] std::uint64_t clears() const LARDER_EXCLUDES(mutex_);
  // Nothing is submitted any more; what waits is dropped.
  void stop() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] RetryStats stats() const LARDER_EXCLUDES(mutex_);

 private:
  [[nodiscard]] std::uint64_t write_began(const Digest256& digest) LARDER_EXCLUDES(mutex_);
  void write_ended(const Digest256& digest, std::uint64_t epoch) LARDER_EXCLUDES(mutex_);
  struct Entry {
    std::shared_ptr<const StoreScope> scope;
    PageGroup group;  // its segments lie in `bytes`
    std::vector<std::byte> bytes;
    bool durable = false, is_cleared = false;
    TimePoint offered;
  };
  using Entries = std::list<std::shared_ptr<Entry>>;  // one goes from list to list without memory
  using Batch = std::vector<std::shared_ptr<Entry>>;
  static constexpr std::size_t kBatchGroups = 64;
  static constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;
  static constexpr std::size_t kMostCleared = 1024;
  // Writes of the namespace that began in an earlier epoch are those before its last clear.
  [[nodiscard]] std::uint64_t cleared_at(const Digest256& digest) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_earlier(const StoreScope* scope) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool may_take(const StoreScope& scope, std::uint64_t bytes, std::uint64_t epoch)
      LARDER_REQUIRES(mutex_);
  [[nodiscard]] static std::shared_ptr<Entry> copy_of(const PageGroup& group, std::uint64_t bytes);
  void drop_old(TimePoint now) LARDER_REQUIRES(mutex_);
  // Whose write is due; null: none is.
  [[nodiscard]] std::shared_ptr<const StoreScope> due() LARDER_EXCLUDES(mutex_);
  // The oldest entries, if they are of `scope`; with one durability. They are in flight then.
  [[nodiscard]] Batch take_batch(const StoreScope& scope) LARDER_EXCLUDES(mutex_);
  void write_due();
  [[nodiscard]] Status submit(const Batch& batch, const std::shared_ptr<Write>& write);
  // What is in flight has ended; without an answer it has failed for a reason that may pass.
  void answered(const std::vector<Status>& answers) LARDER_EXCLUDES(mutex_);
  void forget(const Entry& entry) LARDER_REQUIRES(mutex_);

  StorageBackend* const backend_;
  Clock& clock_;
  const RetryOptions options_;

  mutable RankedMutex mutex_{LockRank::kController};
  Entries waiting_ LARDER_GUARDED_BY(mutex_), in_flight_ LARDER_GUARDED_BY(mutex_);  // oldest first
  std::uint64_t epoch_ LARDER_GUARDED_BY(mutex_) = 0, clears_ LARDER_GUARDED_BY(mutex_) = 0;
  // Where the last clear began, by namespace; of all of them, and of those that are not in the map any more.
  std::map<Digest256, std::uint64_t> cleared_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t all_cleared_ LARDER_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<Digest256, std::uint64_t>, std::uint64_t> writes_ LARDER_GUARDED_BY(mutex_);  // -> under way
  RankedCondition writes_ended_;
  TimePoint next_try_ LARDER_GUARDED_BY(mutex_){};
  Nanos pause_ LARDER_GUARDED_BY(mutex_){0};
  RetryStats stats_ LARDER_GUARDED_BY(mutex_);
  bool is_stopped_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder
