// SPDX-License-Identifier: Apache-2.0
// A circuit breaker: stops asking a backend that fails, and asks again once in a while. A pure state machine.
//
//   closed ----- `failures` in a row, or too many of the last ones -----> open
//   open ------- back-off over, the next decisive operation comes -----> half-open (that operation is the probe)
//   half-open -- probe served, or answered with an error of its own --> closed    back-off starts anew
//   half-open -- probe failed --> open            back-off doubles
//   half-open -- no verdict ----> open            back-off stays, and is over: the next one is the probe
//
// Weights. A decisive operation touches what is behind the backend (a read, a write). A hint may be answered from a
// table in memory (exists), or take any time (clear): it neither closes the breaker nor ends a row of failed reads. But
// a row of failed hints opens it, too. When the back-off is over hints pass, because a reader asks exists first: one at
// a time, until one was served.
//
// Each operation counts at most once, and only while the breaker is in the state in which it admitted it: what
// returns late from before a change says nothing about now.
//
// Threads: confined, or under the owner's lock. Cost: O(1) and no allocation after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"

namespace larder {

struct BreakerOptions {
  std::uint32_t failures = 5;                    // in a row; at least 1
  std::uint32_t rate_percent = 50;               // failed share of the last operations
  std::uint32_t rate_operations = 50;            // how many of the last ones are looked at
  std::uint32_t rate_minimum = 20;               // and how many there must be; raised to 20, rate_operations with it
  Nanos rate_window = std::chrono::seconds(30);  // older ones are forgotten
  Nanos first_backoff = std::chrono::seconds(1);
  Nanos max_backoff = std::chrono::seconds(60);
  std::uint32_t jitter_percent = 20;  // a back-off is longer or shorter by up to so much
};

class CircuitBreaker {
 public:
  enum class State : std::uint8_t { kClosed = 0, kHalfOpen = 1, kOpen = 2 };
  enum class Weight : std::uint8_t { kDecisive, kHint };
  enum class Outcome : std::uint8_t {
    kServed,
    kFailed,
    kAnswered,  // with an error that is no failure of the backend ("no room"): it lives, if it is asked whether it does
    kNoVerdict,  // ended for a reason that says nothing about the backend's health
  };
  // What admit() gives and record() takes back.
  struct Pass {
    std::uint64_t epoch = 0;
    Weight weight = Weight::kDecisive;
  };

  CircuitBreaker(const BreakerOptions& options, std::uint64_t seed);

  // May this operation go to the backend? nullopt: no.
  [[nodiscard]] std::optional<Pass> admit(Weight weight, TimePoint now);
  // What admit() would say, without becoming the probe.
  [[nodiscard]] bool would_admit(Weight weight, TimePoint now) const;
  // Is it open with its back-off over? The next decisive operation is then the probe.
  [[nodiscard]] bool is_probe_due(TimePoint now) const { return state_ == State::kOpen && now >= next_probe_; }
  // Opens a closed breaker at once: nothing more can be given to the backend.
  void trip(TimePoint now);
  // At most once per pass.
  void record(const Pass& pass, Outcome outcome, TimePoint now);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] std::uint32_t consecutive_failures() const { return failed_in_row_; }
  [[nodiscard]] std::uint64_t opens() const { return opens_; }
  // When open: from when on a probe may pass.
  [[nodiscard]] TimePoint next_probe() const { return next_probe_; }
  [[nodiscard]] Nanos backoff() const { return backoff_; }  // without jitter

 private:
  struct Recent {
    TimePoint at;
    bool is_failed = false;
  };
  void record_closed(const Pass& pass, bool is_failed, TimePoint now);
  [[nodiscard]] bool is_rate_too_high(TimePoint now);
  void open(Nanos backoff, TimePoint now);
  void enter(State state);

  BreakerOptions options_;  // constant after construction
  Rng rng_;
  State state_ = State::kClosed;
  std::uint64_t epoch_ = 0;  // counts changes of state
  std::uint32_t failed_in_row_ = 0, hints_failed_in_row_ = 0;
  std::vector<Recent> recent_;  // ring of rate_operations
  std::size_t recent_next_ = 0, recent_count_ = 0;
  Nanos backoff_{0};
  TimePoint next_probe_{};
  bool is_hint_out_ = false;      // open: a hint passed and has not come back
  bool was_hint_served_ = false;  // open: since then
  std::uint64_t opens_ = 0;
};

}  // namespace larder
