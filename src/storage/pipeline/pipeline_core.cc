// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/pipeline_core.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/probe.h"

namespace larder {
namespace {

// A queue's share, rounded up so that a limit of 1 stays 1.
std::size_t three_quarters(std::size_t of) { return of - of / 4; }

CircuitBreaker::Weight weight_of(Lane lane) {
  const bool is_hint = lane == Lane::kExists || lane == Lane::kClear;
  return is_hint ? CircuitBreaker::Weight::kHint : CircuitBreaker::Weight::kDecisive;
}

std::string seconds_text(Nanos duration) {
  const auto tenths = std::max<std::int64_t>(duration / std::chrono::milliseconds(100), 0);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// The sorted sample's value below which `percent` of it lie.
Nanos percentile(const std::vector<Nanos>& sorted, std::size_t percent) {
  if (sorted.empty()) return Nanos(0);
  return sorted[std::min(sorted.size() * percent / 100, sorted.size() - 1)];
}

}  // namespace

CompletionToken::~CompletionToken() { core_->dropped(operation_); }
void CompletionToken::finish() { core_->finish(operation_); }

PipelineCore::PipelineCore(StorageBackend& inner, const PipelineOptions& options, Clock& clock,
                           MetricsRegistry* metrics, std::uint64_t seed)
    : inner_(inner),
      options_(options),
      clock_(clock),
      name_(inner.info().name),
      metrics_(metrics, name_),
      negative_(options.negative_ttl, options.negative_entries),
      directions_{DirectionState(options.breaker, seed), DirectionState(options.breaker, seed + 1)} {
  // Such a backend has clears wait for writes, without a thread: they are not to wait for each other here.
  const bool orders_clears = !inner.clear_mark().is_none();
  LockGuard guard(mutex_);
  const auto set = [this](Lane lane, std::size_t operations, std::uint64_t bytes) LARDER_REQUIRES(mutex_) {
    lanes_[index_of(lane)].max_operations = std::max<std::size_t>(operations, 1);
    lanes_[index_of(lane)].max_bytes = bytes;
  };
  set(Lane::kExists, options.max_exists_in_flight, 0);
  set(Lane::kRead, options.max_reads_in_flight, options.max_read_bytes_in_flight);
  set(Lane::kWrite, options.max_writes_in_flight, options.max_write_bytes_in_flight);
  set(Lane::kClear, orders_clears ? kOrderedClears : 1, 0);
}

Status PipelineCore::submit(OperationPtr op) {
  Status status = offer(op, true);
  if (status.code() == StatusCode::kOverloaded) {
    pump();
    status = offer(op, false);
  }
  if (status.is_ok()) pump();
  return status;
}

// Takes `op` if it is admitted. Refused for want of room, it may be offered once more after a sweep.
Status PipelineCore::offer(OperationPtr& op, bool is_first) {
  LogLines lines;
  LockGuard guard(mutex_);
  Status status = check_taken(*op, clock_.now(), lines);
  LaneState& lane = lanes_[index_of(op->lane)];
  if (status.is_ok()) {
    metrics_.queued(op->lane, op->terms.urgency, 1);
    ++waiting_;
    ++unfinished_;
    lane.queue.push(std::move(op));
  } else if (is_first && status.code() == StatusCode::kOverloaded) {
    is_sweep_forced_ = true;  // perhaps what fills the queue need not wait any more
  } else {
    ++lane.refused;
    metrics_.ended(op->lane, OperationResult::kRefused);
  }
  return status;
}

Status PipelineCore::check_taken(const QueuedOperation& op, TimePoint now, LogLines& lines) {
  if (is_closed_) return unavailable("storage backend '" + name_ + "' is closed");
  notice_slow(now, lines);
  const Direction direction = direction_of(op.lane);
  if (!directions_[index_of(direction)].breaker.would_admit(weight_of(op.lane), now)) {
    return open_status(direction, now);
  }
  if (has_queue_room(op)) return Status::ok();
  probe(Probe::kPipelineRefused);
  return overloaded("storage backend '" + name_ + "': " + std::to_string(waiting_) +
                    " operations wait for their turn, no more are taken");
}

bool PipelineCore::has_queue_room(const QueuedOperation& op) const {
  const std::size_t limit = std::max<std::size_t>(options_.queue_limit, 1);
  const std::size_t share = three_quarters(limit);
  const std::size_t in_lane = lanes_[index_of(op.lane)].queue.size();
  if (waiting_ >= limit || in_lane >= share) return false;
  return op.terms.urgency == Urgency::kWaiting || in_lane < three_quarters(share);
}

void PipelineCore::tick() {
  {
    LockGuard guard(mutex_);
    is_sweep_forced_ = true;
  }
  pump();
  negative_.expire(clock_.now());
  metrics_.negative_entries(negative_.size());
}

// The pumps below the code that a thread runs: a thread's pump may call a backend that is a pipeline, too.
class PipelineCore::PumpFrame {
 public:
  explicit PumpFrame(const PipelineCore* core) : core_(core), below_(top_) { top_ = this; }
  ~PumpFrame() { top_ = below_; }
  PumpFrame(const PumpFrame&) = delete;
  PumpFrame& operator=(const PumpFrame&) = delete;
  [[nodiscard]] static bool is_below(const PipelineCore* core) {
    const PumpFrame* frame = top_;
    while (frame && frame->core_ != core) frame = frame->below_;
    return frame != nullptr;
  }

 private:
  static thread_local const PumpFrame* top_;
  const PipelineCore* const core_;
  const PumpFrame* const below_;
};
thread_local const PipelineCore::PumpFrame* PipelineCore::PumpFrame::top_ = nullptr;

void PipelineCore::pump() {
  if (PumpFrame::is_below(this)) return;
  const PumpFrame frame(this);
  {
    LockGuard guard(mutex_);
    ++pumps_;
  }
  try {
    std::size_t begun = 0;
    while (pump_round(begun)) {}
  } catch (...) {  // out of memory: close() is not to wait for a pump that is gone
    LockGuard guard(mutex_);
    leave_pump();
    throw;
  }
}

bool PipelineCore::pump_round(std::size_t& begun) {
  LogLines lines;
  Round round;
  {
    LockGuard guard(mutex_);
    const bool is_relieved = begun >= kPumpShare && pumps_ > 1;
    if (!is_relieved) collect(clock_.now(), round, lines);
    if (round.ended.empty() && !round.begun) {
      leave_pump();  // in the same breath: what comes from here on finds another pump, or starts one
      return false;
    }
  }
  for (const auto& [op, status] : round.ended) end_waiting(op, status);
  if (round.begun) begin(round.begun);
  begun += round.begun ? 1 : 0;
  return true;
}

void PipelineCore::leave_pump() {
  --pumps_;
  changed_.notify_all();
}

void PipelineCore::collect(TimePoint now, Round& round, LogLines& lines) {
  notice_slow(now, lines);
  const std::size_t first = next_lane_;
  for (std::size_t i = 0; i < kLaneCount; ++i) {
    const std::size_t lane = (first + i) % kLaneCount;
    const bool had_one = round.begun != nullptr;
    collect_lane(kLanes[lane], now, round, lines);
    if (!had_one && round.begun) next_lane_ = (lane + 1) % kLaneCount;
  }
  is_sweep_forced_ = false;
  for (const auto& [op, status] : round.ended) metrics_.queued(op->lane, op->terms.urgency, -1);
  if (const OperationPtr& op = round.begun) {
    metrics_.queued(op->lane, op->terms.urgency, -1);
    metrics_.begun(op->lane, op->terms.urgency, op->bytes, now - op->queued_at);
  }
}

void PipelineCore::collect_lane(Lane lane, TimePoint now, Round& round, LogLines& lines) {
  LaneState& state = lanes_[index_of(lane)];
  const std::size_t before = state.queue.size();
  if (before == 0) return;
  const Direction direction = direction_of(lane);
  const CircuitBreaker& breaker = directions_[index_of(direction)].breaker;
  state.queue.sweep(now, is_sweep_forced_, round.ended);
  if (is_drained_) {
    state.queue.end_all(cancelled("storage backend '" + name_ + "' is closing"), round.ended);
  }
  while (const QueuedOperation* next = state.queue.front()) {
    Status expiry = LaneQueue::expiry(*next, now);
    if (!expiry.is_ok()) {
      round.ended.emplace_back(state.queue.take(), std::move(expiry));
      continue;
    }
    if (!breaker.would_admit(weight_of(lane), now)) {
      state.queue.end_all(open_status(direction, now), round.ended);
      break;
    }
    if (!has_place(state, *next, breaker.is_probe_due(now))) {
      if (!is_stuck(state)) break;
      trip(direction, now, lines);
      state.queue.end_all(open_status(direction, now), round.ended);
      break;
    }
    if (!round.begun) round.begun = take_next(lane, now, lines);
    break;
  }
  waiting_ -= before - state.queue.size();
}

OperationPtr PipelineCore::take_next(Lane lane, TimePoint now, LogLines& lines) {
  LaneState& state = lanes_[index_of(lane)];
  const Direction direction = direction_of(lane);
  const auto place = state.flights.emplace(state.flights.end());  // first: it may throw
  const auto pass = directions_[index_of(direction)].breaker.admit(weight_of(lane), now);
  OperationPtr op = state.queue.take();
  op->flight.begun = now;
  op->flight.pass = *pass;
  op->flight.place = place;
  *place = op;
  state.bytes += op->bytes;
  publish(direction, lines);
  return op;
}

bool PipelineCore::has_place(const LaneState& lane, const QueuedOperation& op, bool is_probe) const {
  if (is_probe) return lane.flights.size() < lane.max_operations + kProbePlaces;
  if (lane.flights.size() >= lane.max_operations) return false;
  return lane.max_bytes == 0 || lane.bytes == 0 || lane.bytes + op.bytes <= lane.max_bytes;
}

bool PipelineCore::is_stuck(const LaneState& lane) {
  // The last one is the youngest: if it is slow, all are.
  return !lane.flights.empty() && lane.flights.back()->flight.is_slow;
}

void PipelineCore::trip(Direction direction, TimePoint now, LogLines& lines) {
  DirectionState& state = directions_[index_of(direction)];
  state.breaker.trip(now);
  if (state.last_failure.is_ok()) {
    state.last_failure = unavailable("every place is taken by an operation that does not answer");
  }
  publish(direction, lines);
}

Status PipelineCore::check_wait(Lane lane) {
  LogLines lines;
  LockGuard guard(mutex_);
  const TimePoint now = clock_.now();
  notice_slow(now, lines);
  const Direction direction = direction_of(lane);
  const CircuitBreaker& breaker = directions_[index_of(direction)].breaker;
  // Open, or a try is due or under way: what has no memory is none.
  if (breaker.state() != CircuitBreaker::State::kClosed) return open_status(direction, now);
  if (!is_stuck(lanes_[index_of(lane)])) return Status::ok();
  // The breaker is left alone: others need no such memory, and may find a backend that answers.
  return unavailable("storage backend '" + name_ + "': " + std::string(direction_name(direction)) +
                     "s that it does not answer have all memory for them");
}

void PipelineCore::notice_slow(TimePoint now, LogLines& lines) {
  for (const Lane lane : {Lane::kExists, Lane::kRead, Lane::kWrite}) {  // a clear may take long
    const LaneState& state = lanes_[index_of(lane)];
    for (const OperationPtr& op : state.flights) {
      if (op->flight.is_slow) continue;
      const Nanos limit = options_.slow_limit + std::chrono::seconds(op->bytes / kSlowestBytesPerSecond);
      if (now - std::max(op->flight.begun, state.last_served) <= limit) continue;
      op->flight.is_slow = true;
      metrics_.slow(lane);
      record(direction_of(lane), op->flight.pass, CircuitBreaker::Outcome::kFailed,
             deadline_exceeded("no answer to a storage operation (" + std::string(lane_name(lane)) + ") for " +
                               seconds_text(now - op->flight.begun)),
             now, lines);
    }
  }
}

void PipelineCore::record(Direction direction, const CircuitBreaker::Pass& pass, CircuitBreaker::Outcome outcome,
                          const Status& cause, TimePoint now, LogLines& lines) {
  DirectionState& state = directions_[index_of(direction)];
  if (outcome == CircuitBreaker::Outcome::kFailed) state.last_failure = cause;
  state.breaker.record(pass, outcome, now);
  publish(direction, lines);
}

void PipelineCore::publish(Direction direction, LogLines& lines) {
  DirectionState& state = directions_[index_of(direction)];
  const std::uint64_t opens = state.breaker.opens();
  metrics_.breaker(direction, state.breaker.state(), opens - state.published_opens);
  const bool has_opened = opens != state.published_opens;
  state.published_opens = opens;
  if (has_opened && !state.is_said_open) {
    state.is_said_open = true;
    lines.warning("storage", open_status(direction, clock_.now()).message());
  } else if (state.is_said_open && state.breaker.state() == CircuitBreaker::State::kClosed) {
    state.is_said_open = false;
    lines.info("storage",
               "storage backend '" + name_ + "' is asked for " + std::string(direction_name(direction)) + "s again");
  }
}

Status PipelineCore::open_status(Direction direction, TimePoint now) const {
  const DirectionState& state = directions_[index_of(direction)];
  std::string text = "storage backend '" + name_ + "' is not asked for " + std::string(direction_name(direction)) +
                     "s since it failed (" + state.last_failure.to_string() + "); ";
  const Nanos left = state.breaker.next_probe() - now;
  if (state.breaker.state() == CircuitBreaker::State::kOpen && left > Nanos(0)) {
    text += "next try in " + seconds_text(left);
  } else {
    text += "operations that it has not answered are waited for";
  }
  return unavailable(std::move(text));
}

// Backends do not throw, but memory may be out, and a plugin may be anything. An exception here would end the pump, and
// with it every operation that waits.
Status PipelineCore::submit_to_backend(const OperationPtr& op) {
  try {
    return op->begin(inner_, services(), std::make_shared<CompletionToken>(shared_from_this(), op));
  } catch (const std::bad_alloc&) {
    return overloaded("storage backend '" + name_ + "': out of memory");
  } catch (const std::exception& error) {
    return internal_error("storage backend '" + name_ + "' threw an exception: " + error.what());
  }
}

void PipelineCore::begin(const OperationPtr& op) {
  using Stage = QueuedOperation::Stage;
  const Status status = submit_to_backend(op);
  Status forced;
  if (!status.is_ok()) {
    if (!op->claim()) return;  // it ran `done`, too
    forced = status;
  } else {
    Stage expected = Stage::kSubmitting;
    if (op->stage.compare_exchange_strong(expected, Stage::kAccepted)) return;
    if (!op->claim()) return;
    forced = internal_error("storage backend '" + name_ + "' dropped a callback unrun; this is a defect of it");
  }
  op->fill(forced);
  StatusTally tally;
  tally.add(forced);
  OperationVerdict verdict = tally.verdict();
  if (!status.is_ok()) {
    verdict.result = OperationResult::kRefused;
    if (verdict.outcome == CircuitBreaker::Outcome::kAnswered) verdict.outcome = CircuitBreaker::Outcome::kNoVerdict;
  }
  finish_with(op, verdict);
}

void PipelineCore::dropped(const OperationPtr& op) {
  const auto before = op->stage.exchange(QueuedOperation::Stage::kDropped);
  if (before != QueuedOperation::Stage::kAccepted || !op->claim()) return;  // begin() will see it, or it ended well
  const Status status =
      internal_error("storage backend '" + name_ + "' dropped a callback unrun; this is a defect of it");
  op->fill(status);
  StatusTally tally;
  tally.add(status);
  finish_with(op, tally.verdict());
}

void PipelineCore::end_waiting(const OperationPtr& op, const Status& status) {
  OperationResult result = OperationResult::kRefused;
  if (status.code() == StatusCode::kDeadlineExceeded) result = OperationResult::kDeadline;
  if (status.code() == StatusCode::kCancelled) result = OperationResult::kCancelled;
  {
    LockGuard guard(mutex_);
    LaneState& lane = lanes_[index_of(op->lane)];
    ++(result == OperationResult::kRefused ? lane.refused : lane.ended);
  }
  metrics_.ended(op->lane, result);
  op->fill(status);
  op->deliver();
  settle();
}

void PipelineCore::finish(const OperationPtr& op) { finish_with(op, op->examine(services(), clock_.now())); }

void PipelineCore::finish_with(const OperationPtr& op, const OperationVerdict& verdict) {
  const TimePoint now = clock_.now();
  const Nanos served = now - op->flight.begun;
  metrics_.ended(op->lane, verdict.result);
  metrics_.left(op->lane, op->terms.urgency, op->bytes, served);
  metrics_.negative_entries(negative_.size());
  LogLines lines;  // written last: a sink that blocks holds up no operation
  {
    LockGuard guard(mutex_);
    LaneState& lane = lanes_[index_of(op->lane)];
    lane.flights.erase(op->flight.place);  // the caller holds the operation, too: it does not die here
    lane.bytes -= op->bytes;
    lane.service[lane.served++ % kSamples] = served;
    ++lane.ended;
    if (verdict.result == OperationResult::kError) ++lane.failed;
    if (verdict.outcome == CircuitBreaker::Outcome::kServed) lane.last_served = now;
    if (!op->flight.is_slow)
      record(direction_of(op->lane), op->flight.pass, verdict.outcome, verdict.cause, now, lines);
  }
  op->deliver();
  settle();
  pump();
}

void PipelineCore::settle() {
  LockGuard guard(mutex_);
  --unfinished_;
  changed_.notify_all();
}

void PipelineCore::begin_close(Nanos limit) {
  {
    LockGuard guard(mutex_);
    is_closed_ = true;
    metrics_.leave_breakers();
  }
  pump();  // what has a place is begun, so that the order of submit and close() is kept where it can be
  wait_pump(limit);
  {
    LockGuard guard(mutex_);
    is_drained_ = true;
  }
  pump();
  wait_pump(limit);
}

void PipelineCore::wait_pump(Nanos limit) {
  LockGuard guard(mutex_);
  while (pumps_ > 0) {
    if (limit < Nanos(0)) {
      changed_.wait(mutex_);
    } else if (limit == Nanos(0) || !changed_.wait_for(mutex_, limit)) {
      return;
    }
  }
}

bool PipelineCore::wait_settled(Nanos limit) {
  LockGuard guard(mutex_);
  // Each change restarts the wait: the limit bounds a stall, and nothing new is taken.
  while (unfinished_ > 0 || pumps_ > 0) {
    if (limit < Nanos(0)) {
      changed_.wait(mutex_);
    } else if (limit == Nanos(0) || !changed_.wait_for(mutex_, limit)) {
      break;
    }
  }
  return unfinished_ == 0 && pumps_ == 0;
}

std::uint64_t PipelineCore::waiting() const {
  LockGuard guard(mutex_);
  return waiting_;
}

PipelineHealth PipelineCore::health() const {
  PipelineHealth out;
  out.backend = name_;
  out.negative_entries = negative_.size();
  out.negative_hits = negative_.hits();
  std::array<std::vector<Nanos>, kLaneCount> samples;
  {
    LockGuard guard(mutex_);
    const TimePoint now = clock_.now();
    out.is_closed = is_closed_;
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
      const DirectionState& state = directions_[index_of(direction)];
      PipelineHealth::Breaker& to = out.breakers[index_of(direction)];
      to.state = state.breaker.state();
      to.consecutive_failures = state.breaker.consecutive_failures();
      to.opens = state.breaker.opens();
      if (to.state == CircuitBreaker::State::kOpen) {
        to.until_probe = std::max<Nanos>(state.breaker.next_probe() - now, Nanos(0));
      }
      if (!state.last_failure.is_ok()) to.last_error = state.last_failure.to_string();
    }
    for (const Lane lane : kLanes) {
      const LaneState& state = lanes_[index_of(lane)];
      fill_health(state, now, out.lanes[index_of(lane)]);
      const std::size_t sampled = std::min(state.served, kSamples);
      samples[index_of(lane)].assign(state.service.begin(), state.service.begin() + static_cast<long>(sampled));
    }
  }
  for (const Lane lane : kLanes) {
    std::vector<Nanos>& sample = samples[index_of(lane)];
    std::sort(sample.begin(), sample.end());
    out.lanes[index_of(lane)].service_p50 = percentile(sample, 50);
    out.lanes[index_of(lane)].service_p99 = percentile(sample, 99);
  }
  return out;
}

void PipelineCore::fill_health(const LaneState& state, TimePoint now, PipelineHealth::LaneState& out) {
  for (std::size_t i = 0; i < kUrgencyCount; ++i) out.queued[i] = state.queue.size(static_cast<Urgency>(i));
  out.in_flight = state.flights.size();
  out.in_flight_bytes = state.bytes;
  out.slow = static_cast<std::size_t>(
      std::count_if(state.flights.begin(), state.flights.end(), [](const auto& op) { return op->flight.is_slow; }));
  if (!state.flights.empty()) out.oldest_in_flight = now - state.flights.front()->flight.begun;
  out.ended = state.ended;
  out.failed = state.failed;
  out.refused = state.refused;
}

}  // namespace larder
