// SPDX-License-Identifier: Apache-2.0
// Handles that may be closed while other threads are inside them, and the log function.
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
#include "larder/larder.h"

namespace larder_python {

// ---- log ----

// One function per process, as the C interface has it. Messages may come from any thread, also while the interpreter
// ends: from then on they are dropped.
inline std::atomic<PyObject*> g_log{nullptr};
inline std::atomic<bool> g_interpreter_ends{false};

inline void write_log(void*, int32_t level, const char* where, const char* message) {
  if (g_interpreter_ends.load() || g_log.load() == nullptr) {
    return;
  }
  const nb::gil_scoped_acquire gil;
  PyObject* log = g_log.load();
  if (log == nullptr) {
    return;
  }
  Py_INCREF(log);  // the call may let another thread replace it
  PyObject* text = PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace");
  PyObject* answer =
      text == nullptr ? nullptr : PyObject_CallFunction(log, "isO", static_cast<int>(level), where, text);
  Py_XDECREF(text);
  if (answer == nullptr) {
    PyErr_WriteUnraisable(log);
  }
  Py_XDECREF(answer);
  Py_DECREF(log);
}

// Puts a log function in force while a store is opened with it; for good if it could be. Under the GIL.
class LogChange {
 public:
  // None: nothing changes.
  explicit LogChange(const nb::object& log) {
    if (!log.is_none()) {
      mine_ = log.ptr();
      Py_INCREF(mine_);
      before_ = g_log.exchange(mine_);
    }
  }
  LogChange(const LogChange&) = delete;
  LogChange& operator=(const LogChange&) = delete;
  void keep() { is_kept_ = true; }
  ~LogChange() {
    // A store that was opened meanwhile has its own: then `mine_` is what that one will let go of.
    PyObject* now = mine_;
    const bool is_back = !is_kept_ && mine_ != nullptr && g_log.compare_exchange_strong(now, before_);
    Py_XDECREF(is_back ? mine_ : before_);
  }

 private:
  PyObject* mine_ = nullptr;
  PyObject* before_ = nullptr;
  bool is_kept_ = false;
};

// ---- handles ----

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
  // False: some had not left after so many seconds (0: no limit). The gate stays shut.
  bool shut_and_wait(double seconds) {
    std::unique_lock lock(mutex_);
    is_shut_ = true;
    const auto is_empty = [this] { return inside_ == 0; };
    if (seconds > 0) {
      constexpr double kLongest = 1e7;  // as the C interface has it
      return empty_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, kLongest)), is_empty);
    }
    empty_.wait(lock, is_empty);
    return true;
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
  std::mutex mutex;
  std::vector<std::weak_ptr<SpaceState>> spaces;  // guarded by mutex

  bool enter() { return gate.enter(); }
  void leave() { gate.leave(); }
  // Without the GIL. Closes the namespaces first. LARDER_DEADLINE_EXCEEDED leaves the handle open, to be closed again;
  // calls are refused from then on. timeout_seconds: for calls in other threads (0: no limit), and again for the store
  // (0: its own). In a child of fork() it does nothing.
  larder_code close(double timeout_seconds, larder_error* error);
  ~StoreState() {
    larder_error error{};
    (void)close(0.0, &error);  // what is left then keeps its memory: nobody is there to close it again
  }
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
    (void)gate.shut_and_wait(0);
    const std::lock_guard lock(mutex);
    if (handle != nullptr) {
      larder_space_close(std::exchange(handle, nullptr));
    }
  }
  ~SpaceState() { close(); }
};

inline larder_code StoreState::close(double timeout_seconds, larder_error* error) {
  if (!gate.is_of_this_process()) {
    return LARDER_OK;
  }
  if (!gate.shut_and_wait(timeout_seconds)) {
    constexpr char kMessage[] = "calls of other threads are still in the store; close it again when they have ended";
    error->code = LARDER_DEADLINE_EXCEEDED;
    std::memcpy(error->message, kMessage, sizeof(kMessage));
    return LARDER_DEADLINE_EXCEEDED;
  }
  // No namespace is opened from here on, and no call is in one.
  std::vector<std::weak_ptr<SpaceState>> open;
  {
    const std::lock_guard lock(mutex);
    open.swap(spaces);
  }
  for (const std::weak_ptr<SpaceState>& space : open) {
    if (const std::shared_ptr<SpaceState> state = space.lock()) {
      state->close();
    }
  }
  const std::lock_guard lock(mutex);
  if (handle == nullptr) {
    return LARDER_OK;
  }
  const larder_code code = larder_store_close(handle, timeout_seconds, error);
  if (code == LARDER_OK) {
    handle = nullptr;  // else it is open, and may be closed again
  }
  return code;
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
  ~Cancel() {
    const nb::gil_scoped_release released;
    larder_cancel_free(handle);
  }
  void set() {
    const nb::gil_scoped_release released;
    larder_cancel_set(handle);
  }
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
