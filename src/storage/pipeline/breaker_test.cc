// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/breaker.h"

#include <gtest/gtest.h>

#include <string>

namespace larder {
namespace {

using State = CircuitBreaker::State;
using Weight = CircuitBreaker::Weight;
using Outcome = CircuitBreaker::Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

class BreakerTest : public testing::Test {
 protected:
  static BreakerOptions options() {
    BreakerOptions out;
    out.failures = 3;
    out.jitter_percent = 0;
    return out;
  }
  // Admits and records one operation; false: it was not admitted.
  bool run(CircuitBreaker& breaker, Outcome outcome, Weight weight = Weight::kDecisive) const {
    const auto pass = breaker.admit(weight, now_);
    if (pass) breaker.record(*pass, outcome, now_);
    return pass.has_value();
  }
  void fail(CircuitBreaker& breaker, int times) const {
    for (int i = 0; i < times; ++i) EXPECT_TRUE(run(breaker, Outcome::kFailed));
  }
  TimePoint now_{seconds(100)};
};

// f: a failed operation, s: served, a: answered with an error, n: no verdict, F and S: the same of hints, >: a second
// passes.
TEST_F(BreakerTest, TableOfRows) {
  struct Case {
    std::string events;
    State end;
  };
  const Case cases[] = {
      {"", State::kClosed},        {"ff", State::kClosed},       {"fff", State::kOpen},
      {"ffsff", State::kClosed},   {"ffsfff", State::kOpen},     {"ffnf", State::kOpen},
      {"ffSf", State::kOpen},      {"ffFf", State::kOpen},       {"FFF", State::kOpen},
      {"FFSFF", State::kClosed},   {"FFsF", State::kOpen},       {"ff>>>f", State::kOpen},
      {"fff>s", State::kClosed},   {"fff>f", State::kOpen},      {"fff>n", State::kOpen},
      {"fff>S", State::kOpen},     {"fff>Ss", State::kClosed},   {"fff>F", State::kOpen},
      {"fff>f>s", State::kOpen},   {"fff>f>>s", State::kClosed}, {"fff>n>s", State::kClosed},
      {"fff>sff", State::kClosed}, {"fff>sfff", State::kOpen},   {"fff>F>s", State::kOpen},
      {"ffaf", State::kOpen},      {"fff>a", State::kClosed},    {"aaaa", State::kClosed},
  };
  for (const Case& c : cases) {
    CircuitBreaker breaker(options(), 1);
    TimePoint now = now_;
    for (const char event : c.events) {
      if (event == '>') {
        now += seconds(1);
        continue;
      }
      const Weight weight = event == 'F' || event == 'S' ? Weight::kHint : Weight::kDecisive;
      const Outcome outcome = event == 'n'                   ? Outcome::kNoVerdict
                              : event == 'a'                 ? Outcome::kAnswered
                              : event == 'f' || event == 'F' ? Outcome::kFailed
                                                             : Outcome::kServed;
      if (const auto pass = breaker.admit(weight, now)) breaker.record(*pass, outcome, now);
    }
    EXPECT_EQ(breaker.state(), c.end) << "events '" << c.events << "'";
  }
}

TEST_F(BreakerTest, OpenRefusesUntilTheBackOffIsOverThenOneProbe) {
  CircuitBreaker breaker(options(), 1);
  fail(breaker, 3);
  EXPECT_FALSE(breaker.would_admit(Weight::kDecisive, now_));
  now_ += milliseconds(999);
  EXPECT_FALSE(breaker.admit(Weight::kDecisive, now_));
  EXPECT_FALSE(breaker.admit(Weight::kHint, now_));
  now_ += milliseconds(1);
  EXPECT_TRUE(breaker.is_probe_due(now_));
  const auto probe = breaker.admit(Weight::kDecisive, now_);
  ASSERT_TRUE(probe);
  EXPECT_EQ(breaker.state(), State::kHalfOpen);
  EXPECT_FALSE(breaker.admit(Weight::kDecisive, now_)) << "one at a time";
  EXPECT_FALSE(breaker.admit(Weight::kHint, now_));
  breaker.record(*probe, Outcome::kServed, now_);
  EXPECT_EQ(breaker.state(), State::kClosed);
  EXPECT_EQ(breaker.opens(), 1u);
  EXPECT_EQ(breaker.consecutive_failures(), 0u);
}

TEST_F(BreakerTest, BackOffDoublesToItsLimitAndStartsAnewAfterSuccess) {
  CircuitBreaker breaker(options(), 1);
  fail(breaker, 3);
  for (const int wanted : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(breaker.backoff(), seconds(wanted));
    EXPECT_EQ(breaker.next_probe(), now_ + seconds(wanted));
    now_ = breaker.next_probe();
    fail(breaker, 1);
  }
  now_ = breaker.next_probe();
  EXPECT_TRUE(run(breaker, Outcome::kNoVerdict));
  EXPECT_EQ(breaker.backoff(), seconds(60)) << "no verdict: as before";
  EXPECT_EQ(breaker.next_probe(), now_);
  EXPECT_TRUE(run(breaker, Outcome::kServed));
  fail(breaker, 3);
  EXPECT_EQ(breaker.backoff(), seconds(1));
  EXPECT_EQ(breaker.opens(), 10u);
}

TEST_F(BreakerTest, JitterStaysWithinItsShareAndComesFromTheSeed) {
  BreakerOptions with_jitter = options();
  with_jitter.jitter_percent = 20;
  bool is_spread = false;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CircuitBreaker breaker(with_jitter, seed), same(with_jitter, seed);
    fail(breaker, 3);
    fail(same, 3);
    EXPECT_EQ(breaker.next_probe(), same.next_probe());
    EXPECT_GE(breaker.next_probe(), now_ + milliseconds(800));
    EXPECT_LE(breaker.next_probe(), now_ + milliseconds(1200));
    is_spread = is_spread || breaker.next_probe() != now_ + seconds(1);
  }
  EXPECT_TRUE(is_spread);
}

TEST_F(BreakerTest, FailureRateOpensWithoutARow) {
  CircuitBreaker breaker(options(), 1);
  for (int i = 0; i < 19; ++i) EXPECT_TRUE(run(breaker, i % 2 == 0 ? Outcome::kFailed : Outcome::kServed));
  EXPECT_EQ(breaker.state(), State::kClosed) << "too few to judge";
  EXPECT_TRUE(run(breaker, Outcome::kFailed));
  EXPECT_EQ(breaker.state(), State::kOpen) << "11 of 20";
}

TEST_F(BreakerTest, RateForgetsWhatIsOldOrLongAgo) {
  CircuitBreaker slow(options(), 1);
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(run(slow, i % 2 == 0 ? Outcome::kFailed : Outcome::kServed));
    now_ += seconds(2);  // 15 operations per window
  }
  EXPECT_EQ(slow.state(), State::kClosed);
  CircuitBreaker mostly_good(options(), 1);
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(run(mostly_good, i % 5 < 2 ? Outcome::kFailed : Outcome::kServed));
  EXPECT_EQ(mostly_good.state(), State::kClosed) << "two of five";
}

TEST_F(BreakerTest, WhatWasAdmittedBeforeAChangeSaysNothingAfterIt) {
  CircuitBreaker breaker(options(), 1);
  const auto early = breaker.admit(Weight::kDecisive, now_), other = breaker.admit(Weight::kDecisive, now_);
  ASSERT_TRUE(early && other);
  fail(breaker, 3);
  breaker.record(*early, Outcome::kServed, now_);
  EXPECT_EQ(breaker.state(), State::kOpen);
  now_ = breaker.next_probe();
  const auto probe = breaker.admit(Weight::kDecisive, now_);
  breaker.record(*other, Outcome::kFailed, now_);
  EXPECT_EQ(breaker.state(), State::kHalfOpen);
  breaker.record(*probe, Outcome::kServed, now_);
  EXPECT_EQ(breaker.state(), State::kClosed);
  breaker.record(*probe, Outcome::kFailed, now_);
  EXPECT_EQ(breaker.consecutive_failures(), 0u);
}

TEST_F(BreakerTest, OneHintAtATimePassesWhenAProbeIsDue) {
  CircuitBreaker breaker(options(), 1);
  fail(breaker, 3);
  now_ = breaker.next_probe();
  const auto hint = breaker.admit(Weight::kHint, now_);
  ASSERT_TRUE(hint);
  EXPECT_FALSE(breaker.admit(Weight::kHint, now_));
  EXPECT_TRUE(breaker.would_admit(Weight::kDecisive, now_)) << "the probe need not wait for the hint";
  breaker.record(*hint, Outcome::kNoVerdict, now_);
  EXPECT_TRUE(breaker.admit(Weight::kHint, now_));
  EXPECT_FALSE(breaker.admit(Weight::kHint, now_));
}

// Of a store that came back empty nobody reads, so no read closes the breaker.
TEST_F(BreakerTest, AllHintsPassOnceOneWasServed) {
  CircuitBreaker breaker(options(), 1);
  fail(breaker, 3);
  now_ = breaker.next_probe();
  ASSERT_TRUE(run(breaker, Outcome::kServed, Weight::kHint));
  const auto one = breaker.admit(Weight::kHint, now_), another = breaker.admit(Weight::kHint, now_);
  ASSERT_TRUE(one && another);
  EXPECT_EQ(breaker.state(), State::kOpen) << "a hint is no proof";
  breaker.record(*one, Outcome::kFailed, now_);
  EXPECT_FALSE(breaker.admit(Weight::kHint, now_));
  now_ = breaker.next_probe();
  ASSERT_TRUE(breaker.admit(Weight::kHint, now_));
  EXPECT_FALSE(breaker.admit(Weight::kHint, now_)) << "it has to be served anew";
}

}  // namespace
}  // namespace larder
