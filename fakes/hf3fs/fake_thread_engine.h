// SPDX-License-Identifier: Apache-2.0
// Threads mode: workers that execute the I/O of jobs side by side. The last one of a job posts its completions.
//
// Threads: all methods from any thread; stop() joins the workers and must not run on one. One short lock per I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "fakes/hf3fs/fake_job.h"
#include "fakes/hf3fs/fake_lock.h"

namespace larder::hf3fs {

class ThreadEngine {
 public:
  explicit ThreadEngine(World& world) : world_(world) {}

  // Starts the workers if there are none.
  void start(std::uint32_t workers, std::uint64_t seed) LARDER_EXCLUDES(mutex_);
  void push(std::vector<JobPtr> jobs) LARDER_EXCLUDES(mutex_);
  // The daemon looks at the ring at `due_ms`.
  void scan_later(std::shared_ptr<FakeRing> ring, std::uint64_t due_ms) LARDER_EXCLUDES(mutex_);
  // A job stops here until release().
  void hold(JobPtr job) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t release() LARDER_EXCLUDES(mutex_);
  // The clock was moved.
  void wake() LARDER_EXCLUDES(mutex_);
  // Forgets all jobs; those that run now end without an effect on the ring.
  void drop_all() LARDER_EXCLUDES(mutex_);
  void wait_idle() LARDER_EXCLUDES(mutex_);
  void stop() LARDER_EXCLUDES(mutex_);

 private:
  struct Later {
    std::uint64_t due_ms = 0, order = 0;
    JobPtr job;  // one of the two
    std::shared_ptr<FakeRing> ring;
    bool operator<(const Later& other) const {
      return due_ms != other.due_ms ? due_ms < other.due_ms : order < other.order;
    }
  };

  void run_worker();
  // Does one thing, or waits for one.
  void work_once() LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_ready() const LARDER_REQUIRES(mutex_) { return !reads_.empty() || !writes_.empty(); }
  // Where the next I/O comes from; null: none may begin now.
  [[nodiscard]] std::deque<JobPtr>* next_queue() LARDER_REQUIRES(mutex_);
  void run_next_io(std::deque<JobPtr>& queue) LARDER_REQUIRES(mutex_);
  void add_ready(JobPtr job) LARDER_REQUIRES(mutex_) {
    std::deque<JobPtr>& queue = job->ring->settings.for_read ? reads_ : writes_;
    queue.push_back(std::move(job));
  }
  void place(JobPtr job) LARDER_REQUIRES(mutex_);
  // Moves what is due; rings to be scanned are given back.
  [[nodiscard]] std::vector<std::shared_ptr<FakeRing>> take_due() LARDER_REQUIRES(mutex_);

  World& world_;
  FakeMutex mutex_;
  FakeCondition changed_, idle_;
  std::deque<JobPtr> reads_ LARDER_GUARDED_BY(mutex_), writes_ LARDER_GUARDED_BY(mutex_);  // ready
  bool is_reads_turn_ LARDER_GUARDED_BY(mutex_) = false;
  std::size_t writing_ LARDER_GUARDED_BY(mutex_) = 0;  // of running_
  std::multiset<Later> later_ LARDER_GUARDED_BY(mutex_);
  std::vector<JobPtr> held_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::thread> workers_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t order_ LARDER_GUARDED_BY(mutex_) = 0;
  std::size_t running_ LARDER_GUARDED_BY(mutex_) = 0;
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;
  Rng rng_ LARDER_GUARDED_BY(mutex_){1};
};

}  // namespace larder::hf3fs
