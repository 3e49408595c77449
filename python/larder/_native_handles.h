// SPDX-License-Identifier: Apache-2.0
// Handles that may be closed while other threads are inside them.
//
// Every call passes a gate; closing shuts it and waits until all have left. So a call on a closed handle is an error,
// and the C interface's rules (no close while a call uses the handle, no use in a child of fork()) hold whatever Python
// does: a child that ends closes what it has a copy of, and would wait for threads that only its parent has.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "_native_arguments.h"
#include "_native_exit.h"
#include "_native_log.h"
#include "larder/larder.h"

namespace larder_python {

// A moment at which all waits that share it end.
class Deadline {
 public:
  explicit Deadline(double seconds)  // 0 or less: none
      : is_limited_(seconds > 0),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(is_limited_ ? std::min(seconds, kLongest) : 0.0))) {}
  template <typename IsReady>
  bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, IsReady is_ready) const {
    if (is_limited_) {
      return changed.wait_until(lock, end_, is_ready);
    }
    changed.wait(lock, is_ready);
    return true;
  }
  bool lock(std::unique_lock<std::timed_mutex>& lock) const {
    if (is_limited_) {
      return lock.try_lock_until(end_);
    }
    lock.lock();
    return true;
  }
  // Above 0 also when it is over; without a limit `otherwise`.
  [[nodiscard]] double left(double otherwise) const {
    constexpr double kLeast = 0.001;
    return is_limited_ ? std::max(kLeast, std::chrono::duration<double>(end_ - Clock::now()).count()) : otherwise;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kLongest = 1e7;  // as the C interface has it

  bool is_limited_;
  Clock::time_point end_;
};

// Calls enter and leave; closing shuts the gate and waits until all have left.
class Gate {
 public:
  // False: in a child of fork(), where a thread may have taken the lock with it.
  [[nodiscard]] bool is_of_this_process() const { return process_ == getpid(); }
  bool enter() {
    if (!is_of_this_process()) {
      return false;
    }
    const std::lock_guard lock(mutex_);
    if (is_shut_) {
      return false;
    }
    ++inside_;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) {
      empty_.notify_all();
    }
  }
  // False: some had not left in time. The gate stays shut.
  bool shut_and_wait(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    is_shut_ = true;
    return deadline.wait(empty_, lock, [this] { return inside_ == 0; });
  }

 private:
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable empty_;
  int inside_ = 0;
  bool is_shut_ = false;
};

struct SpaceState;

struct StoreState {
  Gate gate;  // calls of its namespaces pass it, too
  larder_store* handle = nullptr;
  std::shared_ptr<LogRelay> log;  // null: silent
  std::timed_mutex closing;       // held while the library closes the store
  std::mutex mutex;               // of the namespaces
  std::condition_variable space_closed;
  std::vector<std::weak_ptr<SpaceState>> spaces;
  int open_spaces = 0;                // that the library has; a namespace that is being dropped counts, too
  std::atomic<bool> was_late{false};  // a close ended at its deadline

  bool enter() { return gate.enter(); }
  void leave() { gate.leave(); }
  void add(const std::shared_ptr<SpaceState>& space) {
    const std::lock_guard lock(mutex);
    ++open_spaces;
    std::erase_if(spaces, [](const std::weak_ptr<SpaceState>& one) { return one.expired(); });
    spaces.push_back(space);
  }
  void note_closed_space() {
    const std::lock_guard lock(mutex);
    --open_spaces;
    space_closed.notify_all();
  }
  // Without the GIL. Closes the namespaces first. LARDER_DEADLINE_EXCEEDED leaves the handle open, to be closed again;
  // calls are refused from then on. timeout_seconds: of all of it; 0: none for calls in other threads, then the
  // store's own. log_seconds: for the log function to have the last lines, at most. In a child of fork() it does
  // nothing.
  larder_code close(double timeout_seconds, double log_seconds, larder_error* error) {
    const larder_code code = gate.is_of_this_process() ? try_close(timeout_seconds, log_seconds, error) : LARDER_OK;
    if (code == LARDER_DEADLINE_EXCEEDED) {
      was_late.store(true);
    }
    return code;
  }
  ~StoreState();

 private:
  larder_code try_close(double timeout_seconds, double log_seconds, larder_error* error);
  bool close_spaces(const Deadline& deadline);
};

struct SpaceState {
  Gate gate;
  larder_space* handle = nullptr;
  std::shared_ptr<StoreState> store;
  std::mutex mutex;  // of close()

  bool enter() {
    if (!store->enter()) {
      return false;
    }
    if (gate.enter()) {
      return true;
    }
    store->leave();
    return false;
  }
  void leave() {
    gate.leave();
    store->leave();
  }
  // Without the GIL. In a child of fork() it does nothing.
  void close() {
    if (!gate.is_of_this_process()) {
      return;
    }
    (void)gate.shut_and_wait(Deadline(0));
    const std::lock_guard lock(mutex);
    if (handle != nullptr) {
      larder_space_close(std::exchange(handle, nullptr));
      store->note_closed_space();
    }
  }
  ~SpaceState() { close(); }
};

// False: another thread drops one, and was not done in time.
inline bool StoreState::close_spaces(const Deadline& deadline) {
  std::vector<std::weak_ptr<SpaceState>> open;
  std::unique_lock lock(mutex);
  open.swap(spaces);
  lock.unlock();
  for (const std::weak_ptr<SpaceState>& space : open) {
    if (const std::shared_ptr<SpaceState> state = space.lock()) {
      state->close();
    }
  }
  lock.lock();
  return deadline.wait(space_closed, lock, [this] { return open_spaces == 0; });
}

inline larder_code StoreState::try_close(double timeout_seconds, double log_seconds, larder_error* error) {
  const auto late = [error](const char* message) {
    error->code = LARDER_DEADLINE_EXCEEDED;
    std::strncpy(error->message, message, sizeof(error->message) - 1);
    return LARDER_DEADLINE_EXCEEDED;
  };
  const Deadline deadline(timeout_seconds);
  if (!gate.shut_and_wait(deadline)) {
    return late("calls of other threads are still in the store; close it again when they have ended");
  }
  // No namespace is opened from here on, and no call is in one.
  std::unique_lock lock(closing, std::defer_lock);
  if (!deadline.lock(lock)) {
    return late("another thread is closing the store");
  }
  if (handle == nullptr) {
    return LARDER_OK;
  }
  if (!close_spaces(deadline)) {
    return late("another thread is closing a namespace of the store");
  }
  const larder_code code = larder_store_close(handle, deadline.left(timeout_seconds), error);
  if (code != LARDER_OK) {
    return code;  // it is open, and may be closed again
  }
  handle = nullptr;
  if (log != nullptr) {
    log->finish(std::min(log_seconds, deadline.left(log_seconds)));
  }
  return LARDER_OK;
}

// Takes no GIL: it may run under or without it.
inline StoreState::~StoreState() {
  // At the end of the interpreter a store that was late is not waited for again.
  if (!was_late.load() || !g_interpreter_ends.load()) {
    larder_error error{};
    (void)close(0.0, 0.0, &error);  // the log function may need a lock that is held around the drop
  }
  if (log != nullptr && handle != nullptr) {
    (void)new std::shared_ptr<LogRelay>(log);  // the library may write to it; nobody is there to close the store again
  }
}

// A call inside a handle: raises if the handle is closed. Made and ended under or without the GIL.
template <typename State>
class Inside {
 public:
  explicit Inside(const std::shared_ptr<State>& state) : state_(state) {
    if (!state_->enter()) {
      raise_argument(state_->gate.is_of_this_process() ? "the handle is closed"
                                                       : "the handle is that of the process before fork()");
    }
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { state_->leave(); }

 private:
  std::shared_ptr<State> state_;
};

struct Cancel {
  larder_cancel* handle = larder_cancel_new();
  Cancel() {
    if (handle == nullptr) {
      throw std::bad_alloc();
    }
  }
  Cancel(const Cancel&) = delete;
  Cancel& operator=(const Cancel&) = delete;
  ~Cancel() { larder_cancel_free(handle); }
  void set() { larder_cancel_set(handle); }
};

inline larder_terms make_terms(double timeout_seconds, uint32_t flags, Cancel* cancel) {
  larder_terms terms{};
  terms.struct_size = sizeof(terms);
  terms.flags = flags;
  terms.timeout_seconds = timeout_seconds;
  terms.cancel = cancel == nullptr ? nullptr : cancel->handle;
  return terms;
}

}  // namespace larder_python
