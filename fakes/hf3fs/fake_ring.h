// SPDX-License-Identifier: Apache-2.0
// One ring: slots, the queue of prepared I/O, the queue of completions, and how prepared I/O becomes jobs.
//
// Life of a slot: free -> prepared -> running (in a job) -> done -> free again when it is reaped. The lowest free slot
// is taken first; the ring is full when none is free, whatever the others wait for. Threads: all methods from any
// thread. A running slot's FakeIo belongs to whoever runs its job.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fakes/hf3fs/fake_config.h"
#include "fakes/hf3fs/fake_fd_table.h"
#include "fakes/hf3fs/fake_iov.h"
#include "fakes/hf3fs/fake_lock.h"
#include "storage/hf3fs/usrbio_abi.h"

namespace larder::hf3fs {

// One I/O, from prep to reap.
struct FakeIo {
  bool read = true;
  std::uint8_t* data = nullptr;
  std::uint64_t offset = 0, length = 0;
  const void* userdata = nullptr;
  std::shared_ptr<const RegisteredFd> fd;
  IovId iov_id{};
  std::uint64_t iov_offset = 0;
  std::shared_ptr<FakeIov> iov;  // keeps the memory; nullptr: the daemon knew none of that id at prep
  bool submitted = false;
  bool executed = false;
  std::uint64_t digest = 0;  // of the buffer; a write's from prep on, a read's once it is executed
  std::int64_t result = 0;
};

struct RingSettings {
  std::uint64_t number = 0;  // in order of creation, from 1; its handle
  std::uint64_t trace_number = 0;
  std::string mount, link;
  int entries = 0;
  bool for_read = true;
  int io_depth = 0;
  int timeout_ms = 0;
  std::uint64_t flags = 0;
  std::uint64_t daemon_life = 0;
  FakeMode mode = FakeMode::kThreads;
  std::uint64_t seed = 0;
  bool broken_semaphore = false;  // D4
};

// Who may do a part of a ring's work: the first thread that did. A number per thread, never used twice.
class RoleWatch {
 public:
  struct Verdict {
    bool changed = false, overlapped = false;
  };
  [[nodiscard]] Verdict enter();
  void leave() { inside_.fetch_sub(1, std::memory_order_acq_rel); }

 private:
  std::atomic<std::uint64_t> first_{0};
  std::atomic<int> inside_{0};
};

class FakeRing {
 public:
  explicit FakeRing(RingSettings settings);

  const RingSettings settings;  // constant
  RoleWatch preparer, waiter;
  std::atomic<bool> is_unwaited{false};  // submitted, and nobody has waited since

  // The slot, or -EAGAIN. `start`: the seed says that the daemon looks now, without a submit.
  [[nodiscard]] int prepare(FakeIo io, std::uint32_t start_permille, std::uint64_t now_ms, bool& start)
      LARDER_EXCLUDES(mutex_);
  // No slot is free. Only the preparer takes slots, so for it "not full" stays true.
  [[nodiscard]] bool full() const LARDER_EXCLUDES(mutex_);
  void mark_submitted() LARDER_EXCLUDES(mutex_);
  // Takes what is ready by the rule of io_depth, at most `limit` jobs.
  [[nodiscard]] std::vector<std::vector<int>> take_jobs(std::uint64_t now_ms, bool d1, std::size_t limit)
      LARDER_EXCLUDES(mutex_);
  // Would take_jobs give something?
  [[nodiscard]] bool has_jobs(std::uint64_t now_ms, bool d1) const LARDER_EXCLUDES(mutex_);
  // When a partial batch becomes ready by its time-out; nullopt: never.
  [[nodiscard]] std::optional<std::uint64_t> next_timeout_ms(bool d1) const LARDER_EXCLUDES(mutex_);
  // Asks for one scan in a while; false if one is on its way.
  [[nodiscard]] bool want_scan() { return !scan_wanted_.exchange(true, std::memory_order_acq_rel); }
  void scan_came() { scan_wanted_.store(false, std::memory_order_release); }

  // The I/O of a slot. Prepared and running slots do not move.
  [[nodiscard]] FakeIo& io(int slot) { return ios_[static_cast<std::size_t>(slot)]; }
  // The slots become completions, in this order, all at once.
  void post(const std::vector<int>& slots) LARDER_EXCLUDES(mutex_);
  // As hf3fs_wait_for_ios behind its checks.
  [[nodiscard]] int reap(Hf3fsCqe* cqes, int capacity, int least, const struct timespec* deadline)
      LARDER_EXCLUDES(mutex_);
  // No waiter stays: reset() and destroy.
  void close() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool closed() const LARDER_EXCLUDES(mutex_);
  // Prepared or running.
  [[nodiscard]] std::size_t in_flight() const LARDER_EXCLUDES(mutex_);
  // A number below `n` of the ring's own sequence.
  [[nodiscard]] std::uint64_t draw(std::uint64_t n) LARDER_EXCLUDES(mutex_);
  void shuffle(std::vector<int>& slots) LARDER_EXCLUDES(mutex_);

 private:
  [[nodiscard]] int take_free_slot() LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::size_t next_job_size(std::uint64_t now_ms, bool d1) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] int fill(Hf3fsCqe* cqes, int capacity, int from) LARDER_REQUIRES(mutex_);

  std::vector<FakeIo> ios_;  // fixed size; elements by slot life
  std::atomic<bool> scan_wanted_{false};

  mutable FakeMutex mutex_;
  FakeCondition completed_;
  std::vector<std::uint64_t> free_ LARDER_GUARDED_BY(mutex_);  // a bit per slot
  std::deque<int> prepared_ LARDER_GUARDED_BY(mutex_);
  std::deque<int> done_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t oldest_prepared_ms_ LARDER_GUARDED_BY(mutex_) = 0;
  std::size_t running_ LARDER_GUARDED_BY(mutex_) = 0;
  bool closed_ LARDER_GUARDED_BY(mutex_) = false;
  Rng rng_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::hf3fs
