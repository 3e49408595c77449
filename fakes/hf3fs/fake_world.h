// SPDX-License-Identifier: Apache-2.0
// Everything the fake library knows: one object for the life of the process.
//
// Threads: all methods from any thread, but reset() and shut_down(), which want no other call running.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fakes/hf3fs/fake_config.h"
#include "fakes/hf3fs/fake_control.h"
#include "fakes/hf3fs/fake_fd_table.h"
#include "fakes/hf3fs/fake_files.h"
#include "fakes/hf3fs/fake_iov.h"
#include "fakes/hf3fs/fake_job.h"
#include "fakes/hf3fs/fake_ring.h"
#include "fakes/hf3fs/fake_step_engine.h"
#include "fakes/hf3fs/fake_thread_engine.h"

namespace larder::hf3fs {

// The numbers of FakeStats that are counted as they happen; the others are what is there when it is read.
#define LARDER_FAKE_COUNTERS(X) \
  X(prepared)                   \
  X(submitted)                  \
  X(executed)                   \
  X(completed)                  \
  X(reaped)                     \
  X(jobs)                       \
  X(largest_job)                \
  X(started_unsubmitted)        \
  X(bytes_read)                 \
  X(bytes_written)              \
  X(faults)                     \
  X(failed_calls)               \
  X(role_changes)               \
  X(role_overlaps)              \
  X(touched_buffers)            \
  X(would_crash)                \
  X(stale_handles)              \
  X(destroyed_in_flight)        \
  X(dropped_completions)        \
  X(out_of_bounds)              \
  X(leaked_ring_links)

// Relaxed: statistics.
struct FakeCounters {
  using Count = std::atomic<std::uint64_t>;
#define LARDER_FAKE_COUNTER(name) Count name{0};
  LARDER_FAKE_COUNTERS(LARDER_FAKE_COUNTER)
#undef LARDER_FAKE_COUNTER
};
inline void count(FakeCounters::Count& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

enum class TraceEvent : std::uint8_t { kPrep = 1, kSubmit, kJob, kExecute, kPost, kReap, kTime, kDeath };

struct LateWrite {
  std::shared_ptr<FakeFile> file;
  std::uint64_t offset = 0;
  std::vector<std::uint8_t> bytes;
};

class World {
 public:
  // Made at the first call, never destroyed.
  [[nodiscard]] static World& get();

  [[nodiscard]] const FakeConfig& config() const { return *config_.load(std::memory_order_acquire); }
  // Text of what is wrong, or empty.
  [[nodiscard]] std::string change_config(const char* json) LARDER_EXCLUDES(config_mutex_);
  [[nodiscard]] std::string add_fault(const char* json) LARDER_EXCLUDES(config_mutex_);
  // The effect of the first rule that fits this I/O, which uses the rule up by one.
  [[nodiscard]] std::optional<FaultEffect> next_fault(bool read) LARDER_EXCLUDES(config_mutex_);

  // Counts a call; the errno with which it fails, or 0.
  [[nodiscard]] int next_call(const char* name);

  // Milliseconds: real and advanced in threads mode, only advanced in the others.
  [[nodiscard]] std::uint64_t now_ms() const;
  void advance(std::uint64_t milliseconds);

  [[nodiscard]] bool alive() const { return alive_.load(std::memory_order_acquire); }
  // Which daemon this is; rings, iovs and files of another are dead.
  [[nodiscard]] std::uint64_t daemon_life() const { return life_.load(std::memory_order_acquire); }
  [[nodiscard]] bool serves(std::uint64_t life) const { return alive() && life == daemon_life(); }
  void set_daemon(bool alive);
  // As the ioctl on a descriptor of the mount: waits while the daemon is stopped (probe_blocks); false for one that was
  // opened under an earlier daemon.
  [[nodiscard]] bool answers_for(int fd) LARDER_EXCLUDES(config_mutex_);
  // Counts an executed I/O towards die_after_events; true: the daemon dies of it (the caller calls set_daemon).
  [[nodiscard]] bool note_executed();

  // A write that has failed: its bytes are stored at the next release.
  void keep_late(LateWrite write) LARDER_EXCLUDES(late_mutex_);
  [[nodiscard]] std::uint64_t land_late() LARDER_EXCLUDES(late_mutex_);

  // What an iov gets that is made or found now.
  [[nodiscard]] IovRequest iov_request(std::string mount, std::size_t size, std::size_t block_size) const;
  // 0 or -errno; fills what the caller sees of the ring.
  [[nodiscard]] int create_ring(RingSettings settings, Hf3fsIor& ring) LARDER_EXCLUDES(rings_mutex_);
  void destroy_ring(Hf3fsIor& ring) LARDER_EXCLUDES(rings_mutex_);
  [[nodiscard]] std::shared_ptr<FakeRing> find_ring(const void* handle) const LARDER_EXCLUDES(rings_mutex_);
  [[nodiscard]] std::vector<std::shared_ptr<FakeRing>> rings() const LARDER_EXCLUDES(rings_mutex_);

  // The daemon looks at the ring: takes jobs, plans them and hands them to the ring's engine.
  void scan(const std::shared_ptr<FakeRing>& ring);
  // The jobs of one look at the ring, planned; at most 32.
  [[nodiscard]] std::vector<JobPtr> take_jobs(const std::shared_ptr<FakeRing>& ring);

  void trace(TraceEvent event, std::uint64_t a, std::uint64_t b, std::uint64_t c) LARDER_EXCLUDES(trace_mutex_);
  void read_stats(FakeStats& stats) const;
  void reset();
  // At the end of the process: joins the workers, reports leaks if asked.
  void shut_down();

  FakeCounters counters;
  FakeFiles files;
  FakeFdTable fds{files};
  FakeIovTable iovs;
  ThreadEngine threads{*this};
  StepEngine steps{*this};

 private:
  World();
  void reset_tables();
  void publish(const FakeConfig& config) LARDER_REQUIRES(config_mutex_);

  const int process_;  // that loaded the library; a child of it has no workers
  std::atomic<const FakeConfig*> config_{nullptr};
  std::atomic<std::uint64_t> fault_count_{0};  // rules that are left
  std::atomic<bool> alive_{true};
  std::atomic<std::uint64_t> life_{1};
  std::atomic<std::uint64_t> advanced_ms_{0};
  std::atomic<std::uint64_t> executed_since_config_{0};
  std::atomic<std::uint64_t> calls_since_config_{0};
  std::atomic<const char*> failed_call_{nullptr};

  FakeMutex config_mutex_;
  FakeCondition published_;
  std::vector<std::unique_ptr<const FakeConfig>> configs_ LARDER_GUARDED_BY(config_mutex_);  // readers have no lock
  std::vector<FaultRule> faults_ LARDER_GUARDED_BY(config_mutex_);

  mutable FakeMutex rings_mutex_;
  std::map<std::uint64_t, std::shared_ptr<FakeRing>> rings_ LARDER_GUARDED_BY(rings_mutex_);  // by number
  std::uint64_t next_ring_ LARDER_GUARDED_BY(rings_mutex_) = 1;
  std::uint64_t first_ring_ LARDER_GUARDED_BY(rings_mutex_) = 1;  // since reset

  FakeMutex late_mutex_;
  std::vector<LateWrite> late_ LARDER_GUARDED_BY(late_mutex_);

  mutable FakeMutex trace_mutex_;
  std::uint64_t trace_hash_ LARDER_GUARDED_BY(trace_mutex_) = 0;
};

}  // namespace larder::hf3fs
