// SPDX-License-Identifier: Apache-2.0
// One stream of copies on a CUDA device: what Device::enqueue() promises, kept by two threads.
//
//   enqueue ─► queue ─► launcher: make_ops, launches, an event ─► in flight ─► reaper: waits for the event, done()
//                        │                                          (in order)
//                        └─ pairs of the kernel lie in a ring of pinned memory, from launch to completion
//
// No thread of the caller waits, and none of Larder's burns a processor: the launcher sleeps until there is work, the
// reaper inside the driver.
//
// Errors. A copy that cannot be launched ends its step with the driver's error; the steps behind it are tried. When the
// device is lost (CudaHealth) everything in flight and everything after ends with kUnavailable. `done` of a step is
// called when none of its copies, and of those before it, is running any more: with a lost device, none is.
//
// Threads: all public calls from one thread. Limits: queue_limit entries wait; kMostInFlight steps are in
// flight; kRingPairs pieces.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "pool/memory.h"
#include "transfer/cuda/copy_plan.h"
#include "transfer/cuda/cuda_event.h"
#include "transfer/device.h"

namespace larder {

// Whether the device still works. The first loss stays.
class CudaHealth {
 public:
  // Notes the error if it says that the device is lost.
  void saw(const Status& status) LARDER_EXCLUDES(mutex_);
  // ok, or kUnavailable with the error that ended it.
  [[nodiscard]] Status status() const LARDER_EXCLUDES(mutex_);
  // Calls `then` when the device is lost, once; now, if it is. Not once `owner` is gone, whom `then` must not keep.
  void when_lost(std::weak_ptr<void> owner, std::function<void()> then) LARDER_EXCLUDES(mutex_);

 private:
  struct Waiting {
    std::weak_ptr<void> owner;
    std::function<void()> then;
  };

  std::atomic<bool> is_lost_{false};  // set under mutex_
  mutable RankedMutex mutex_{LockRank::kTransfer};
  Status loss_ LARDER_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ LARDER_GUARDED_BY(mutex_);
};

// What the streams of a device share.
struct CopyStreamParts {
  std::shared_ptr<CudaDriver> driver;
  std::shared_ptr<CudaHealth> health;
  std::shared_ptr<CudaEventPool> events;
  std::shared_ptr<PinnedRanges> pinned;
  MemorySource* ring_memory = nullptr;  // pinned
  std::size_t load_engines_from = 0;    // see CopyPlan
  std::size_t store_engines_from = 0;
  std::array<std::uint32_t, 3> blocks{};  // of the kernel, by CopyDirection
};

class CopyStream {
 public:
  static constexpr std::size_t kRingPairs = 65'536;  // 1 MiB
  static constexpr std::size_t kMostInFlight = 4'096;

  [[nodiscard]] static Result<std::unique_ptr<CopyStream>> create(const CopyStreamParts& parts,
                                                                  std::size_t queue_limit);
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;
  // Precondition: drained. Ends the threads.
  ~CopyStream();

  [[nodiscard]] Status enqueue(CopyDirection direction, StreamWork work) LARDER_EXCLUDES(mutex_);
  // Device::synchronize(), in three calls: streams may wait for each other, so all of them begin before any is waited
  // for. From begin_draining() on, what comes to wait for an event that has not fired is cancelled, and what waits for
  // one of the host, too. What the device itself waits for already it goes on waiting for.
  void begin_draining() LARDER_EXCLUDES(mutex_);
  void wait_until_idle() LARDER_EXCLUDES(mutex_);
  void end_draining() LARDER_EXCLUDES(mutex_);

 private:
  struct Entry {
    CopyDirection direction = CopyDirection::kDeviceToHost;
    StreamWork work;
    bool has_failed = false;  // a step of it could not be launched; the launcher's
  };
  struct Waiter;
  struct Launched {
    std::shared_ptr<Entry> entry;
    std::uint32_t step = 0;
    bool ends_step = true;             // false: its ring is all that it has
    std::shared_ptr<CudaEvent> event;  // null: nothing was launched
    Status status;
    std::uint64_t ring_end = 0;
  };

  CopyStream(const CopyStreamParts& parts, std::size_t queue_limit, CudaStream stream, std::unique_ptr<Memory> ring);
  // Without memory even for their own lists they end the process: a stream without its threads would hang it.
  void run_launcher() noexcept LARDER_EXCLUDES(mutex_);
  void run_reaper() noexcept LARDER_EXCLUDES(mutex_);
  // False: the stream ends.
  [[nodiscard]] bool next_entry(std::shared_ptr<Entry>& entry) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_draining() LARDER_EXCLUDES(mutex_);
  // Until the stream may begin with it.
  [[nodiscard]] Status wait_for(const std::shared_ptr<DeviceEvent>& event, bool has_begun) LARDER_EXCLUDES(mutex_);
  void launch_step(const std::shared_ptr<Entry>& entry, std::uint32_t step, Status status);
  [[nodiscard]] Status launch_copies(const std::shared_ptr<Entry>& entry, std::uint32_t step);
  [[nodiscard]] Status launch_kernel(const std::shared_ptr<Entry>& entry, std::uint32_t step);
  // In flight is what has been launched so far: an event is recorded behind it.
  void add_launched(Launched launched) LARDER_EXCLUDES(mutex_);
  // Returns when nothing of it runs any more, with what became of it.
  [[nodiscard]] Status wait_until_over(const Launched& launched);
  // Room for at least one and at most `want` pairs; waits for copies in flight until there is some.
  [[nodiscard]] std::span<CopyPair> ring_room(std::size_t want) LARDER_EXCLUDES(mutex_);

  // constant after construction
  const CopyStreamParts parts_;
  const std::size_t queue_limit_;
  const CudaStream stream_;
  const std::unique_ptr<Memory> ring_;
  const std::shared_ptr<Waiter> waiter_;  // of the launcher; events that never fire keep it

  RankedMutex mutex_{LockRank::kTransfer};
  RankedCondition to_launch_;  // work, room in flight, room in the ring, or the end
  RankedCondition to_reap_;    // something in flight, or the end
  RankedCondition is_idle_;    // perhaps
  std::deque<std::shared_ptr<Entry>> queue_ LARDER_GUARDED_BY(mutex_);
  std::deque<Launched> in_flight_ LARDER_GUARDED_BY(mutex_);
  bool is_launching_ LARDER_GUARDED_BY(mutex_) = false;  // an entry is with the launcher
  bool is_reaping_ LARDER_GUARDED_BY(mutex_) = false;    // ... with the reaper
  bool is_draining_ LARDER_GUARDED_BY(mutex_) = false;   // who waits for an event of the host is cancelled
  bool is_ending_ LARDER_GUARDED_BY(mutex_) = false;
  std::uint64_t ring_freed_ LARDER_GUARDED_BY(mutex_) = 0;  // pairs, ever

  // the launcher's
  CopyPlan plan_;
  std::vector<CopyOp> ops_;
  std::uint64_t ring_used_ = 0;  // pairs, ever

  std::uint64_t callbacks_thrown_ = 0;  // the reaper's; for the debugger

  ThreadPoolExecutor launcher_{"cuda-launch", 1, 1};  // last: they end before what they use
  ThreadPoolExecutor reaper_{"cuda-reap", 1, 1};
};

}  // namespace larder
