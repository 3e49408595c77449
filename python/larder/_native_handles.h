// SPDX-License-Identifier: Apache-2.0
// Handles that may be closed while other threads are inside them, and the log function.
//
// Every call passes a gate; closing shuts it and waits until all have left. So a call on a closed handle is an error,
// and the C interface's rule (no close while a call uses the handle) holds whatever Python does.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
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

// ---- handles ----

// Calls enter and leave; closing shuts the gate and waits until all have left.
class Gate {
 public:
  bool enter() {
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
  void shut_and_wait() {
    std::unique_lock lock(mutex_);
    is_shut_ = true;
    empty_.wait(lock, [this] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  int inside_ = 0;
  bool is_shut_ = false;
};

struct SpaceState;

struct StoreState {
  Gate gate;
  larder_store* handle = nullptr;
  std::mutex mutex;
  std::vector<std::weak_ptr<SpaceState>> spaces;  // guarded by mutex

  // Without the GIL. Closes the namespaces first. LARDER_DEADLINE_EXCEEDED leaves the handle open.
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

  // Without the GIL.
  void close() {
    gate.shut_and_wait();
    const std::lock_guard lock(mutex);
    if (handle != nullptr) {
      larder_space_close(std::exchange(handle, nullptr));
    }
  }
  ~SpaceState() { close(); }
};

inline larder_code StoreState::close(double timeout_seconds, larder_error* error) {
  gate.shut_and_wait();  // no namespace is opened from here on
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
    if (!state_->gate.enter()) {
      raise_argument("the handle is closed");
    }
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { state_->gate.leave(); }

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
