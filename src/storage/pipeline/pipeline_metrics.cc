// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/pipeline_metrics.h"

#include <map>
#include <string_view>

#include "base/ranked_mutex.h"

namespace larder {
namespace {

constexpr std::array<std::string_view, kOperationResultCount> kResultNames{"ok",       "miss",      "corrupt", "error",
                                                                           "deadline", "cancelled", "refused"};
constexpr std::array<std::string_view, kReadPageCount> kReadPageNames{"hit", "miss", "corrupt", "error"};
constexpr std::array<std::string_view, kWritePageCount> kWritePageNames{"stored", "declined", "error"};

double seconds(Nanos duration) { return std::chrono::duration<double>(duration).count(); }

// What pipelines say of a gauge that they share: the worst state is shown. Closed is the same as not there.
class SharedStates {
 public:
  using State = CircuitBreaker::State;
  static SharedStates& of_process() {
    static SharedStates* const all = new SharedStates();  // never destroyed: pipelines may end as late as they like
    return *all;
  }
  void change(Gauge& gauge, State from, State to) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    Count& count = gauges_[&gauge];
    add(count, from, -1);
    add(count, to, 1);
    gauge.set(static_cast<double>(count.open > 0 ? State::kOpen : count.half > 0 ? State::kHalfOpen : State::kClosed));
    if (count.open == 0 && count.half == 0) gauges_.erase(&gauge);
  }

 private:
  struct Count {
    int half = 0, open = 0;  // below 0 for a moment: two threads' changes may come in the other order
  };
  static void add(Count& count, State state, int change) {
    if (state == State::kHalfOpen) count.half += change;
    if (state == State::kOpen) count.open += change;
  }
  RankedMutex mutex_{LockRank::kMetrics};
  std::map<Gauge*, Count> gauges_ LARDER_GUARDED_BY(mutex_);  // a gauge outlives those who say something of it
};

}  // namespace

PipelineMetrics::PipelineMetrics(MetricsRegistry* registry, const std::string& backend)
    : own_(registry == nullptr ? std::make_unique<MetricsRegistry>() : nullptr),
      registry_(registry == nullptr ? *own_ : *registry),
      backend_(backend),
      negative_entries_(registry_.gauge("larder_storage_negative_entries",
                                        "Pages masked as absent because their read failed", with({}))),
      negative_hits_(registry_.counter("larder_storage_negative_hits_total",
                                       "Pages that were reported present and masked as absent", with({}))) {
  for (const Lane lane : kLanes) make_lane(lane);
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    const Labels labels = with({{"direction", direction_name(direction)}});
    breaker_[index_of(direction)] =
        &registry_.gauge("larder_storage_breaker_state", "0 closed, 1 half-open, 2 open", labels);
    opens_[index_of(direction)] =
        &registry_.counter("larder_storage_breaker_opens_total", "Times that the circuit breaker opened", labels);
  }
}

PipelineMetrics::~PipelineMetrics() {
  leave_breakers();
  negative_entries(0);
}

Labels PipelineMetrics::with(std::initializer_list<std::pair<std::string_view, std::string_view>> more) const {
  Labels labels{{"backend", backend_}};
  for (const auto& [name, value] : more) labels.emplace_back(name, value);
  return labels;
}

void PipelineMetrics::make_lane(Lane lane) {
  LaneMetrics& out = lanes_[index_of(lane)];
  const std::string_view op = lane_name(lane);
  for (std::size_t i = 0; i < kOperationResultCount; ++i) {
    out.ended[i] = &registry_.counter("larder_storage_operations_total", "Storage operations, by how they ended",
                                      with({{"op", op}, {"result", kResultNames[i]}}));
  }
  for (std::size_t i = 0; i < kUrgencyCount; ++i) {
    const Labels labels = with({{"op", op}, {"urgency", urgency_name(static_cast<Urgency>(i))}});
    out.queued[i] = &registry_.gauge("larder_storage_queued_operations", "Operations that wait for their turn", labels);
    out.in_flight[i] =
        &registry_.gauge("larder_storage_in_flight_operations", "Operations that the backend works on", labels);
  }
  const Labels labels = with({{"op", op}});
  out.in_flight_bytes =
      &registry_.gauge("larder_storage_in_flight_bytes", "Payload bytes that the backend works on", labels);
  out.slow = &registry_.counter("larder_storage_slow_operations_total",
                                "Operations that stayed in the backend for longer than the limit", labels);
  out.queue_wait = &registry_.histogram("larder_storage_queue_wait_seconds", "From submit to the backend",
                                        latency_bounds_seconds(), labels);
  out.service =
      &registry_.histogram("larder_storage_service_seconds", "In the backend", latency_bounds_seconds(), labels);
}

void PipelineMetrics::make_pool(PoolName pool, PoolMetrics& out) {
  constexpr std::string_view kPages = "larder_storage_pages_total", kPagesHelp = "Pages, by what came of them";
  constexpr std::string_view kBytes = "larder_storage_bytes_total", kBytesHelp = "Payload bytes read and stored";
  const std::string_view name = pool_name(pool);
  for (std::size_t i = 0; i < kReadPageCount; ++i) {
    out.read[i] =
        &registry_.counter(kPages, kPagesHelp, with({{"op", "read"}, {"pool", name}, {"result", kReadPageNames[i]}}));
  }
  for (std::size_t i = 0; i < kWritePageCount; ++i) {
    out.written[i] =
        &registry_.counter(kPages, kPagesHelp, with({{"op", "write"}, {"pool", name}, {"result", kWritePageNames[i]}}));
  }
  out.bytes_read = &registry_.counter(kBytes, kBytesHelp, with({{"op", "read"}, {"pool", name}}));
  out.bytes_written = &registry_.counter(kBytes, kBytesHelp, with({{"op", "write"}, {"pool", name}}));
}

PipelineMetrics::PoolMetrics& PipelineMetrics::pool_metrics(PoolName pool) {
  PoolMetrics& out = pools_[static_cast<std::size_t>(pool)];
  std::call_once(out.once, [this, pool, &out] { make_pool(pool, out); });
  return out;
}

void PipelineMetrics::begun(Lane lane, Urgency urgency, std::uint64_t bytes, Nanos waited) {
  LaneMetrics& m = lanes_[index_of(lane)];
  m.in_flight[index_of(urgency)]->add(1);
  m.in_flight_bytes->add(static_cast<double>(bytes));
  m.queue_wait->observe(seconds(waited));
}

void PipelineMetrics::left(Lane lane, Urgency urgency, std::uint64_t bytes, Nanos served) {
  LaneMetrics& m = lanes_[index_of(lane)];
  m.in_flight[index_of(urgency)]->add(-1);
  m.in_flight_bytes->add(-static_cast<double>(bytes));
  m.service->observe(seconds(served));
}

void PipelineMetrics::page_read(PoolName pool, ReadPage result, std::uint64_t bytes) {
  PoolMetrics& m = pool_metrics(pool);
  m.read[to_index(result)]->increment();
  if (result == ReadPage::kHit) m.bytes_read->increment(bytes);
}

void PipelineMetrics::page_written(PoolName pool, WritePage result, std::uint64_t bytes) {
  PoolMetrics& m = pool_metrics(pool);
  m.written[to_index(result)]->increment();
  if (result == WritePage::kStored) m.bytes_written->increment(bytes);
}

void PipelineMetrics::breaker(Direction direction, CircuitBreaker::State state, std::uint64_t opens) {
  if (has_left_breakers_.load()) state = CircuitBreaker::State::kClosed;
  const CircuitBreaker::State before = said_state_[index_of(direction)].exchange(state);
  if (before != state) SharedStates::of_process().change(*breaker_[index_of(direction)], before, state);
  opens_[index_of(direction)]->increment(opens);
}

void PipelineMetrics::leave_breakers() {
  has_left_breakers_.store(true);
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    breaker(direction, CircuitBreaker::State::kClosed, 0);
  }
}

void PipelineMetrics::negative_entries(std::size_t entries) {
  const std::size_t before = said_entries_.exchange(entries);
  if (before != entries) negative_entries_.add(static_cast<double>(entries) - static_cast<double>(before));
}

}  // namespace larder
