// SPDX-License-Identifier: Apache-2.0
#include "bench/replay_engine.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "bench/replay_tiers.h"

namespace larder {
namespace {

constexpr Nanos kRetryDelay = std::chrono::milliseconds(10);
constexpr int kMostPolls = 1'000'000;

Nanos seconds(double s) { return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(s)); }
double elapsed_seconds(TimePoint begin, TimePoint end) { return std::chrono::duration<double>(end - begin).count(); }
double work_seconds(std::uint64_t tokens, double rate) { return rate <= 0 ? 0 : static_cast<double>(tokens) / rate; }

}  // namespace

ReplayEngine::ReplayEngine(const ReplayOptions& options, const ReplayTrace& trace, Cache& cache, sim::SimClock& clock,
                           ReplayResult& result)
    : options_(options), trace_(trace), cache_(cache), clock_(clock), result_(result) {
  result_.lines.resize(trace.requests().size());
}

template <class Call>
void ReplayEngine::timed(const Live& live, Call call) {
  const TimePoint begin = real_clock().now();
  call();
  result_.lines[live.index].cache_us += 1e6 * elapsed_seconds(begin, real_clock().now());
}

// One arrival is on the clock at a time, so that a trace of a million requests is not a million events.
Status ReplayEngine::run() {
  arrive(0);
  while (status_.is_ok() && clock_.run_next()) {
    if (clock_.now() >= kReplayEnd) {
      return invalid_argument(
          "the replay takes longer than 250 years; --prefill-rate, --decode-rate, --link or --storage-speed is too "
          "low");
    }
    poll();
    start_ready();
  }
  for (int i = 0; i < kMostPolls && status_.is_ok() && !cache_.idle(); ++i) {
    poll();
    (void)clock_.run_next();
  }
  if (!status_.is_ok()) return status_;
  if (!live_.empty() || !waiting_.empty()) return internal_error("the replay came to a standstill with requests left");
  if (!cache_.idle()) return internal_error("the cache is not idle at the end of the replay");
  if (cache_.counters().internal_errors > 0) return internal_error("the cache counts internal errors");
  return cache_.check_invariants();
}

void ReplayEngine::arrive(std::size_t index) {
  const double at = trace_.requests()[index].arrival_s;
  const Nanos delay = std::max(Nanos{0}, seconds(at) - (clock_.now() - TimePoint{}));
  clock_.after(delay, [this, index] {
    result_.lines[index].arrival_s = trace_.requests()[index].arrival_s;
    waiting_.push_back(index);
    admit();
    if (index + 1 < trace_.requests().size()) arrive(index + 1);
  });
}

bool ReplayEngine::hint(std::size_t index) const {
  const bool has_next_turn = trace_.requests()[index].next_turn != ReplayTrace::kNone;
  const bool is_right = static_cast<double>(Rng(index).below(1'000'000)) < options_.hints * 1e4;
  return has_next_turn == is_right;
}

void ReplayEngine::admit() {
  while (!waiting_.empty() && live_.size() < options_.at_once && status_.is_ok()) {
    auto live = std::make_shared<Live>();
    live->index = waiting_.front();
    const ReplayTrace::Request& request = trace_.requests()[live->index];
    trace_.tokens_of(live->index, live->tokens);
    Result<RequestId> id = RequestId{};
    BeginRequest begin{std::span<const TokenId>(live->tokens).first(request.prompt),
                       std::max<std::uint64_t>(request.output, 1)};
    begin.salt = request.tenant;
    if (options_.hints >= 0) begin.will_return = hint(live->index);
    timed(*live, [&] { id = cache_.begin(begin); });
    if (!id.is_ok()) {
      if (id.status().code() != StatusCode::kOverloaded) return fail(id.status());
      ++result_.waits;
      return later(nullptr);
    }
    live->id = *id;
    waiting_.pop_front();
    live_.push_back(std::move(live));
  }
  start_ready();
}

// In the order of their arrival: one that finds no room holds up those behind it.
void ReplayEngine::start_ready() {
  for (std::size_t i = 0; i < live_.size() && status_.is_ok(); ++i) {
    const LivePtr live = live_[i];
    if (live->stage == Stage::kBegun && !start(live)) return later(nullptr);
  }
}

bool ReplayEngine::start(const LivePtr& live) {
  Result<CachedTokens> cached = CachedTokens{};
  for (;;) {
    if (cache_.phase(live->id) != RequestPhase::kPrefetching) {
      timed(*live, [&] { cached = cache_.start(live->id); });
      if (cached.is_ok()) break;
      if (cached.status().code() != StatusCode::kOverloaded) {
        fail(cached.status());
        return false;
      }
      ++result_.waits;
    }
    if (!cache_.poll(Nanos{0})) return false;
  }
  ReplayLine& line = result_.lines[live->index];
  const ReplayTrace::Request& request = trace_.requests()[live->index];
  if (line.prompt == 0) {
    line.prompt = request.prompt;
    line.tenant = request.tenant;
    line.output = request.output;
    line.device = cached->device;
    line.host = cached->host;
    line.storage = cached->storage;
    line.miss = cached->miss;
  }
  live->stage = Stage::kPrompt;
  live->computed = cache_.computed_tokens(live->id);
  const std::uint64_t missing = request.prompt - std::min(request.prompt, live->computed);
  engine_free_at_ = end_of_work(std::max(engine_free_at_, clock_.now()), work_seconds(missing, options_.prefill_rate));
  clock_.after(engine_free_at_ - clock_.now(), [this, live] { go_on(live); });
  return true;
}

void ReplayEngine::go_on(const LivePtr& live) {
  const ReplayTrace::Request& request = trace_.requests()[live->index];
  if (live->stage == Stage::kPrompt) {
    if (!compute(*live, request.prompt)) return later(live);
    ReplayLine& line = result_.lines[live->index];
    if (line.first_token_s == 0) {
      line.first_token_s = elapsed_seconds(TimePoint{} + seconds(request.arrival_s), clock_.now());
    }
    live->stage = Stage::kAnswer;
    const TimePoint end = end_of_work(clock_.now(), work_seconds(request.output, options_.decode_rate));
    clock_.after(end - clock_.now(), [this, live] { go_on(live); });
    return;
  }
  if (live->stage != Stage::kAnswer) return;
  // The last token of an answer is not computed: nothing follows it.
  const std::uint64_t until = request.prompt + std::max<std::uint64_t>(request.output, 1) - 1;
  if (!compute(*live, until)) return later(live);
  end(live);
}

bool ReplayEngine::compute(Live& live, std::uint64_t until) {
  while (live.computed < until && status_.is_ok()) {
    if (cache_.phase(live.id) != RequestPhase::kRunning) {
      if (!cache_.poll(Nanos{0})) return false;
      continue;
    }
    Result<StepGrant> grant = StepGrant{};
    timed(live, [&] { grant = cache_.prepare_step(live.id, std::min(until, live.computed + kReplayChunkTokens)); });
    if (grant.status().code() == StatusCode::kOverloaded) {
      ++result_.waits;
      if (cache_.poll(Nanos{0})) continue;
      // The oldest always ends; one that is younger and cannot grow makes room.
      if (cache_.is_starved(live.id) && live_.front().get() != &live && cache_.retract(live.id).is_ok()) {
        ++result_.retracts;
        live.stage = Stage::kBegun;
      }
      return false;
    }
    if (!grant.is_ok()) {
      fail(grant.status());
      return false;
    }
    Status completed;
    const std::span<const TokenId> done = std::span<const TokenId>(live.tokens).first(std::min(until, grant->until));
    timed(live, [&] { completed = cache_.complete_step(grant->token, done); });
    fail(completed);
    live.computed = done.size();
  }
  return status_.is_ok();
}

void ReplayEngine::end(const LivePtr& live) {
  timed(*live, [&] { cache_.finish(live->id); });
  std::erase(live_, live);
  poll();
  admit();
}

void ReplayEngine::poll() {
  const TimePoint begin = real_clock().now();
  for (int i = 0; i < kMostPolls && cache_.poll(Nanos{0}); ++i) {}
  result_.poll_us += 1e6 * elapsed_seconds(begin, real_clock().now());
}

// Tries again: this one, or those that wait.
void ReplayEngine::later(LivePtr live) {
  if (live != nullptr && live->stage != Stage::kBegun) {
    clock_.after(kRetryDelay, [this, live] { go_on(live); });
    return;
  }
  if (std::exchange(will_retry_, true)) return;
  clock_.after(kRetryDelay, [this] {
    will_retry_ = false;
    admit();
  });
}

}  // namespace larder
