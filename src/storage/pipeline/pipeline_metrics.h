// SPDX-License-Identifier: Apache-2.0
// The numbers of a pipeline. All series carry backend="<name>"; op is exists, read, write or clear.
//
//   larder_storage_operations_total{op,result}           ok miss corrupt error deadline cancelled refused
//   larder_storage_pages_total{op,pool,result}           read: hit miss corrupt error; write: stored declined error
//   larder_storage_bytes_total{op,pool}                  payload bytes read or stored
//   larder_storage_queue_wait_seconds{op}                from submit until it was given to the backend
//   larder_storage_service_seconds{op}                   from then until the backend was done
//   larder_storage_queued_operations{op,urgency}         waiting now
//   larder_storage_in_flight_operations{op,urgency}      in the backend now
//   larder_storage_in_flight_bytes{op}
//   larder_storage_breaker_state{direction}              0 closed, 1 half-open, 2 open
//   larder_storage_breaker_opens_total{direction}
//   larder_storage_slow_operations_total{op}             stayed in the backend for longer than slow_limit
//   larder_storage_negative_entries, larder_storage_negative_hits_total
//
// An operation's result is the worst of its items: error, then corrupt, then miss. Operations that end in the queue
// have no pages. Several pipelines may have one registry and name, as while one store replaces another: their gauges
// are sums, but for the breaker's state, which is the worst of those that are not closed. Threads: any. Cost: counters
// are looked up once (per pool: at its first page); an update is a few relaxed atomics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "storage/pipeline/breaker.h"
#include "storage/pipeline/lane.h"

namespace larder {

enum class OperationResult : std::uint8_t { kOk, kMiss, kCorrupt, kError, kDeadline, kCancelled, kRefused };
inline constexpr std::size_t kOperationResultCount = 7;
enum class ReadPage : std::uint8_t { kHit, kMiss, kCorrupt, kError };
inline constexpr std::size_t kReadPageCount = 4;
enum class WritePage : std::uint8_t { kStored, kDeclined, kError };
inline constexpr std::size_t kWritePageCount = 3;

class PipelineMetrics {
 public:
  // registry null: the numbers are kept and shown to nobody; else it outlives this.
  PipelineMetrics(MetricsRegistry* registry, const std::string& backend);
  // Takes its share out of the gauges.
  ~PipelineMetrics();
  PipelineMetrics(const PipelineMetrics&) = delete;
  PipelineMetrics& operator=(const PipelineMetrics&) = delete;

  void ended(Lane lane, OperationResult result) { lanes_[index_of(lane)].ended[to_index(result)]->increment(); }
  void queued(Lane lane, Urgency urgency, int change) { lanes_[index_of(lane)].queued[index_of(urgency)]->add(change); }
  void begun(Lane lane, Urgency urgency, std::uint64_t bytes, Nanos waited);
  void left(Lane lane, Urgency urgency, std::uint64_t bytes, Nanos served);
  void slow(Lane lane) { lanes_[index_of(lane)].slow->increment(); }
  void page_read(PoolName pool, ReadPage result, std::uint64_t bytes);
  void page_written(PoolName pool, WritePage result, std::uint64_t bytes);
  // `opens`: how many times it opened since the last call.
  void breaker(Direction direction, CircuitBreaker::State state, std::uint64_t opens);
  // The pipeline is closed: its breakers say nothing of the store that has its name from now on. Not at the same time
  // as breaker().
  void leave_breakers();
  void negative_entries(std::size_t entries);
  void negative_hits(std::uint64_t hits) { negative_hits_.increment(hits); }
  [[nodiscard]] std::uint64_t count(Lane lane, OperationResult result) const {
    return lanes_[index_of(lane)].ended[to_index(result)]->value();
  }

 private:
  struct LaneMetrics {
    std::array<Counter*, kOperationResultCount> ended{};
    std::array<Gauge*, kUrgencyCount> queued{}, in_flight{};
    Gauge* in_flight_bytes = nullptr;
    Counter* slow = nullptr;
    Histogram *queue_wait = nullptr, *service = nullptr;
  };
  struct PoolMetrics {
    std::once_flag once;
    std::array<Counter*, kReadPageCount> read{};
    std::array<Counter*, kWritePageCount> written{};
    Counter *bytes_read = nullptr, *bytes_written = nullptr;
  };
  template <class Enum>
  static constexpr std::size_t to_index(Enum value) {
    return static_cast<std::size_t>(value);
  }
  [[nodiscard]] Labels with(std::initializer_list<std::pair<std::string_view, std::string_view>> more) const;
  void make_lane(Lane lane);
  void make_pool(PoolName pool, PoolMetrics& out);
  PoolMetrics& pool_metrics(PoolName pool);

  const std::unique_ptr<MetricsRegistry> own_;  // when none was given
  MetricsRegistry& registry_;
  const std::string backend_;
  std::array<LaneMetrics, kLaneCount> lanes_;        // constant after construction
  std::array<PoolMetrics, kPoolNumberCount> pools_;  // each constant after its `once`
  std::array<Gauge*, kDirectionCount> breaker_{};    // constant after construction
  std::array<Counter*, kDirectionCount> opens_{};    // constant after construction
  // this pipeline's share in gauges that others of its name have a share in, too
  std::array<std::atomic<CircuitBreaker::State>, kDirectionCount> said_state_{};
  std::atomic<bool> has_left_breakers_{false};
  std::atomic<std::size_t> said_entries_{0};
  Gauge& negative_entries_;
  Counter& negative_hits_;
};

}  // namespace larder
