// SPDX-License-Identifier: Apache-2.0
// The GIL, and the end of the interpreter while other threads go on calling.
//
// Before Python 3.14 a thread that asks for the GIL then is ended where it stands, and the frames of C++ that are on
// its stack do not survive that. So at_interpreter_end() waits for the threads that have frames of the module and hold
// the GIL, or ask for it. From then on a call by another thread raises SystemExit, which ends a thread silently and
// makes it give up its locks: handlers of atexit that run later may wait for both. A thread that comes back from the
// library only then sleeps for ever, as Python 3.14 has it.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace nb = nanobind;

namespace larder_python {

inline std::atomic<bool> g_interpreter_ends{false};
inline std::atomic<bool> g_patience_is_over{false};   // nobody is waited for any more
inline pthread_t g_ending_thread{};                   // set before g_interpreter_ends
inline std::atomic<int> g_threads_in_frames{0};       // those that at_interpreter_end() waits for
inline thread_local int g_frames_of_this_thread = 0;  // 0: also while it is in the library, without the GIL

inline bool ends_elsewhere() {
  return g_interpreter_ends.load() && pthread_equal(pthread_self(), g_ending_thread) == 0;
}

[[noreturn]] inline void sleep_for_ever() {
  for (;;) {
    (void)pause();
  }
}

struct LastLeft {
  std::mutex mutex;  // of nothing: what is waited for is atomic
  std::condition_variable changed;
};
// Never destroyed: threads come back from the library after that, too.
inline LastLeft& last_left() {
  static auto* const signal = new LastLeft;
  return *signal;
}

inline void leave_frames() {
  if (g_threads_in_frames.fetch_sub(1) == 1 && g_interpreter_ends.load()) {
    const std::lock_guard lock(last_left().mutex);
    last_left().changed.notify_all();
  }
}

// Counts this thread. False, and not counted: it may not go on.
inline bool enter_frames() {
  g_threads_in_frames.fetch_add(1);
  if (ends_elsewhere()) {
    leave_frames();
    return false;
  }
  return true;
}

// A function of the module, from its begin to its end. Made and ended under the GIL. Raises SystemExit where
// ends_elsewhere().
class Frame {
 public:
  Frame() {
    if (!enter_frames()) {
      PyErr_SetNone(PyExc_SystemExit);
      throw nb::python_error();
    }
    if (g_frames_of_this_thread > 0) {
      leave_frames();  // the frame around this one counts
    }
    ++g_frames_of_this_thread;
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() {
    if (--g_frames_of_this_thread == 0) {
      leave_frames();
    }
  }
};

// Without the GIL, inside a Frame: around calls of the library.
class Released {
 public:
  Released() : frames_(g_frames_of_this_thread), thread_(PyEval_SaveThread()) {
    g_frames_of_this_thread = 0;
    leave_frames();
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    if (!enter_frames()) {
      sleep_for_ever();
    }
    PyEval_RestoreThread(thread_);
    g_frames_of_this_thread = frames_;
  }

 private:
  const int frames_;
  PyThreadState* const thread_;
};

// Without the GIL, inside a Frame that goes on counting: in a destructor, around the close of a handle.
// at_interpreter_end() waits for it, so a handle that is dropped under a lock does not keep the lock.
class Closing {
 public:
  Closing() : thread_(PyEval_SaveThread()) {}
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;
  ~Closing() {
    if (g_patience_is_over.load() && ends_elsewhere()) {
      sleep_for_ever();
    }
    PyEval_RestoreThread(thread_);
  }

 private:
  PyThreadState* const thread_;
};

// With the GIL, on a thread of the module's own, which has no Frame.
inline PyGILState_STATE acquire() {
  if (!enter_frames()) {
    sleep_for_ever();
  }
  g_frames_of_this_thread = 1;
  return PyGILState_Ensure();
}
inline void release(PyGILState_STATE state) {
  PyGILState_Release(state);
  g_frames_of_this_thread = 0;
  leave_frames();
}

// By the module, once: a child of fork() has one thread.
inline void count_anew_after_fork() {
  (void)pthread_atfork(nullptr, nullptr, [] { g_threads_in_frames.store(g_frames_of_this_thread > 0 ? 1 : 0); });
}

// By the thread that ends the interpreter, outside any Frame, under the GIL. Waits 2 s at most: a log function, or a
// close, may take longer.
inline void at_interpreter_end() {
  g_ending_thread = pthread_self();
  g_interpreter_ends.store(true);
  PyThreadState* const thread = PyEval_SaveThread();
  {
    std::unique_lock lock(last_left().mutex);
    constexpr std::chrono::seconds kPatience{2};
    (void)last_left().changed.wait_for(lock, kPatience, [] { return g_threads_in_frames.load() <= 0; });
    g_patience_is_over.store(true);
  }
  PyEval_RestoreThread(thread);
}

}  // namespace larder_python
