// SPDX-License-Identifier: Apache-2.0
// Brings the lines of a store's log to a Python function.
//
// The library logs under locks of its own, on any thread. Python code is not run there: it may wait for a lock that
// another thread holds while that one waits for the library, and a garbage collection in it may close another store. So
// the line is put into a queue, and a thread of the relay's own calls the function.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "_native_arguments.h"
#include "_native_exit.h"
#include "larder/larder.h"

namespace larder_python {

class LogRelay {
 public:
  // Under the GIL.
  static std::shared_ptr<LogRelay> start(PyObject* function) {
    auto relay = std::make_shared<LogRelay>();
    auto own = std::make_unique<std::shared_ptr<LogRelay>>(relay);
    // Nobody joins the thread: the end of the interpreter may find it in the function, or asleep for ever.
    pthread_attr_t detached;
    (void)pthread_attr_init(&detached);
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t thread{};
    const int failure = pthread_create(&thread, &detached, &LogRelay::run_own, own.get());
    (void)pthread_attr_destroy(&detached);
    if (failure != 0) {
      raise_error(LARDER_OVERLOADED, "the log: the system has no thread to spare");
    }
    (void)own.release();
    Py_INCREF(function);
    relay->function_ = function;
    return relay;
  }

  // larder_log_fn; context: the relay.
  static void write(void* context, int32_t level, const char* where, const char* message) noexcept {
    auto* relay = static_cast<LogRelay*>(context);
    if (g_interpreter_ends.load() || relay->process_ != getpid()) {
      return;  // a child of fork() has no thread that would bring it
    }
    try {
      const std::lock_guard lock(relay->mutex_);
      if (relay->lines_.size() < kMostLines) {
        relay->lines_.push_back({level, where, message});
        relay->changed_.notify_all();
      } else {
        ++relay->lost_;
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for a line
    }
  }

  // Without the GIL, when no line comes any more: waits until all are brought and the function is let go, `seconds` at
  // most. Later lines are brought all the same.
  void finish(double seconds) {
    std::unique_lock lock(mutex_);
    is_finished_ = true;
    changed_.notify_all();
    if (reader_ == std::this_thread::get_id() || g_interpreter_ends.load()) {
      return;  // the function closes its own store; or nothing is brought any more
    }
    (void)changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_done_; });
  }

  // Under the GIL. Null once it is let go: by the relay's thread after the last line, or sooner by the garbage
  // collector.
  [[nodiscard]] PyObject* function() const { return function_; }
  void let_go() { Py_XDECREF(std::exchange(function_, nullptr)); }

 private:
  static constexpr std::size_t kMostLines = 1024;

  struct Line {
    int32_t level = 0;
    std::string where;
    std::string message;
  };

  static void* run_own(void* relay) {
    const std::unique_ptr<std::shared_ptr<LogRelay>> own(static_cast<std::shared_ptr<LogRelay>*>(relay));
    (*own)->run();
    return nullptr;
  }

  void run() {
    std::unique_lock lock(mutex_);
    reader_ = std::this_thread::get_id();
    for (;;) {
      changed_.wait(lock, [this] { return is_finished_ || !lines_.empty(); });
      if (lines_.empty()) {
        break;
      }
      Line line = std::move(lines_.front());
      lines_.pop_front();
      const uint64_t lost = lines_.empty() ? std::exchange(lost_, 0) : 0;
      lock.unlock();
      bring(line);
      if (lost > 0) {
        constexpr int32_t kWarning = 2;
        bring({kWarning, "log", std::to_string(lost) + " lines are lost: the log function is too slow"});
      }
      lock.lock();
    }
    lock.unlock();
    const PyGILState_STATE state = acquire();
    let_go();
    release(state);
    lock.lock();
    is_done_ = true;
    changed_.notify_all();
  }

  void bring(const Line& line) {
    const PyGILState_STATE state = acquire();
    if (function_ != nullptr) {
      PyObject* function = function_;
      Py_INCREF(function);  // the call may let another thread let it go
      call(function, line);
      Py_DECREF(function);
    }
    release(state);  // not by a destructor: a thread that Python ends in the function has no GIL
  }

  static void call(PyObject* function, const Line& line) {
    const std::string& message = line.message;
    PyObject* text = PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace");
    PyObject* answer = text == nullptr ? nullptr
                                       : PyObject_CallFunction(function, "isO", static_cast<int>(line.level),
                                                               line.where.c_str(), text);
    if (answer == nullptr) {
      PyErr_WriteUnraisable(function);
    }
    Py_XDECREF(text);
    Py_XDECREF(answer);
  }

  const pid_t process_ = getpid();
  PyObject* function_ = nullptr;  // guarded by the GIL
  std::mutex mutex_;              // of all below
  std::condition_variable changed_;
  std::deque<Line> lines_;
  uint64_t lost_ = 0;
  std::thread::id reader_;
  bool is_finished_ = false;
  bool is_done_ = false;
};

}  // namespace larder_python
