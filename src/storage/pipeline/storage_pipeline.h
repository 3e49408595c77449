// SPDX-License-Identifier: Apache-2.0
// Fault containment and scheduling in front of any storage backend: a backend that passes on to another one.
//
//   submit -> breaker open? refused : queue full? refused : [lane: exists | read | write | clear]
//                                                           [queue per urgency] -> in flight -> backend -> done
//
// Contract, on top of the port's (storage/backend.h)
//  - Limits. The backend has at most so many operations and bytes at once; each lane has limits of its own, so that a
//    backlog of writes does not starve reads, nor the other way round. An operation larger than the byte limit goes
//    alone. The backend's own queue must take more than the sum of the limits: what it refuses ends with its status.
//  - Order. Within a lane operations leave the queue by urgency, then first in, first out; what two threads begin at
//    one moment may reach the backend either way. No order between lanes.
//  - Bounds. At most queue_limit operations wait. One lane may fill three quarters of that, and operations for which
//    nobody waits (speculative, background) three quarters of the lane's share; then submit answers kOverloaded.
//  - Deadline and cancel flag (OperationTerms) end an operation that still waits: kDeadlineExceeded, kCancelled for
//    each item, through `done`. What the backend has is never ended from here (rule 3): its buffers are the backend's.
//  - Breakers (breaker.h), one for exists and read, one for write and clear. Failure: at least half of the items of an
//    operation ended with kUnavailable, kDeadlineExceeded or kInternal, or it is slow: the backend has had it for
//    slow_limit and a second for each MiB, and has served no other of its lane in that time (seen at the next event; a
//    clear may take its time). So a backend that gets on, at whatever speed, is no failure. A lane whose every place is
//    taken by such slow operations opens its breaker at once. Open: submit answers kUnavailable with the cause and the
//    time of the next try, and what waits ends so, too. Hung operations keep their places in the limits; probes have
//    two extra ones.
//  - Negative cache (negative_cache.h): exists() answers "absent" for a page whose read failed within negative_ttl.
//  - A backend that breaks its contract is contained: `done` called twice, dropped, or with the wrong number of items
//    still ends each operation exactly once (kInternal where there is no better answer).
//  - Clears. A write without a mark (WriteRequest::as_of) gets the one of its submit: what a clear finds in the queue
//    is refused when it leaves it, if the backend keeps marks.
//  - close(): what has no place in flight ends with kCancelled; the rest is waited for.
//
// Time: no threads and no timers. Queues, deadlines and slow operations are looked at on each submit, each completion
// and in tick(). Waiting operations end late, never early, if nothing happens; an owner that has a loop calls tick()
// there, a few times a second.
//
// Threads: all methods from any thread. `done` runs on the thread that made room or found the operation expired, never
// under a lock. Submitting from `done` is fine, and does not recurse when the backend completes inline.
// Where the backend works inside submit (an exists that is an index lookup), a call does its own operation and at most
// one of another caller, unless nobody else is at work here: then it stays until what waits has begun or another comes.
// Do not call close() or the destructor from `done`.
// Cost: five short locks (rank kStorage) and about 0.5 us per operation, 40 ns per page of a read or write.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/executor.h"
#include "base/metrics.h"
#include "storage/backend.h"
#include "storage/pipeline/breaker.h"
#include "storage/pipeline/lane.h"

namespace larder {

struct PipelineOptions {
  // Operations in the backend at once; at least 1 each. Clears go one by one, unless the backend keeps marks.
  std::size_t max_exists_in_flight = 16, max_reads_in_flight = 32, max_writes_in_flight = 8;
  std::uint64_t max_read_bytes_in_flight = std::uint64_t{256} << 20;  // 0: no limit
  std::uint64_t max_write_bytes_in_flight = std::uint64_t{256} << 20;
  std::size_t queue_limit = 1024;  // waiting operations, all lanes together; at least 1
  Nanos slow_limit = std::chrono::seconds(10);
  BreakerOptions breaker;
  Nanos negative_ttl = std::chrono::seconds(30);  // zero: no negative cache
  std::size_t negative_entries = 65'536;
};

// A snapshot for people (`larder stat`).
struct PipelineHealth {
  struct Breaker {
    CircuitBreaker::State state = CircuitBreaker::State::kClosed;
    std::uint32_t consecutive_failures = 0;
    std::uint64_t opens = 0;
    Nanos until_probe{0};    // open: from now until a probe may pass
    std::string last_error;  // of the last failure; empty: there was none
  };
  struct LaneState {
    std::array<std::size_t, kUrgencyCount> queued{};
    std::size_t in_flight = 0;
    std::uint64_t in_flight_bytes = 0;
    std::size_t slow = 0;       // in flight for longer than slow_limit
    Nanos oldest_in_flight{0};  // age
    // Over the last operations that the backend ended, at most 256; zero if there are none.
    Nanos service_p50{0}, service_p99{0};
    std::uint64_t ended = 0, failed = 0, refused = 0;  // since the start of this pipeline
  };
  std::string backend;
  std::array<Breaker, kDirectionCount> breakers;  // index_of(direction)
  std::array<LaneState, kLaneCount> lanes;        // index_of(lane)
  std::size_t negative_entries = 0;
  std::uint64_t negative_hits = 0;
  bool is_closed = false;
};

class PipelineCore;

class StoragePipeline final : public StorageBackend {
 public:
  // Use make_pipeline().
  StoragePipeline(std::unique_ptr<StorageBackend> inner, std::shared_ptr<PipelineCore> core,
                  std::unique_ptr<Executor> threads);
  // Cancels what waits, then ends the inner backend, which waits for what is in flight.
  ~StoragePipeline() override;
  StoragePipeline(const StoragePipeline&) = delete;
  StoragePipeline& operator=(const StoragePipeline&) = delete;

  [[nodiscard]] const BackendInfo& info() const override { return inner_->info(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  // The inner backend's; `queued` counts those that wait here, too.
  [[nodiscard]] BackendStats stats() const override;
  [[nodiscard]] ClearMark clear_mark() const override { return inner_->clear_mark(); }
  [[nodiscard]] ClearMark emptied_mark() const override { return inner_->emptied_mark(); }
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override {
    return inner_->register_memory(regions);
  }
  // May take `limit` twice: once for the inner backend, once for callbacks that still run.
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

  // Looks at everything that time changes: deadlines, cancel flags, slow operations. Cheap when nothing waits.
  void tick();
  // For a caller whose memory for operations of the lane is all in flight: ok, waiting may help; kUnavailable: the
  // breaker is open, or all operations in flight are slow.
  [[nodiscard]] Status check_wait(Lane lane);
  [[nodiscard]] PipelineHealth health() const;
  [[nodiscard]] StorageBackend& inner() { return *inner_; }

 private:
  const std::unique_ptr<Executor> threads_;      // of inner_, which goes before them; may be null
  const std::shared_ptr<PipelineCore> core_;     // shared with the completions of operations in flight
  const std::unique_ptr<StorageBackend> inner_;  // after core_: it goes first, and its callbacks still find the core
};

// `clock` and `metrics` (may be null) outlive the pipeline. seed: of the jitter of the breakers. threads: that inner
// uses and nobody else, if the pipeline is to end them after it. Precondition: inner.
[[nodiscard]] std::unique_ptr<StoragePipeline> make_pipeline(std::unique_ptr<StorageBackend> inner,
                                                             const PipelineOptions& options, Clock& clock,
                                                             MetricsRegistry* metrics, std::uint64_t seed,
                                                             std::unique_ptr<Executor> threads = nullptr);

}  // namespace larder
