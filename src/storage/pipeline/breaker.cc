// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/breaker.h"

#include <algorithm>

#include "base/defect.h"
#include "base/probe.h"

namespace larder {

CircuitBreaker::CircuitBreaker(const BreakerOptions& options, std::uint64_t seed) : options_(options), rng_(seed) {
  options_.failures = std::max(options_.failures, 1u);
  options_.rate_minimum = std::max(options_.rate_minimum, 20u);
  options_.rate_operations = std::max(options_.rate_operations, options_.rate_minimum);
  options_.jitter_percent = std::min(options_.jitter_percent, 100u);
  options_.max_backoff = std::max(options_.max_backoff, options_.first_backoff);
  recent_.resize(options_.rate_operations);
}

bool CircuitBreaker::would_admit(Weight weight, TimePoint now) const {
  if (state_ == State::kClosed) return true;
  return is_probe_due(now) && (weight == Weight::kDecisive || !is_hint_out_ || was_hint_served_);
}

std::optional<CircuitBreaker::Pass> CircuitBreaker::admit(Weight weight, TimePoint now) {
  if (!would_admit(weight, now)) return std::nullopt;
  if (state_ == State::kOpen) {
    if (weight == Weight::kDecisive) {
      probe(Probe::kBreakerProbed);
      enter(State::kHalfOpen);
    } else {
      is_hint_out_ = true;
    }
  }
  return Pass{epoch_, weight};
}

void CircuitBreaker::record(const Pass& pass, Outcome outcome, TimePoint now) {
  if (pass.epoch != epoch_) return;
  const Nanos doubled = std::min(backoff_ * 2, options_.max_backoff);
  switch (state_) {
    case State::kClosed:
      if (outcome == Outcome::kServed || outcome == Outcome::kFailed)
        record_closed(pass, outcome == Outcome::kFailed, now);
      return;
    case State::kHalfOpen:  // only the probe carries this epoch
      if ((outcome == Outcome::kServed || outcome == Outcome::kAnswered) && !defect(Defect::kBreakerStaysOpen)) {
        probe(Probe::kBreakerClosed);
        enter(State::kClosed);
      } else if (outcome == Outcome::kNoVerdict) {  // it was not asked: the next one is the probe
        enter(State::kOpen);
        next_probe_ = now;
      } else {
        if (outcome == Outcome::kFailed) ++failed_in_row_;
        open(outcome == Outcome::kFailed ? doubled : backoff_, now);
      }
      return;
    case State::kOpen:  // only hints do
      is_hint_out_ = false;
      was_hint_served_ = was_hint_served_ || outcome == Outcome::kServed;
      if (outcome == Outcome::kFailed) open(doubled, now);
      return;
  }
}

void CircuitBreaker::record_closed(const Pass& pass, bool is_failed, TimePoint now) {
  std::uint32_t& in_row = pass.weight == Weight::kHint ? hints_failed_in_row_ : failed_in_row_;
  in_row = is_failed ? in_row + 1 : 0;
  if (pass.weight == Weight::kDecisive) {
    recent_[recent_next_] = {now, is_failed};
    recent_next_ = (recent_next_ + 1) % recent_.size();
    recent_count_ = std::min(recent_count_ + 1, recent_.size());
  }
  if (in_row >= options_.failures || (is_failed && is_rate_too_high(now))) open(options_.first_backoff, now);
}

void CircuitBreaker::trip(TimePoint now) {
  if (state_ == State::kClosed) open(options_.first_backoff, now);
}

bool CircuitBreaker::is_rate_too_high(TimePoint now) {
  std::size_t seen = 0, failed = 0;
  for (std::size_t i = 0; i < recent_count_; ++i) {
    if (now - recent_[i].at > options_.rate_window) continue;
    ++seen;
    failed += recent_[i].is_failed ? 1 : 0;
  }
  return seen >= options_.rate_minimum && failed * 100 >= seen * options_.rate_percent;
}

void CircuitBreaker::open(Nanos backoff, TimePoint now) {
  probe(Probe::kBreakerOpened);
  enter(State::kOpen);
  backoff_ = backoff;
  const std::uint64_t percent = 100 - options_.jitter_percent + rng_.below(2 * options_.jitter_percent + 1);
  next_probe_ = now + backoff / 100 * static_cast<std::int64_t>(percent);
  ++opens_;
}

void CircuitBreaker::enter(State state) {
  state_ = state;
  ++epoch_;
  is_hint_out_ = was_hint_served_ = false;
  if (state != State::kClosed) return;
  failed_in_row_ = hints_failed_in_row_ = 0;
  recent_count_ = recent_next_ = 0;
}

}  // namespace larder
