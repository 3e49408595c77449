// SPDX-License-Identifier: Apache-2.0
// A Scheduler without a model: answers at once, or when told to, from a thread of its own.
//
// Token i of an answer is (sum of the prompt + i) % 256, so that a test can say what must come. Stricter than the real
// one where it can be: it calls back from another thread, token by token, and counts what it was asked.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "engine/scheduler.h"

namespace larder {

class FakeScheduler final : public Scheduler {
 public:
  explicit FakeScheduler(Options options) : options_(std::move(options)), thread_("fake", 1, 4096) {
    model_.id = "fake";
    model_.vocab_size = 300;
    model_.context_length = 100'000;
  }

  // While held, requests wait for step().
  void hold() {
    LockGuard guard(mutex_);
    is_held_ = true;
  }
  // Gives each open request one token.
  void step() {
    (void)thread_.post([this] { give_tokens(1); });
  }
  void release() {
    {
      LockGuard guard(mutex_);
      is_held_ = false;
    }
    (void)thread_.post([this] { give_tokens(~0ull); });
  }
  void fail_next_submit(Status status) {
    LockGuard guard(mutex_);
    next_submit_ = std::move(status);
  }
  void fail_next_request(Status status) {
    LockGuard guard(mutex_);
    next_request_ = std::move(status);
  }
  // Of the requests from here on.
  void set_miss(const Miss& miss) {
    LockGuard guard(mutex_);
    miss_ = miss;
  }
  void fail_next_attach(Status status) {
    LockGuard guard(mutex_);
    next_attach_ = std::move(status);
  }
  void set_flush_status(Status status) {
    LockGuard guard(mutex_);
    flush_ = std::move(status);
  }
  // As long as a store that does not answer: nothing that waits for it ends by itself within a test.
  static constexpr Nanos kHangs = std::chrono::seconds(60);
  // While held, stats() does not answer.
  void hold_stats() { set_held(is_stats_held_, true); }
  void release_stats() { set_held(is_stats_held_, false); }
  // Until somebody waits in it.
  void wait_stats() { wait_for(in_stats_); }
  // The next clear hangs.
  void hold_clear() { set_held(is_clear_held_, true); }
  void wait_clear() { wait_for(in_clear_); }
  // The next attach hangs in opening its backend, whoever waits for it.
  void hold_attach() { set_held(is_attach_held_, true); }
  void release_attach() { set_held(is_attach_held_, false); }
  void wait_attach() { wait_for(in_attach_); }
  // Waits until `count` requests have been cancelled.
  void wait_cancelled(std::size_t count) {
    LockGuard guard(mutex_);
    while (cancelled_ < count) changed_.wait(mutex_);
  }
  void wait_open(std::size_t count) {
    LockGuard guard(mutex_);
    while (open_.size() < count) changed_.wait(mutex_);
  }
  std::size_t open_requests() {
    LockGuard guard(mutex_);
    return open_.size();
  }
  GenerateRequest last_request() {
    LockGuard guard(mutex_);
    return last_;
  }

  Result<Ticket> submit(GenerateRequest request, Update update) override {
    LockGuard guard(mutex_);
    if (!next_submit_.is_ok()) return std::exchange(next_submit_, Status{});
    if (request.tokens.size() + request.max_new_tokens > model_.context_length) {
      return invalid_argument("prompt and max_new_tokens go beyond the context");
    }
    const Ticket ticket = ++last_ticket_;
    last_ = request;
    open_[ticket] = {std::move(request), std::move(update), 0, std::exchange(next_request_, Status{})};
    changed_.notify_all();
    if (!is_held_) (void)thread_.post([this] { give_tokens(~0ull); });
    return ticket;
  }

  // Of those that somebody ended early because it had all that it wanted.
  std::size_t finished() {
    LockGuard guard(mutex_);
    return finished_;
  }
  void cancel(Ticket ticket) override { drop(ticket, false); }
  void finish(Ticket ticket) override { drop(ticket, true); }

  Status flush(Nanos) override {
    LockGuard guard(mutex_);
    return flush_;
  }
  Status quiesce(Nanos) override { return Status::ok(); }
  Status attach_storage(const AttachRequest& request, Nanos) override {
    const TimePoint end = real_clock().now() + kHangs;
    LockGuard guard(mutex_);
    enter(in_attach_);
    while (is_attach_held_ && real_clock().now() < end) changed_.wait_for(mutex_, kHangs);
    if (!next_attach_.is_ok()) return std::exchange(next_attach_, Status{});
    if (!storage_.backend.empty() && storage_.backend != request.backend) return conflict("Detach first.");
    storage_ = {request.backend, request.extra_config, "timeout", "write_through", false};
    return Status::ok();
  }
  Status detach_storage(Nanos) override {
    LockGuard guard(mutex_);
    storage_ = {"", "", "timeout", "write_through", false};
    return Status::ok();
  }
  Result<PreparedStorage> prepare_storage(const AttachRequest&, Nanos) override { return unsupported("fake"); }
  Result<PreparedStorage> switch_storage(PreparedStorage, Nanos) override { return unsupported("fake"); }
  void retire_storage(PreparedStorage) override {}
  Status clear_storage(Nanos limit) override {
    {
      const TimePoint end = real_clock().now() + limit;
      LockGuard guard(mutex_);
      enter(in_clear_);
      const std::size_t turn = ended_waits_;
      while (is_clear_held_ && real_clock().now() < end) {
        if (ended_waits_ != turn) return cancelled("nobody waits any more");
        changed_.wait_for(mutex_, kHangs);
      }
    }
    return storage().backend.empty() ? invalid_argument("none") : Status::ok();
  }
  void end_waits() override {
    LockGuard guard(mutex_);
    ++ended_waits_;
    changed_.notify_all();
  }
  StorageView storage() override {
    LockGuard guard(mutex_);
    return storage_;
  }
  Result<Explanation> explain(const GenerateRequest& request, Nanos) override {
    Explanation e;
    e.prompt_tokens = request.tokens.size();
    e.prompt_pages = request.tokens.size() / model_.page_size;
    e.device_restore_pages = 1;
    e.host_restore_pages = 2;
    e.storage_restore_pages = 2;
    e.host_reason = "page 2 of kv is absent on the host";
    e.pools.push_back({"full", "kv", 1, 2, 2, 2});
    return e;
  }
  SchedulerStats stats() override {
    {
      const TimePoint end = real_clock().now() + kHangs;
      LockGuard guard(mutex_);
      enter(in_stats_);
      while (is_stats_held_ && real_clock().now() < end) changed_.wait_for(mutex_, kHangs);
    }
    SchedulerStats stats;
    stats.tiers.push_back({"device", "full", 3, 10, 300, 1000});
    stats.tiers.push_back({"host", "full", 4, 20, 400, 2000});
    stats.storage = BackendStats{};
    stats.storage_in_force = storage();
    return stats;
  }
  const ModelSpec& model() const override { return model_; }
  const Options& options() const override { return options_; }

 private:
  struct Open {
    GenerateRequest request;
    Update update;
    std::uint64_t done = 0;
    Status failure;
  };

  void set_held(bool& flag, bool is_held) {
    LockGuard guard(mutex_);
    flag = is_held;
    changed_.notify_all();
  }
  void enter(std::size_t& calls) LARDER_REQUIRES(mutex_) {
    ++calls;
    changed_.notify_all();
  }
  void wait_for(const std::size_t& calls) {
    LockGuard guard(mutex_);
    while (calls == 0) changed_.wait(mutex_);
  }

  void drop(Ticket ticket, bool is_finished) {
    Open dropped;
    LockGuard guard(mutex_);
    ++(is_finished ? finished_ : cancelled_);
    const auto found = open_.find(ticket);
    if (found != open_.end()) {
      dropped = std::move(found->second);
      open_.erase(found);
    }
    changed_.notify_all();
  }

  void give_tokens(std::uint64_t most) {
    std::vector<Ticket> tickets;
    {
      LockGuard guard(mutex_);
      for (const auto& [ticket, open] : open_) tickets.push_back(ticket);
    }
    for (const Ticket ticket : tickets) {
      for (std::uint64_t i = 0; i < most && give_one(ticket); ++i) {}
    }
  }

  // False when the request is over.
  bool give_one(Ticket ticket) {
    GenerateUpdate update;
    Update call;
    {
      LockGuard guard(mutex_);
      const auto found = open_.find(ticket);
      if (found == open_.end()) return false;
      Open& open = found->second;
      update = next_update(open);
      call = open.update;
      if (update.finish != FinishReason::kRunning || !update.status.is_ok()) open_.erase(found);
    }
    call(update);
    return update.finish == FinishReason::kRunning && update.status.is_ok();
  }

  GenerateUpdate next_update(Open& open) const LARDER_REQUIRES(mutex_) {
    GenerateUpdate update;
    update.cached.prompt = open.request.tokens.size();
    update.cached.device = 3;
    update.cached.host = 2;
    update.cached.storage = 1;
    update.cached.miss = miss_;
    update.cached.request = RequestId(12);
    update.status = open.failure;
    if (!update.status.is_ok()) return update;
    std::uint64_t sum = 0;
    for (const TokenId token : open.request.tokens) sum += token;
    const auto token = static_cast<TokenId>((sum + open.done) % 256);
    update.new_tokens = {token};
    update.completion_tokens = ++open.done;
    update.ttft_seconds = 0.5;
    for (const TokenId stop : open.request.stop_tokens) {
      if (stop == token) update.finish = FinishReason::kStop;
    }
    if (open.done == open.request.max_new_tokens) update.finish = FinishReason::kLength;
    return update;
  }

  ModelSpec model_;
  const Options options_;
  RankedMutex mutex_{LockRank::kEngine};
  RankedCondition changed_;
  std::map<Ticket, Open> open_;
  Ticket last_ticket_ = 0;
  std::size_t cancelled_ = 0, finished_ = 0;
  Miss miss_ LARDER_GUARDED_BY(mutex_);
  bool is_held_ = false, is_stats_held_ = false, is_clear_held_ = false, is_attach_held_ = false;
  std::size_t in_stats_ = 0, in_clear_ = 0, in_attach_ = 0;  // calls so far
  std::size_t ended_waits_ = 0;
  Status next_submit_, next_request_, next_attach_, flush_;
  GenerateRequest last_;
  StorageView storage_{"file", "", "timeout", "write_through", false};
  ThreadPoolExecutor thread_;
};

}  // namespace larder
