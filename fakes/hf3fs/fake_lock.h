// SPDX-License-Identifier: Apache-2.0
// std::mutex that clang's thread-safety analysis knows. The fake stands for a foreign library, so its locks have no
// rank. Order: World's tables, then a ring, then the engine's queue; never two of a kind; none during I/O but a
// chunk's.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace larder::hf3fs {

class LARDER_CAPABILITY("mutex") FakeMutex {
 public:
  void lock() LARDER_ACQUIRE() { mutex_.lock(); }
  void unlock() LARDER_RELEASE() { mutex_.unlock(); }

 private:
  friend class FakeCondition;
  std::mutex mutex_;
};

class LARDER_SCOPED_CAPABILITY FakeGuard {
 public:
  explicit FakeGuard(FakeMutex& mutex) LARDER_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~FakeGuard() LARDER_RELEASE() { mutex_.unlock(); }
  FakeGuard(const FakeGuard&) = delete;
  FakeGuard& operator=(const FakeGuard&) = delete;

 private:
  FakeMutex& mutex_;
};

// Waits release `mutex`, may wake without cause.
class FakeCondition {
 public:
  void notify_all() { condition_.notify_all(); }
  void notify_one() { condition_.notify_one(); }
  void wait(FakeMutex& mutex) LARDER_REQUIRES(mutex) LARDER_NO_THREAD_SAFETY {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    (void)lock.release();
  }
  // False when `when` has come.
  template <class Time>
  bool wait_until(FakeMutex& mutex, Time when) LARDER_REQUIRES(mutex) LARDER_NO_THREAD_SAFETY {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool is_in_time = condition_.wait_until(lock, when) == std::cv_status::no_timeout;
    (void)lock.release();
    return is_in_time;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace larder::hf3fs
