// SPDX-License-Identifier: Apache-2.0
// What the threads of one SharedBackend share: its role, and the inbox of its I/O thread.
//
//   callers: post() ──┐
//   copies, inner backend, opener: post_*() ──┴─► inbox ─► take() on the I/O thread, which set_*()s the role
//
// Threads: any, unless a method says otherwise. Lifetime: shared; what comes in late, after the I/O thread has ended,
// is kept until the last one lets go, or refused. Limits: operations are bounded by the backend's gate, answers by what
// hosts take, the rest by those two.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "storage/clear_order.h"
#include "storage/shared/client_session.h"
#include "storage/shared/shared_backend.h"

namespace larder::share {

// The right to host; ends with the object.
class ShareLock {
 public:
  virtual ~ShareLock() = default;
};

// What a host has. The lock goes last: who gets it next can open the inner backend.
struct HostedStore {
  std::unique_ptr<ShareLock> lock;
  std::unique_ptr<ClearOrder> inner;
};

// Ends the I/O thread's wait, from any thread.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

class ShareState {
 public:
  struct Copied {
    std::uint64_t session = 0, number = 0;
    bool is_done = false;
  };
  struct Answer {
    std::uint64_t client = 0;
    std::string frame;
  };
  using Opened = Result<std::unique_ptr<ClearOrder>>;
  struct Batch {
    std::vector<ClientOperation> operations;
    std::vector<Copied> copied;
    std::vector<Answer> answers;
    std::optional<Opened> opened;
    bool is_asking_stats = false;
    bool is_ending_clears = false;
    bool is_stopping = false;
    [[nodiscard]] bool is_empty() const {
      return operations.empty() && copied.empty() && answers.empty() && !opened && !is_asking_stats &&
             !is_ending_clears && !is_stopping;
    }
  };

  // `directory`: of the share, for what errors say.
  ShareState(std::unique_ptr<Waker> waker, std::string directory)
      : waker_(std::move(waker)), directory_(std::move(directory)) {}

  // kUnavailable: no client now; kCancelled: a clear after post_end_clears(). The operation is left to the caller.
  [[nodiscard]] Status post(const ClientOperation& operation) LARDER_EXCLUDES(mutex_);
  void post_copied(Copied copied) LARDER_EXCLUDES(mutex_);
  void post_answer(Answer answer) LARDER_EXCLUDES(mutex_);
  void post_opened(Opened opened) LARDER_EXCLUDES(mutex_);
  // Ends a client's clears with kCancelled, and refuses more: who closes does not wait for other processes' writes.
  void post_end_clears() LARDER_EXCLUDES(mutex_);
  void post_stop() LARDER_EXCLUDES(mutex_);

  [[nodiscard]] SharedRole role() const LARDER_EXCLUDES(mutex_);
  // null: no host.
  [[nodiscard]] std::shared_ptr<HostedStore> hosted() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::shared_ptr<HostedStore> take_hosted() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] BackendInfo info() const LARDER_EXCLUDES(mutex_);
  // The last that are known. Older than `most_age`: asks the host for new ones, if there is one.
  [[nodiscard]] BackendStats stats(TimePoint now, Nanos most_age) LARDER_EXCLUDES(mutex_);
  // A client's: what its host says now; without a host, what the last one said.
  [[nodiscard]] ClearMark clear_mark() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] ClearMark emptied_mark() const LARDER_EXCLUDES(mutex_);
  // Waits for a role or for an error that waiting does not mend. kUnavailable: neither came in time, and this process
  // is not opening the inner backend.
  [[nodiscard]] Status wait_settled(std::chrono::nanoseconds limit) LARDER_EXCLUDES(mutex_);

  // The I/O thread's.
  [[nodiscard]] Batch take() LARDER_EXCLUDES(mutex_);
  // False: there is something to take. True: from now on, what comes wakes the thread.
  [[nodiscard]] bool may_wait() LARDER_EXCLUDES(mutex_);
  // It has waited: until it may again, nobody needs to wake it.
  void end_wait() LARDER_EXCLUDES(mutex_);
  void set_opening() LARDER_EXCLUDES(mutex_);  // until it has a role, or an error
  void set_seeking(const Status& why) LARDER_EXCLUDES(mutex_);
  void set_host(std::shared_ptr<HostedStore> hosted) LARDER_EXCLUDES(mutex_);
  // `words`: the counts of marks of clears_store, as the host writes them.
  void set_client(const BackendInfo& info, const BackendStats& stats, TimePoint now, std::uint64_t clears_store,
                  std::shared_ptr<const ClearWords> words) LARDER_EXCLUDES(mutex_);
  // Keeps the last marks, and lets go of the arena behind which they lie.
  void release_words() LARDER_EXCLUDES(mutex_);
  // The last ones, of a host that ends.
  void set_marks(const ClearMark& mark, const ClearMark& emptied) LARDER_EXCLUDES(mutex_);
  void set_stats(const BackendStats& stats, TimePoint now) LARDER_EXCLUDES(mutex_);
  // Why there is no role yet; is_final: who waits for one gives up.
  void set_error(const Status& error, bool is_final) LARDER_EXCLUDES(mutex_);

 private:
  template <class Put>
  void put(const Put& put) LARDER_EXCLUDES(mutex_);  // put(inbox)
  [[nodiscard]] ClearMark mark_of(const std::atomic<std::uint64_t> ClearWords::*count, const ClearMark& last) const
      LARDER_REQUIRES(mutex_);
  // Lets go of the host's words, and with them of the arena, which is the caller's to end without the lock.
  [[nodiscard]] std::shared_ptr<const ClearWords> keep_marks() LARDER_REQUIRES(mutex_);
  // Whether the I/O thread must be woken for what was just put into the inbox.
  [[nodiscard]] bool must_wake() LARDER_REQUIRES(mutex_) { return !std::exchange(is_woken_, true); }
  void wake_if(bool is_wanted) {
    if (is_wanted) waker_->wake();
  }

  const std::unique_ptr<Waker> waker_;
  const std::string directory_;
  mutable RankedMutex mutex_{LockRank::kStorage};
  RankedCondition settled_;
  SharedRole role_ LARDER_GUARDED_BY(mutex_) = SharedRole::kSeeking;
  std::shared_ptr<HostedStore> hosted_ LARDER_GUARDED_BY(mutex_);
  BackendInfo info_ LARDER_GUARDED_BY(mutex_);
  BackendStats stats_ LARDER_GUARDED_BY(mutex_);
  TimePoint stats_at_ LARDER_GUARDED_BY(mutex_){};
  std::shared_ptr<const ClearWords> words_ LARDER_GUARDED_BY(mutex_);             // of the host; null: none
  ClearMark mark_ LARDER_GUARDED_BY(mutex_), emptied_ LARDER_GUARDED_BY(mutex_);  // their store; else the last ones
  Status error_ LARDER_GUARDED_BY(mutex_);                                        // the last reason to have no role
  bool is_settled_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_opening_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_woken_ LARDER_GUARDED_BY(mutex_) = true;  // until it waits for the first time
  bool has_ended_clears_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_stopped_ LARDER_GUARDED_BY(mutex_) = false;
  Batch inbox_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::share
