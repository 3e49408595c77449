// SPDX-License-Identifier: Apache-2.0
// Sync and sim mode: jobs advance on the caller's thread, one event at a time, in an order drawn from the seed.
//
// Threads: all methods from any thread, one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "fakes/hf3fs/fake_job.h"
#include "fakes/hf3fs/fake_lock.h"

namespace larder::hf3fs {

class StepEngine {
 public:
  explicit StepEngine(World& world) : world_(world) {}

  void seed(std::uint64_t seed) LARDER_EXCLUDES(mutex_);
  // Sync: runs the jobs to their end, those held or not due apart.
  void run(std::vector<JobPtr> jobs) LARDER_EXCLUDES(mutex_);
  // Sync: goes on with what became due or was released.
  void run_due() LARDER_EXCLUDES(mutex_);
  // Sim: at most `limit` events, scans of rings in sim mode among them. Moves the clock when nothing else can happen.
  [[nodiscard]] std::uint64_t step(std::uint64_t limit) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t release() LARDER_EXCLUDES(mutex_);
  // Forgets all jobs; with `tear`, some chunks of writes that wait land.
  void drop_all(bool tear) LARDER_EXCLUDES(mutex_);

 private:
  // One thing that could happen now.
  struct Event {
    std::shared_ptr<FakeRing> scan;  // or
    JobPtr job;
    bool finish = false;  // of the job; else one of its I/Os
  };

  [[nodiscard]] bool can_run(const FakeJob& job) const;
  void add_job_events(std::vector<Event>& events) const LARDER_REQUIRES(mutex_);
  void add_scan_events(std::vector<Event>& events) const;
  void perform(const Event& event) LARDER_REQUIRES(mutex_);
  void execute_one(const JobPtr& job) LARDER_REQUIRES(mutex_);
  // Runs events of jobs until there is none.
  void drain() LARDER_REQUIRES(mutex_);
  // When the next thing becomes due.
  [[nodiscard]] std::optional<std::uint64_t> next_due_ms() const LARDER_REQUIRES(mutex_);
  // After the lock is gone: a death that an I/O brought about.
  void die_if_due() LARDER_EXCLUDES(mutex_);

  World& world_;
  FakeMutex mutex_;
  std::vector<JobPtr> jobs_ LARDER_GUARDED_BY(mutex_);  // in the order of their scan
  bool death_due_ LARDER_GUARDED_BY(mutex_) = false;
  Rng rng_ LARDER_GUARDED_BY(mutex_){1};
};

}  // namespace larder::hf3fs
