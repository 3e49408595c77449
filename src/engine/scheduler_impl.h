// SPDX-License-Identifier: Apache-2.0
// Inside of the scheduler: its thread, and how other threads reach it. Included by engine/scheduler*.cc only.
//
//   scheduler.cc        create, submit, the loop            scheduler_admin.cc  flush, quiesce, explain, stats, storage
//
// Picture: everything that another thread wants goes through one mailbox; the loop empties it between two turns.
//
//   submit ──► submitted_ ─┐
//   cancel ──► leaving_   ─┼──► take_mail() ──► a turn of loop_ ──► waiters ──► cache.poll(wait)
//   admin  ──► commands_  ─┘
//
// A command answers through a promise. When the loop ends, commands that it did not run are dropped: their callers get
// kCancelled. A waiter is a command that cannot be answered yet; it is looked at after each turn until its deadline.
//
// Exceptions (a defect, or no memory left): one out of a command that only looks is its caller's answer. After any
// other, cache and engine may be in the middle of something: fail() ends the loop, tells everybody who waits, and calls
// neither of them again.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "engine/composition.h"
#include "engine/request_loop.h"
#include "engine/request_metrics.h"
#include "engine/scheduler.h"

namespace larder {

// In a catch block: what the exception says.
[[nodiscard]] std::string exception_text();

enum class CommandKind : std::uint8_t { kLooks, kChanges };

// How long the caller of a command waits for its answer. The loop may be in the middle of a long step when a limit
// ends: what changes something is worth a little more time. Who looks takes the last numbers instead.
[[nodiscard]] constexpr Nanos answer_wait(Nanos limit, CommandKind kind) {
  constexpr Nanos kGrace = std::chrono::seconds(5), kLongest = std::chrono::hours(24);
  return std::min(limit, kLongest) + (kind == CommandKind::kLooks ? Nanos{0} : kGrace);
}

// How long a call waits before it looks whether anybody wants its answer still.
constexpr Nanos kWaitSlice = std::chrono::milliseconds(100);

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(std::unique_ptr<Composition> parts, std::unique_ptr<ReferenceEngine> engine, Clock& clock,
                MetricsRegistry& metrics);
  ~SchedulerImpl() override;
  // Begins the loop. Once, before anything else.
  [[nodiscard]] Status start_thread();

  [[nodiscard]] Result<Ticket> submit(GenerateRequest request, Update update) override;
  void cancel(Ticket ticket) override;
  void finish(Ticket ticket) override;
  [[nodiscard]] Status flush(Nanos limit) override;
  [[nodiscard]] Status quiesce(Nanos limit) override;
  [[nodiscard]] Status attach_storage(const AttachRequest& request, Nanos limit) override;
  [[nodiscard]] Status detach_storage(Nanos limit) override;
  [[nodiscard]] Result<PreparedStorage> prepare_storage(const AttachRequest& request, Nanos limit) override;
  [[nodiscard]] Result<PreparedStorage> switch_storage(PreparedStorage next, Nanos limit) override;
  void retire_storage(PreparedStorage previous) override;
  [[nodiscard]] Status clear_storage(Nanos limit) override;
  [[nodiscard]] StorageView storage() override;
  [[nodiscard]] Result<Explanation> explain(const GenerateRequest& request, Nanos limit) override;
  void end_waits() override { ended_waits_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] SchedulerStats stats() override;
  [[nodiscard]] Status health() const override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] const ModelSpec& model() const override { return parts_->model; }
  [[nodiscard]] const Options& options() const override { return parts_->options; }

 private:
  using Command = std::function<void()>;
  struct Leaving {
    Ticket ticket = 0;
    bool is_finished = false;  // else cancelled
  };
  struct Waiter {
    TimePoint deadline;
    std::function<bool()> try_now;  // true: answered
    std::function<void()> expire;
  };
  struct Done {
    Status status;
  };
  struct Clear {
    const StorageBackend* storage = nullptr;  // which it empties: to be compared, it may be gone
    std::shared_ptr<std::atomic<bool>> has_ended;
  };
  template <class T>
  using Promise = std::shared_ptr<std::promise<T>>;  // shared: std::function wants copies

  [[nodiscard]] Status check_prompt(const std::vector<TokenId>& tokens, std::uint64_t max_new_tokens) const;
  [[nodiscard]] Status post(Command command) LARDER_EXCLUDES(mutex_);
  void leave(Leaving one) LARDER_EXCLUDES(mutex_);
  // Why nothing is taken any more.
  [[nodiscard]] Status why_stopped() const LARDER_REQUIRES(mutex_);
  // Runs `ask` on the loop thread and waits for what it sets; kCancelled, kOverloaded, kDeadlineExceeded, kInternal
  // otherwise.
  template <class T>
  [[nodiscard]] Result<T> call(std::function<void(Promise<T>)> ask, Nanos limit,
                               CommandKind kind = CommandKind::kChanges);
  [[nodiscard]] Status call_status(std::function<void(Promise<Done>)> ask, Nanos limit);

  // ---- on the loop thread
  void run();
  bool take_mail() LARDER_EXCLUDES(mutex_);  // false: the scheduler is stopping
  void check_waiters();
  void end_clears();
  [[nodiscard]] Nanos wait_time() const;
  void publish(bool is_at_rest);
  void drop_mail() LARDER_EXCLUDES(mutex_);
  void shut_down();
  void fail() noexcept LARDER_EXCLUDES(mutex_);  // in a catch block
  [[nodiscard]] SchedulerStats snapshot();
  // The loop's thread. Who looks while a long step runs gets what this said last.
  StorageView view_storage() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Result<StorageView> look_at_storage(Nanos limit);
  [[nodiscard]] Result<PreparedStorage> switch_now(PreparedStorage& next);
  void set_policies(const AttachRequest& request);

  // const after construction
  Clock& clock_;
  std::uint64_t device_pages_ = 0;  // of component full
  std::unique_ptr<Composition> parts_;
  std::unique_ptr<ReferenceEngine> engine_;

  // owned by the loop thread
  RequestMetrics metrics_;
  RequestLoop loop_;
  std::vector<Command> taken_;  // being run; here, so that they outlive an exception until fail() has said why
  std::vector<Waiter> waiters_;
  std::vector<Clear> clears_;  // under way, or ended and not seen yet; of storage that has left, too
  bool is_flushing_ = false;
  bool is_detaching_ = false;       // of parts_->storage, which nobody replaces meanwhile
  std::uint64_t detaches_ = 0;      // begun; which one a waiter waits for
  std::string configured_backend_;  // its name; after a detach, that of the one before; empty: there was none
  std::string extra_config_;        // ... as it was given
  BackendOptions storage_options_;  // ... and what it said then
  PrefetchPolicy prefetch_policy_;
  WritePolicy write_policy_;
  TimePoint next_publish_;
  bool was_at_rest_ = false;

  mutable RankedMutex mutex_{LockRank::kEngine};
  std::vector<std::unique_ptr<Sequence>> submitted_ LARDER_GUARDED_BY(mutex_);
  std::vector<Leaving> leaving_ LARDER_GUARDED_BY(mutex_);
  std::vector<Command> commands_ LARDER_GUARDED_BY(mutex_);
  std::size_t waiting_ LARDER_GUARDED_BY(mutex_) = 0;  // in the loop's line, as of its last mail or admission
  Ticket next_ticket_ LARDER_GUARDED_BY(mutex_) = 1;
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  Status failure_ LARDER_GUARDED_BY(mutex_);  // not ok: stopping because of an exception
  SchedulerStats last_stats_ LARDER_GUARDED_BY(mutex_);

  std::atomic<std::uint64_t> ended_waits_{0};  // relaxed: a wait that just misses it ends when asked again

  std::unique_ptr<ThreadPoolExecutor> thread_;  // last: it ends before what it uses
};

template <class T>
Result<T> SchedulerImpl::call(std::function<void(Promise<T>)> ask, Nanos limit, CommandKind kind) {
  const std::uint64_t turn = ended_waits_.load(std::memory_order_relaxed);
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> answer = promise->get_future();
  const auto thrown = std::make_shared<Status>();  // the loop's until the promise is dead
  // Moved in: the promise must die with the command when that is dropped unrun, so that the wait ends.
  LARDER_RETURN_IF_ERROR(post([ask = std::move(ask), promise = std::move(promise), thrown, kind] {
    try {
      ask(promise);
    } catch (...) {
      if (kind == CommandKind::kChanges) throw;
      *thrown = internal_error("the scheduler could not answer: " + exception_text());
    }
  }));
  for (Nanos left = answer_wait(limit, kind); answer.wait_for(std::min(left, kWaitSlice)) != std::future_status::ready;
       left -= kWaitSlice) {
    if (left <= kWaitSlice) return deadline_exceeded("the scheduler is busy; the request may still be carried out");
    if (ended_waits_.load(std::memory_order_relaxed) != turn) {
      return cancelled("nobody waits any more; the request may still be carried out");
    }
  }
  try {
    return answer.get();
  } catch (const std::future_error&) {  // the command was dropped
    if (!thrown->is_ok()) return *thrown;
    LockGuard guard(mutex_);
    return why_stopped();
  }
}

}  // namespace larder
