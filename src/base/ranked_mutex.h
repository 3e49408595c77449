// SPDX-License-Identifier: Apache-2.0
// A mutex that knows its place in the lock order (base/lock_rank.h) and aborts when the order is broken.
//
// Purpose: a wrong order is found the first time the path runs, not the first time two threads meet.
// The check is on in every build: it costs one thread-local compare (~1 ns). An abort prints both ranks to stderr.
// Threads: as std::mutex. A thread holds at most kMaxHeldLocks ranked locks.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>

#include "base/lock_rank.h"
#include "base/thread_annotations.h"

namespace larder {

inline constexpr int kMaxHeldLocks = 8;

class LARDER_CAPABILITY("mutex") RankedMutex {
 public:
  explicit RankedMutex(LockRank rank) : rank_(rank) {}
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  // Aborts if this thread holds a lock of this or a higher rank.
  void lock() LARDER_ACQUIRE();
  [[nodiscard]] bool try_lock() LARDER_TRY_ACQUIRE(true);
  void unlock() LARDER_RELEASE();

  [[nodiscard]] LockRank rank() const { return rank_; }

 private:
  friend class RankedCondition;
  friend class LockAll;
  // Aborts unless this lock is the last one that this thread took: a wait gives up no other.
  void check_last() const;

  const LockRank rank_;
  std::mutex mutex_;
};

// Holds a RankedMutex for a scope.
class LARDER_SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(RankedMutex& mutex) LARDER_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~LockGuard() LARDER_RELEASE() { mutex_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  RankedMutex& mutex_;
};

// Holds several mutexes of one rank for a scope; for this thread's lock order they are one lock. Thread-safety analysis
// cannot follow it: a function that uses it is LARDER_NO_THREAD_SAFETY.
class LockAll {
 public:
  // Ascending by address (std::less), each once, so that two threads never wait for each other: aborts otherwise, and
  // if their ranks differ. They outlive it. Empty: nothing is held.
  explicit LockAll(std::span<RankedMutex* const> mutexes);
  ~LockAll();
  LockAll(const LockAll&) = delete;
  LockAll& operator=(const LockAll&) = delete;

 private:
  const std::span<RankedMutex* const> mutexes_;
};

// A condition variable for RankedMutex. Write the wait as a loop around wait_for / wait, under a LockGuard of `mutex`:
//   LockGuard guard(mutex_);
//   while (!ready_) changed_.wait(mutex_);
// Aborts if the thread has taken another ranked lock since.
// (std::condition_variable_any has a mutex of its own and holds it while it notifies: the thread that wakes blocks on
// it at once, which costs each hand-over two more changes of threads.)
class RankedCondition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  // Releases `mutex` while it waits; may wake without cause.
  void wait(RankedMutex& mutex) LARDER_REQUIRES(mutex) LARDER_NO_THREAD_SAFETY {
    mutex.check_last();
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    (void)lock.release();
  }
  // False if `duration` ended first. Real time: code that runs under simulation does not come here.
  template <class Duration>
  bool wait_for(RankedMutex& mutex, Duration duration) LARDER_REQUIRES(mutex) LARDER_NO_THREAD_SAFETY {
    mutex.check_last();
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool is_in_time = condition_.wait_for(lock, duration) == std::cv_status::no_timeout;
    (void)lock.release();
    return is_in_time;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace larder
