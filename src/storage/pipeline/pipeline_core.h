// SPDX-License-Identifier: Apache-2.0
// The working part of a StoragePipeline (internal to storage/pipeline/): queues, limits, breakers, bookkeeping.
//
// The pump. Each thread that has changed something moves operations: it takes under the lock what must end and one that
// may begin, ends and begins them without the lock, and looks again until nothing is left. On one thread it does not
// nest: who finds his own thread's pump below him goes away, as that one looks again before it stops. So a backend that
// completes inline, and callbacks that submit, are a loop and no recursion.
// A pump has its share: while another thread's pump runs, it leaves after kPumpShare operations, its own submit's and
// one more. So no caller is kept by the work of others, what waits gets shorter all the same, and the last pump stays
// until nothing can begin.
//
// Threads: any. One lock, rank kStorage, never held over a call to the backend, a callback, or the end of an operation.
// Lifetime: shared with the completions of operations in flight. The backend outlives the last begin().
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/log_lines.h"
#include "base/ranked_mutex.h"
#include "storage/pipeline/lane_queue.h"
#include "storage/pipeline/negative_cache.h"
#include "storage/pipeline/pipeline_metrics.h"
#include "storage/pipeline/queued_operation.h"
#include "storage/pipeline/storage_pipeline.h"

namespace larder {

class PipelineCore : public std::enable_shared_from_this<PipelineCore> {
 public:
  PipelineCore(StorageBackend& inner, const PipelineOptions& options, Clock& clock, MetricsRegistry* metrics,
               std::uint64_t seed);

  [[nodiscard]] Status submit(OperationPtr op) LARDER_EXCLUDES(mutex_);
  void tick() LARDER_EXCLUDES(mutex_);
  // Refuses what comes, begins what has a place, ends the rest with kCancelled. limit: for the pump of another thread;
  // negative: without end.
  void begin_close(Nanos limit) LARDER_EXCLUDES(mutex_);
  // False: operations, or their callbacks, still run after `limit` (negative: without end).
  [[nodiscard]] bool wait_settled(Nanos limit) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] PipelineHealth health() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t waiting() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] TimePoint now() const { return clock_.now(); }
  [[nodiscard]] bool keeps_keys() const { return negative_.is_enabled(); }

  // For a caller that has no memory for an operation of the lane until one of those in flight gives it back: ok, it may
  // wait for that; kUnavailable: the breaker is open, or all that are in flight are slow.
  [[nodiscard]] Status check_wait(Lane lane) LARDER_EXCLUDES(mutex_);

  // From CompletionToken: the operation is claimed and has its result.
  void finish(const OperationPtr& op) LARDER_EXCLUDES(mutex_);
  // From CompletionToken: the backend dropped the callback unrun.
  void dropped(const OperationPtr& op);

 private:
  static constexpr std::size_t kSamples = 256;
  static constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{1} << 20;
  static constexpr std::size_t kPumpShare = 2;
  static constexpr std::size_t kOrderedClears = 64;  // in the backend at once, where it keeps marks
  static constexpr std::size_t kProbePlaces = 2;     // above a lane's limit, for when hung operations fill it

  struct LaneState {
    std::size_t max_operations = 1;  // constant after construction
    std::uint64_t max_bytes = 0;     // constant after construction
    LaneQueue queue;
    std::list<OperationPtr> flights;        // in the order in which they began
    std::uint64_t bytes = 0;                // of flights
    TimePoint last_served{};                // when the backend served one last
    std::array<Nanos, kSamples> service{};  // ring
    std::size_t served = 0;                 // ever put into it
    std::uint64_t ended = 0, failed = 0, refused = 0;
  };
  struct DirectionState {
    explicit DirectionState(const BreakerOptions& options, std::uint64_t seed) : breaker(options, seed) {}
    CircuitBreaker breaker;
    std::uint64_t published_opens = 0;
    bool is_said_open = false;  // the log's last word
    Status last_failure;
  };
  class PumpFrame;
  // What one round of a pump does.
  struct Round {
    EndedOperations ended;
    OperationPtr begun;  // null: none can begin
  };

  void pump() LARDER_EXCLUDES(mutex_);
  // False: the pump has left.
  [[nodiscard]] bool pump_round(std::size_t& begun) LARDER_EXCLUDES(mutex_);
  void leave_pump() LARDER_REQUIRES(mutex_);
  void begin(const OperationPtr& op) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status submit_to_backend(const OperationPtr& op) LARDER_EXCLUDES(mutex_);
  void end_waiting(const OperationPtr& op, const Status& status) LARDER_EXCLUDES(mutex_);
  void finish_with(const OperationPtr& op, const OperationVerdict& verdict) LARDER_EXCLUDES(mutex_);
  void settle() LARDER_EXCLUDES(mutex_);

  void collect(TimePoint now, Round& round, LogLines& lines) LARDER_REQUIRES(mutex_);
  // Ends what must end. Takes the next one that may begin, if the round has none yet.
  void collect_lane(Lane lane, TimePoint now, Round& round, LogLines& lines) LARDER_REQUIRES(mutex_);
  [[nodiscard]] OperationPtr take_next(Lane lane, TimePoint now, LogLines& lines) LARDER_REQUIRES(mutex_);
  [[nodiscard]] Status offer(OperationPtr& op, bool is_first) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status check_taken(const QueuedOperation& op, TimePoint now, LogLines& lines) LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_queue_room(const QueuedOperation& op) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_place(const LaneState& lane, const QueuedOperation& op, bool is_probe) const
      LARDER_REQUIRES(mutex_);
  // Are all operations in flight slow?
  [[nodiscard]] static bool is_stuck(const LaneState& lane);
  // Opens the breaker: the operations in flight do not answer, and nobody is to wait for those.
  void trip(Direction direction, TimePoint now, LogLines& lines) LARDER_REQUIRES(mutex_);
  void notice_slow(TimePoint now, LogLines& lines) LARDER_REQUIRES(mutex_);
  void record(Direction direction, const CircuitBreaker::Pass& pass, CircuitBreaker::Outcome outcome,
              const Status& cause, TimePoint now, LogLines& lines) LARDER_REQUIRES(mutex_);
  void publish(Direction direction, LogLines& lines) LARDER_REQUIRES(mutex_);
  [[nodiscard]] Status open_status(Direction direction, TimePoint now) const LARDER_REQUIRES(mutex_);
  static void fill_health(const LaneState& state, TimePoint now, PipelineHealth::LaneState& out);
  void wait_pump(Nanos limit) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] OperationServices services() { return {negative_, metrics_}; }

  // constant after construction
  StorageBackend& inner_;
  const PipelineOptions options_;
  Clock& clock_;
  const std::string name_;

  PipelineMetrics metrics_;  // synchronises itself
  NegativeCache negative_;   // synchronises itself

  mutable RankedMutex mutex_{LockRank::kStorage};
  RankedCondition changed_;  // pumps_ or unfinished_ fell
  std::array<LaneState, kLaneCount> lanes_ LARDER_GUARDED_BY(mutex_);
  std::array<DirectionState, kDirectionCount> directions_ LARDER_GUARDED_BY(mutex_);
  std::size_t waiting_ LARDER_GUARDED_BY(mutex_) = 0;     // in all queues
  std::size_t unfinished_ LARDER_GUARDED_BY(mutex_) = 0;  // taken, and `done` has not returned
  std::size_t pumps_ LARDER_GUARDED_BY(mutex_) = 0;       // threads that run one
  std::size_t next_lane_ LARDER_GUARDED_BY(mutex_) = 0;   // of kLanes: they begin operations by turns
  bool is_sweep_forced_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_closed_ LARDER_GUARDED_BY(mutex_) = false;   // nothing is taken any more
  bool is_drained_ LARDER_GUARDED_BY(mutex_) = false;  // nothing begins any more
};

}  // namespace larder
