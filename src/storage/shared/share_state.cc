// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/share_state.h"

namespace larder::share {

Status ShareState::post(const ClientOperation& operation) {
  bool is_wanted = false;
  {
    LockGuard guard(mutex_);
    if (role_ != SharedRole::kClient || is_stopped_) {
      return unavailable("the shared store has no host now" +
                         (error_.is_ok() ? std::string() : ": " + error_.message()));
    }
    if (has_ended_clears_ && std::holds_alternative<std::shared_ptr<ClearOperation>>(operation)) {
      return cancelled("the shared store is being closed");
    }
    inbox_.operations.push_back(operation);
    is_wanted = must_wake();
  }
  wake_if(is_wanted);
  return Status::ok();
}

template <class Put>
void ShareState::put(const Put& put) {
  bool is_wanted = false;
  {
    LockGuard guard(mutex_);
    put(inbox_);
    is_wanted = must_wake();
  }
  wake_if(is_wanted);
}

void ShareState::post_copied(Copied copied) {
  put([&](Batch& inbox) { inbox.copied.push_back(copied); });
}
void ShareState::post_answer(Answer answer) {
  put([&](Batch& inbox) { inbox.answers.push_back(std::move(answer)); });
}
void ShareState::post_opened(Opened opened) {
  put([&](Batch& inbox) { inbox.opened.emplace(std::move(opened)); });
}

void ShareState::post_end_clears() {
  bool is_wanted = false;
  {
    LockGuard guard(mutex_);
    inbox_.is_ending_clears = has_ended_clears_ = true;
    is_wanted = must_wake();
  }
  wake_if(is_wanted);
}

void ShareState::post_stop() {
  bool is_wanted = false;
  {
    LockGuard guard(mutex_);
    inbox_.is_stopping = is_stopped_ = true;
    is_wanted = must_wake();
  }
  wake_if(is_wanted);
}

SharedRole ShareState::role() const {
  LockGuard guard(mutex_);
  return role_;
}

std::shared_ptr<HostedStore> ShareState::hosted() const {
  LockGuard guard(mutex_);
  return hosted_;
}

std::shared_ptr<HostedStore> ShareState::take_hosted() {
  LockGuard guard(mutex_);
  return std::move(hosted_);
}

BackendInfo ShareState::info() const {
  LockGuard guard(mutex_);
  return info_;
}

BackendStats ShareState::stats(TimePoint now, Nanos most_age) {
  bool is_wanted = false;
  BackendStats stats;
  {
    LockGuard guard(mutex_);
    stats = stats_;
    if (role_ == SharedRole::kClient && now - stats_at_ > most_age && !is_stopped_) {
      inbox_.is_asking_stats = true;
      is_wanted = must_wake();
    }
  }
  wake_if(is_wanted);
  return stats;
}

Status ShareState::wait_settled(std::chrono::nanoseconds limit) {
  const TimePoint end = real_clock().now() + limit;  // each try notifies: the end does not move with them
  LockGuard guard(mutex_);
  while (!is_settled_) {
    const Nanos left = end - real_clock().now();
    if (left > Nanos{0} || is_opening_) {
      (void)settled_.wait_for(mutex_, is_opening_ ? limit : left);
      continue;
    }
    return unavailable("no process has opened the store shared in " + directory_ +
                       " in time; is the one that has its lock stuck?" +
                       (error_.is_ok() ? std::string() : ": " + error_.message()));
  }
  return role_ == SharedRole::kSeeking ? error_ : Status::ok();
}

ClearMark ShareState::mark_of(const std::atomic<std::uint64_t> ClearWords::*count, const ClearMark& last) const {
  if (!words_) return last;
  return {mark_.store, (words_.get()->*count).load(std::memory_order_acquire)};  // pairs with ClearOrder's store
}

ClearMark ShareState::clear_mark() const {
  LockGuard guard(mutex_);
  return mark_of(&ClearWords::count, mark_);
}

ClearMark ShareState::emptied_mark() const {
  LockGuard guard(mutex_);
  return mark_of(&ClearWords::emptied, emptied_);
}

std::shared_ptr<const ClearWords> ShareState::keep_marks() {
  mark_ = mark_of(&ClearWords::count, mark_);
  emptied_ = mark_of(&ClearWords::emptied, emptied_);
  return std::move(words_);
}

ShareState::Batch ShareState::take() {
  LockGuard guard(mutex_);
  return std::exchange(inbox_, Batch{});
}

bool ShareState::may_wait() {
  LockGuard guard(mutex_);
  is_woken_ = !inbox_.is_empty();
  return !is_woken_;
}

void ShareState::end_wait() {
  LockGuard guard(mutex_);
  is_woken_ = true;
}

void ShareState::set_opening() {
  LockGuard guard(mutex_);
  is_opening_ = true;
}

void ShareState::set_seeking(const Status& why) {
  std::shared_ptr<const ClearWords> words;  // outlives the guard
  LockGuard guard(mutex_);
  words = keep_marks();
  role_ = SharedRole::kSeeking;
  error_ = why;
}

void ShareState::release_words() {
  std::shared_ptr<const ClearWords> words;  // outlives the guard
  LockGuard guard(mutex_);
  words = keep_marks();
}

void ShareState::set_marks(const ClearMark& mark, const ClearMark& emptied) {
  LockGuard guard(mutex_);
  mark_ = mark;
  emptied_ = emptied;
}

void ShareState::set_host(std::shared_ptr<HostedStore> hosted) {
  const BackendInfo info = hosted->inner->info();
  {
    LockGuard guard(mutex_);
    role_ = SharedRole::kHost;
    is_opening_ = false;
    hosted_ = std::move(hosted);
    info_ = info;
    is_settled_ = true;
  }
  settled_.notify_all();
}

void ShareState::set_client(const BackendInfo& info, const BackendStats& stats, TimePoint now,
                            std::uint64_t clears_store, std::shared_ptr<const ClearWords> words) {
  {
    LockGuard guard(mutex_);
    mark_ = emptied_ = {clears_store, 0};
    words_.swap(words);
    role_ = SharedRole::kClient;
    info_ = info;
    stats_ = stats;
    stats_at_ = now;
    is_settled_ = true;
  }
  settled_.notify_all();
}

void ShareState::set_stats(const BackendStats& stats, TimePoint now) {
  LockGuard guard(mutex_);
  stats_ = stats;
  stats_at_ = now;
}

void ShareState::set_error(const Status& error, bool is_final) {
  {
    LockGuard guard(mutex_);
    error_ = error;
    is_opening_ = false;
    is_settled_ = is_settled_ || is_final;
  }
  settled_.notify_all();
}

}  // namespace larder::share
