// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/storage_pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <new>
#include <stdexcept>
#include <string>

#include "storage/pipeline/pipeline_test_util.h"

namespace larder {
namespace {

using namespace pipeline_test;
using std::chrono::milliseconds;
using std::chrono::seconds;

class StoragePipelineTest : public testing::Test {
 protected:
  void make(const PipelineOptions& options) {
    auto inner = std::make_unique<HoldingBackend>();
    inner_ = inner.get();
    pipeline_ = make_pipeline(std::move(inner), options, clock_, &metrics_, 7);
  }
  // One read, one write and one exists at a time; three failures open a breaker, back-off exactly 1 s.
  static PipelineOptions narrow() {
    PipelineOptions options;
    options.max_reads_in_flight = options.max_writes_in_flight = options.max_exists_in_flight = 1;
    options.breaker.failures = 3;
    options.breaker.jitter_percent = 0;
    return options;
  }
  // Ended operations land in ended_[tag] with the code of their first item; how often each in times_.
  Status read(std::uint8_t tag, const OperationTerms& terms = {}, std::vector<Segment> payload = {}) {
    return pipeline_->submit_read(read_of(tag, terms, std::move(payload)),
                                  [this, tag](const ReadResult& r) { end(tag, r.items.at(0)); });
  }
  Status write(std::uint8_t tag, Urgency urgency = Urgency::kBackground, std::vector<Segment> payload = {}) {
    return pipeline_->submit_write(write_of(tag, urgency, std::move(payload)),
                                   [this, tag](const WriteResult& r) { end(tag, r.groups.at(0)); });
  }
  Status exists(std::uint8_t tag) {
    return pipeline_->submit_exists(exists_of(tag), [this, tag](const ExistsResult& r) {
      is_present_ = r.status.is_ok() && r.presence.at(0).present.at(0);
      end(tag, r.status);
    });
  }
  void end(std::uint8_t tag, const Status& status) {
    ended_[tag] = status.code();
    messages_[tag] = status.message();
    ++times_[tag];
  }
  [[nodiscard]] bool is_ended(std::uint8_t tag, StatusCode code) const {
    const auto at = ended_.find(tag);
    return at != ended_.end() && at->second == code && times_.at(tag) == 1;
  }
  void fail_reads(int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(read(200).is_ok());
      inner_->answer_next(unavailable("the disk is gone"));
    }
  }
  [[nodiscard]] CircuitBreaker::State state(Direction direction) const {
    return pipeline_->health().breakers[index_of(direction)].state;
  }

  ManualClock clock_{seconds(1000)};
  MetricsRegistry metrics_;
  HoldingBackend* inner_ = nullptr;
  std::map<std::uint8_t, StatusCode> ended_;
  std::map<std::uint8_t, std::string> messages_;
  std::map<std::uint8_t, int> times_;
  bool is_present_ = false;
  std::unique_ptr<StoragePipeline> pipeline_;  // last: its end runs callbacks
};

TEST_F(StoragePipelineTest, ServesByUrgencyThenInOrder) {
  make(narrow());
  EXPECT_TRUE(read(1, terms_of(Urgency::kBackground)).is_ok());  // has the place
  EXPECT_TRUE(read(2, terms_of(Urgency::kBackground)).is_ok());
  EXPECT_TRUE(read(3, terms_of(Urgency::kSpeculative)).is_ok());
  EXPECT_TRUE(read(4, terms_of(Urgency::kWaiting)).is_ok());
  EXPECT_TRUE(read(5, terms_of(Urgency::kWaiting)).is_ok());
  EXPECT_TRUE(read(6, terms_of(Urgency::kBackground)).is_ok());
  EXPECT_TRUE(read(7, terms_of(Urgency::kSpeculative)).is_ok());
  EXPECT_EQ(pipeline_->stats().queued, 7u);
  const PipelineHealth::LaneState lane = pipeline_->health().lanes[index_of(Lane::kRead)];
  EXPECT_EQ(lane.queued, (std::array<std::size_t, kUrgencyCount>{2, 2, 2}));
  EXPECT_EQ(lane.in_flight, 1u);
  while (!inner_->held.empty()) inner_->answer_next();
  EXPECT_EQ(inner_->begun, (std::vector<std::uint8_t>{1, 4, 5, 3, 7, 2, 6}));
  EXPECT_EQ(inner_->most_held[index_of(Lane::kRead)], 1u);
  for (std::uint8_t tag = 1; tag <= 7; ++tag) EXPECT_TRUE(is_ended(tag, StatusCode::kOk)) << int{tag};
}

TEST_F(StoragePipelineTest, ABacklogInOneLaneDoesNotStarveAnother) {
  make(narrow());
  for (std::uint8_t tag = 0; tag < 100; ++tag) EXPECT_TRUE(write(tag).is_ok());
  EXPECT_TRUE(read(101).is_ok());
  EXPECT_TRUE(exists(102).is_ok());
  EXPECT_TRUE(pipeline_->submit_clear(make_scope(), [](const Status&) {}).is_ok());
  EXPECT_EQ(inner_->held_in(Lane::kWrite), 1u);
  EXPECT_EQ(inner_->held_in(Lane::kRead), 1u);
  EXPECT_EQ(inner_->held_in(Lane::kExists), 1u);
  EXPECT_EQ(inner_->held_in(Lane::kClear), 1u);
  for (std::uint8_t tag = 110; tag < 200; ++tag) EXPECT_TRUE(read(tag).is_ok());
  inner_->answer_tag(0);
  EXPECT_EQ(inner_->begun.back(), 1) << "the next write, whatever reads wait";
}

TEST_F(StoragePipelineTest, LimitsBytesInFlight) {
  PipelineOptions options = narrow();
  options.max_reads_in_flight = 10;
  options.max_read_bytes_in_flight = 1000;
  make(options);
  std::vector<std::byte> memory(5000);
  const auto bytes = [&memory](std::size_t size) { return std::vector<Segment>{{memory.data(), size}}; };
  for (std::uint8_t tag = 1; tag <= 3; ++tag) EXPECT_TRUE(read(tag, {}, bytes(400)).is_ok());
  EXPECT_TRUE(read(4, {}, bytes(5000)).is_ok());
  EXPECT_TRUE(read(5, {}, bytes(1)).is_ok());
  EXPECT_EQ(inner_->held.size(), 2u);
  EXPECT_EQ(pipeline_->health().lanes[index_of(Lane::kRead)].in_flight_bytes, 800u);
  inner_->answer_next();
  EXPECT_EQ(inner_->begun.back(), 3);
  inner_->answer_next();
  EXPECT_EQ(inner_->held.size(), 1u) << "the large one waits for all, and the small one behind it does not overtake";
  inner_->answer_next();
  EXPECT_EQ(inner_->begun.back(), 4) << "alone";
  EXPECT_EQ(inner_->held.size(), 1u);
  inner_->answer_next();
  EXPECT_EQ(inner_->begun.back(), 5);
}

TEST_F(StoragePipelineTest, WhatIsLateNeverReachesTheBackend) {
  make(narrow());
  EXPECT_TRUE(read(1, terms_of(Urgency::kWaiting, clock_.now() + seconds(1))).is_ok());  // in flight: stays
  EXPECT_TRUE(read(2, terms_of(Urgency::kWaiting, clock_.now() + seconds(1))).is_ok());
  EXPECT_TRUE(read(3, terms_of(Urgency::kWaiting, clock_.now() + seconds(5))).is_ok());
  clock_.advance(seconds(1));
  EXPECT_TRUE(ended_.empty()) << "no timers";
  pipeline_->tick();
  EXPECT_TRUE(is_ended(2, StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ended_.size(), 1u) << "what the backend has is never ended from here";
  clock_.advance(seconds(5));
  inner_->answer_next();
  EXPECT_TRUE(is_ended(1, StatusCode::kOk));
  EXPECT_TRUE(is_ended(3, StatusCode::kDeadlineExceeded)) << "found at a completion";
  EXPECT_TRUE(read(4, terms_of(Urgency::kWaiting, clock_.now())).is_ok());
  EXPECT_TRUE(is_ended(4, StatusCode::kDeadlineExceeded)) << "late at submit";
  EXPECT_EQ(inner_->begun, std::vector<std::uint8_t>{1});
}

TEST_F(StoragePipelineTest, OneLateOperationDeepInTheQueueIsFoundAtTheNextEvent) {
  make(narrow());
  ASSERT_TRUE(read(100, terms_of(Urgency::kBackground)).is_ok());
  for (std::uint8_t tag = 0; tag < 50; ++tag) ASSERT_TRUE(read(tag, terms_of(Urgency::kBackground)).is_ok());
  ASSERT_TRUE(read(60, terms_of(Urgency::kBackground, clock_.now() + seconds(1))).is_ok());
  for (std::uint8_t tag = 61; tag < 100; ++tag) ASSERT_TRUE(read(tag, terms_of(Urgency::kBackground)).is_ok());
  inner_->answer_next();
  EXPECT_EQ(ended_.size(), 1u);
  clock_.advance(seconds(1));
  inner_->answer_next();
  EXPECT_TRUE(is_ended(60, StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ended_.size(), 3u);
}

TEST_F(StoragePipelineTest, ASubmitFindsWhatIsLateInOtherLanes) {
  make(narrow());
  EXPECT_TRUE(write(1).is_ok());
  WriteRequest late = write_of(2);
  late.terms.deadline = clock_.now() + seconds(1);
  EXPECT_TRUE(pipeline_->submit_write(late, [this](const WriteResult& r) { end(2, r.groups.at(0)); }).is_ok());
  clock_.advance(seconds(2));
  EXPECT_TRUE(read(3).is_ok());
  EXPECT_TRUE(is_ended(2, StatusCode::kDeadlineExceeded));
}

TEST_F(StoragePipelineTest, WhatIsCancelledNeverReachesTheBackend) {
  make(narrow());
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  const OperationTerms terms{Urgency::kWaiting, TimePoint::max(), flag};
  EXPECT_TRUE(read(1, terms).is_ok());
  EXPECT_TRUE(read(2, terms).is_ok());
  EXPECT_TRUE(read(3).is_ok());
  EXPECT_TRUE(read(4, terms).is_ok());
  flag->store(true);
  pipeline_->tick();
  EXPECT_TRUE(is_ended(2, StatusCode::kCancelled));
  EXPECT_TRUE(is_ended(4, StatusCode::kCancelled)) << "not only the first of the queue";
  inner_->answer_next();
  EXPECT_TRUE(is_ended(1, StatusCode::kOk)) << "in flight when it was cancelled";
  EXPECT_EQ(inner_->begun, (std::vector<std::uint8_t>{1, 3}));
}

TEST_F(StoragePipelineTest, ACancelledOperationIsFoundWithoutATickAfterAFewEvents) {
  make(narrow());
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  for (std::uint8_t tag = 1; tag <= 5; ++tag) ASSERT_TRUE(read(tag).is_ok());
  ASSERT_TRUE(read(6, {Urgency::kBackground, TimePoint::max(), flag}).is_ok());
  flag->store(true);
  for (std::uint8_t tag = 100; tag < 106; ++tag) ASSERT_TRUE(write(tag).is_ok());
  EXPECT_TRUE(is_ended(6, StatusCode::kCancelled));
}

TEST_F(StoragePipelineTest, TheQueueIsBoundedAndKeepsRoomForWhoWaits) {
  PipelineOptions options = narrow();
  options.queue_limit = 16;
  make(options);
  std::size_t background = 0, waiting = 0, reads = 0;
  ASSERT_TRUE(write(0).is_ok());
  for (std::uint8_t tag = 1; tag < 100; ++tag) background += write(tag).is_ok() ? 1 : 0;
  for (std::uint8_t tag = 100; tag < 150; ++tag) waiting += write(tag, Urgency::kWaiting).is_ok() ? 1 : 0;
  EXPECT_EQ(background, 9u) << "three quarters of the lane's share of 12";
  EXPECT_EQ(waiting, 3u);
  ASSERT_TRUE(read(150).is_ok());
  for (std::uint8_t tag = 151; tag < 200; ++tag) reads += read(tag).is_ok() ? 1 : 0;
  EXPECT_EQ(reads, 4u) << "writes did not take all";
  EXPECT_EQ(read(201).code(), StatusCode::kOverloaded);
  EXPECT_TRUE(ended_.empty());
  EXPECT_EQ(pipeline_->stats().queued, 2u + 16u);
  while (!inner_->held.empty()) inner_->answer_next();
  EXPECT_EQ(ended_.size(), 2u + 16u) << "the refused ones' callbacks never run";
}

TEST_F(StoragePipelineTest, ExpiredOperationsMakeRoomInAFullQueue) {
  PipelineOptions options = narrow();
  options.queue_limit = 1;
  make(options);
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  ASSERT_TRUE(read(1).is_ok());
  ASSERT_TRUE(read(2, {Urgency::kWaiting, TimePoint::max(), flag}).is_ok());
  EXPECT_EQ(read(3).code(), StatusCode::kOverloaded);
  flag->store(true);
  EXPECT_TRUE(read(3).is_ok());
  EXPECT_TRUE(is_ended(2, StatusCode::kCancelled));
}

// Each callback submits the next; the backend answers inside submit. The stack must not grow.
TEST_F(StoragePipelineTest, CallbacksThatSubmitDoNotRecurse) {
  make(narrow());
  inner_->inline_status = std::make_unique<Status>();
  int left = 20'000, depth = 0, deepest = 0;
  std::function<void()> submit_next = [&] {
    if (left-- == 0) return;
    const auto again = [&] {
      deepest = std::max(deepest, ++depth);
      submit_next();
      --depth;
    };
    const Status status = left % 2 == 0
                              ? pipeline_->submit_exists(exists_of(1), [again](const ExistsResult&) { again(); })
                              : pipeline_->submit_read(read_of(1), [again](const ReadResult&) { again(); });
    EXPECT_TRUE(status.is_ok());
  };
  submit_next();
  EXPECT_EQ(left, -1);
  EXPECT_EQ(deepest, 1);
}

TEST_F(StoragePipelineTest, CloseCancelsWhatWaitsAndWaitsForTheRest) {
  make(narrow());
  for (std::uint8_t tag = 1; tag <= 4; ++tag) ASSERT_TRUE(read(tag).is_ok());
  ASSERT_TRUE(write(5).is_ok());
  EXPECT_EQ(pipeline_->close(Nanos(0)).code(), StatusCode::kDeadlineExceeded);
  for (std::uint8_t tag = 2; tag <= 4; ++tag) EXPECT_TRUE(is_ended(tag, StatusCode::kCancelled)) << int{tag};
  EXPECT_EQ(ended_.size(), 3u);
  EXPECT_EQ(read(9).code(), StatusCode::kUnavailable);
  EXPECT_EQ(pipeline_->close(Nanos(0)).code(), StatusCode::kDeadlineExceeded);
  inner_->answer_next();
  inner_->answer_next();
  EXPECT_TRUE(is_ended(1, StatusCode::kOk));
  EXPECT_TRUE(is_ended(5, StatusCode::kOk));
  EXPECT_TRUE(pipeline_->close(Nanos(0)).is_ok());
  EXPECT_TRUE(pipeline_->close(Nanos(0)).is_ok());
  EXPECT_TRUE(pipeline_->health().is_closed);
  EXPECT_EQ(inner_->begun.size(), 2u);
}

TEST_F(StoragePipelineTest, TheDestructorEndsEverythingOnce) {
  make(narrow());
  for (std::uint8_t tag = 1; tag <= 4; ++tag) ASSERT_TRUE(read(tag).is_ok());
  pipeline_.reset();
  for (std::uint8_t tag = 1; tag <= 4; ++tag) EXPECT_TRUE(is_ended(tag, StatusCode::kCancelled)) << int{tag};
}

TEST_F(StoragePipelineTest, FailuresOpenTheBreakerAndAProbeClosesIt) {
  make(narrow());
  fail_reads(3);
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kOpen);
  const Status refused = read(1);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("the disk is gone"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("next try in 1.0 s"), std::string::npos) << refused.message();
  EXPECT_EQ(exists(2).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(write(3).is_ok()) << "writes have a breaker of their own";
  EXPECT_EQ(state(Direction::kWrite), CircuitBreaker::State::kClosed);
  clock_.advance(seconds(1));
  EXPECT_TRUE(read(4).is_ok()) << "the probe";
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kHalfOpen);
  EXPECT_EQ(read(5).code(), StatusCode::kUnavailable) << "one at a time";
  inner_->answer_tag(4, unavailable("still gone"));
  EXPECT_EQ(pipeline_->health().breakers[0].until_probe, seconds(2));
  clock_.advance(seconds(2));
  EXPECT_TRUE(read(6).is_ok());
  inner_->answer_tag(6, not_found("a miss is an answer"));
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
  EXPECT_TRUE(read(7).is_ok());
  EXPECT_EQ(pipeline_->health().breakers[0].last_error, "unavailable: still gone");
}

TEST_F(StoragePipelineTest, WhatIsNoFailureOpensNothing) {
  make(narrow());
  for (int i = 0; i < 100; ++i) {
    for (const Status& status : {not_found(""), corrupt(""), overloaded(""), unsupported(""), cancelled("")}) {
      ASSERT_TRUE(read(1).is_ok());
      inner_->answer_next(status);
      ASSERT_TRUE(write(1).is_ok());
      inner_->answer_next(status);
    }
  }
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
  EXPECT_EQ(state(Direction::kWrite), CircuitBreaker::State::kClosed);
}

TEST_F(StoragePipelineTest, AnExistsNeitherHidesFailingReadsNorEndsTheOutage) {
  make(narrow());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(exists(1).is_ok());
    inner_->answer_next();
    fail_reads(1);
  }
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kOpen);
  clock_.advance(seconds(1));
  ASSERT_TRUE(exists(2).is_ok()) << "a reader asks exists first";
  inner_->answer_next();
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kOpen);
  ASSERT_TRUE(read(3).is_ok());
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kHalfOpen);
}

TEST_F(StoragePipelineTest, OpeningEndsWhatWaits) {
  make(narrow());
  for (std::uint8_t tag = 1; tag <= 6; ++tag) ASSERT_TRUE(read(tag).is_ok());
  for (std::uint8_t tag = 1; tag <= 3; ++tag) inner_->answer_tag(tag, internal_error("broken"));
  for (std::uint8_t tag = 4; tag <= 6; ++tag) EXPECT_TRUE(is_ended(tag, StatusCode::kUnavailable)) << int{tag};
  EXPECT_EQ(inner_->begun, (std::vector<std::uint8_t>{1, 2, 3}));
}

TEST_F(StoragePipelineTest, AHungBackendOpensTheBreakerAndRecovers) {
  PipelineOptions options = narrow();
  options.max_reads_in_flight = 3;
  make(options);
  for (std::uint8_t tag = 1; tag <= 5; ++tag) ASSERT_TRUE(read(tag).is_ok());
  clock_.advance(seconds(10));
  pipeline_->tick();
  EXPECT_TRUE(ended_.empty()) << "at the limit, not beyond";
  clock_.advance(milliseconds(1));
  EXPECT_EQ(read(6).code(), StatusCode::kUnavailable) << "noticed at the submit";
  pipeline_->tick();
  EXPECT_TRUE(is_ended(4, StatusCode::kUnavailable));
  EXPECT_TRUE(is_ended(5, StatusCode::kUnavailable));
  EXPECT_EQ(inner_->held.size(), 3u) << "the hung ones keep their buffers and places";
  const PipelineHealth health = pipeline_->health();
  EXPECT_EQ(health.lanes[index_of(Lane::kRead)].slow, 3u);
  EXPECT_EQ(health.breakers[0].consecutive_failures, 3u) << "each counts once";
  EXPECT_NE(health.breakers[0].last_error.find("no answer"), std::string::npos);
  // Probes go beyond the full lane. The first one hangs, too.
  clock_.advance(seconds(1));
  ASSERT_TRUE(read(7).is_ok());
  EXPECT_EQ(inner_->held.size(), 4u);
  clock_.advance(seconds(11));
  pipeline_->tick();
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kOpen);
  clock_.advance(seconds(2));
  ASSERT_TRUE(read(8).is_ok());
  EXPECT_EQ(inner_->held.size(), 5u);
  inner_->answer_tag(8);
  EXPECT_TRUE(is_ended(8, StatusCode::kOk));
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
  while (!inner_->held.empty()) inner_->answer_next();
  for (const std::uint8_t tag : {1, 2, 3, 7}) EXPECT_TRUE(is_ended(tag, StatusCode::kOk)) << int{tag};
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
  EXPECT_EQ(pipeline_->health().breakers[0].opens, 2u);
}

TEST_F(StoragePipelineTest, ASlowOperationThatFailsInTheEndCountsOnce) {
  PipelineOptions options = narrow();
  options.max_reads_in_flight = 10;
  make(options);
  ASSERT_TRUE(read(1).is_ok());
  ASSERT_TRUE(read(2).is_ok());
  clock_.advance(seconds(11));
  pipeline_->tick();
  pipeline_->tick();
  inner_->answer_next(unavailable("at last"));
  inner_->answer_next();
  EXPECT_EQ(pipeline_->health().breakers[0].consecutive_failures, 2u);
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
  fail_reads(1);
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kOpen);
}

TEST_F(StoragePipelineTest, WithEveryPlaceHungNobodyWaits) {
  make(narrow());
  ASSERT_TRUE(read(1).is_ok());
  ASSERT_TRUE(read(2).is_ok());
  clock_.advance(seconds(11));
  pipeline_->tick();
  EXPECT_TRUE(is_ended(2, StatusCode::kUnavailable)) << "one failure, but no place is left";
  for (int i = 0; i < 20; ++i) {  // those for probes hang, too, one after the other
    clock_.advance(seconds(100));
    (void)read(static_cast<std::uint8_t>(10 + i));
    pipeline_->tick();
    EXPECT_EQ(pipeline_->health().lanes[index_of(Lane::kRead)].queued[0], 0u);
  }
  EXPECT_EQ(inner_->held.size(), 3u);
  EXPECT_EQ(ended_.size(), 17u)
      << "of 21, two probes hang, and two were refused while the probe before them was judged";
  for (const auto& [tag, code] : ended_) EXPECT_EQ(code, StatusCode::kUnavailable) << messages_[tag];
  while (!inner_->held.empty()) inner_->answer_next();
  clock_.advance(seconds(100));
  ASSERT_TRUE(read(50).is_ok());
  inner_->answer_next();
  EXPECT_TRUE(is_ended(50, StatusCode::kOk));
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
}

TEST_F(StoragePipelineTest, AClearMayTakeItsTime) {
  make(narrow());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pipeline_->submit_clear(make_scope(), [](const Status&) {}).is_ok());
    clock_.advance(seconds(100));
    pipeline_->tick();
    inner_->answer_next();
  }
  EXPECT_EQ(state(Direction::kWrite), CircuitBreaker::State::kClosed);
  EXPECT_EQ(pipeline_->health().breakers[index_of(Direction::kWrite)].consecutive_failures, 0u);
}

TEST_F(StoragePipelineTest, AClearThatHangsIsNotTheLastProbe) {
  make(narrow());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(write(1).is_ok());
    inner_->answer_next(unavailable("gone"));
  }
  clock_.advance(seconds(2));
  ASSERT_TRUE(pipeline_->submit_clear(make_scope(), [](const Status&) {}).is_ok());
  ASSERT_EQ(inner_->held_in(Lane::kClear), 1u);
  clock_.advance(seconds(600));
  pipeline_->tick();
  ASSERT_TRUE(write(2).is_ok());
  inner_->answer_tag(2);
  EXPECT_EQ(state(Direction::kWrite), CircuitBreaker::State::kClosed);
}

TEST_F(StoragePipelineTest, AProbeThatIsAnsweredWithNoRoomClosesTheBreaker) {
  make(narrow());
  fail_reads(3);
  clock_.advance(seconds(2));
  ASSERT_TRUE(read(2).is_ok());
  inner_->answer_next(overloaded("no room"));
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
}

TEST_F(StoragePipelineTest, PagesThatCouldNotBeReadAreMasked) {
  make(narrow());
  const auto ask = [this] {
    EXPECT_TRUE(exists(1).is_ok());
    inner_->answer_next();
    return is_present_;
  };
  const auto fail_read = [this](const Status& status) {
    EXPECT_TRUE(read(1).is_ok());
    inner_->answer_next(status);
  };
  EXPECT_TRUE(ask());
  for (const Status& status : {not_found(""), corrupt(""), unavailable("")}) {
    fail_read(status);
    EXPECT_FALSE(ask()) << status.to_string();
    clock_.advance(seconds(30));
    EXPECT_TRUE(ask()) << "for a while only";
  }
  fail_read(overloaded(""));
  EXPECT_TRUE(ask()) << "says nothing about the page";
  fail_read(not_found(""));
  EXPECT_FALSE(ask());
  ASSERT_TRUE(write(1).is_ok());
  inner_->answer_next(unsupported("declined"));
  EXPECT_FALSE(ask());
  ASSERT_TRUE(write(1).is_ok());
  inner_->answer_next();
  EXPECT_TRUE(ask()) << "written anew";
  fail_read(not_found(""));
  ASSERT_TRUE(pipeline_->submit_clear(make_scope(), [](const Status&) {}).is_ok());
  inner_->answer_next();
  EXPECT_TRUE(ask());
  EXPECT_EQ(pipeline_->health().negative_hits, 5u);
}

TEST_F(StoragePipelineTest, CountsWhatHappens) {
  make(narrow());
  std::vector<std::byte> memory(500);
  ASSERT_TRUE(read(1, {}, {{memory.data(), 500}}).is_ok());
  inner_->answer_next();
  ASSERT_TRUE(read(2, {}, {{memory.data(), 500}}).is_ok());
  inner_->answer_next(not_found(""));
  ASSERT_TRUE(write(3, Urgency::kBackground, {{memory.data(), 70}}).is_ok());
  clock_.advance(milliseconds(3));
  ASSERT_TRUE(write(4).is_ok());
  inner_->answer_next();
  const std::string text = metrics_.render();
  for (const char* line :
       {R"(larder_storage_operations_total{backend="holding",op="read",result="ok"} 1)",
        R"(larder_storage_operations_total{backend="holding",op="read",result="miss"} 1)",
        R"(larder_storage_pages_total{backend="holding",op="read",pool="kv",result="hit"} 1)",
        R"(larder_storage_bytes_total{backend="holding",op="read",pool="kv"} 500)",
        R"(larder_storage_bytes_total{backend="holding",op="write",pool="kv"} 70)",
        R"(larder_storage_in_flight_operations{backend="holding",op="write",urgency="background"} 1)",
        R"(larder_storage_service_seconds_bucket{backend="holding",op="write",le="0.002"} 0)",
        R"(larder_storage_service_seconds_bucket{backend="holding",op="write",le="0.005"} 1)",
        R"(larder_storage_queue_wait_seconds_count{backend="holding",op="write"} 2)",
        R"(larder_storage_negative_entries{backend="holding"} 1)"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  const PipelineHealth health = pipeline_->health();
  EXPECT_EQ(health.lanes[index_of(Lane::kWrite)].service_p99, milliseconds(3));
  EXPECT_EQ(health.lanes[index_of(Lane::kRead)].ended, 2u);
  EXPECT_EQ(health.backend, "holding");
  pipeline_.reset();
  const std::string after = metrics_.render();
  EXPECT_NE(after.find(R"(in_flight_operations{backend="holding",op="write",urgency="background"} 0)"),
            std::string::npos);
  EXPECT_EQ(after.find(R"(urgency="background"} 1)"), std::string::npos);
}

// Out of memory, or a plugin's exception: the operation ends, and the next ones are served.
TEST_F(StoragePipelineTest, ABackendThatThrowsHoldsNothingUp) {
  make(narrow());
  inner_->before_submit = [] { throw std::bad_alloc(); };
  EXPECT_TRUE(read(1).is_ok());
  EXPECT_TRUE(is_ended(1, StatusCode::kOverloaded));
  inner_->before_submit = [] { throw std::runtime_error("odd"); };
  EXPECT_TRUE(read(2).is_ok());
  EXPECT_TRUE(is_ended(2, StatusCode::kInternal));
  inner_->before_submit = nullptr;
  inner_->inline_status = std::make_unique<Status>();
  EXPECT_TRUE(read(3).is_ok());
  EXPECT_TRUE(is_ended(3, StatusCode::kOk));
}

TEST_F(StoragePipelineTest, WhatTheBackendRefusesEndsWithItsStatus) {
  make(narrow());
  inner_->refusal = overloaded("full");
  for (std::uint8_t tag = 1; tag <= 10; ++tag) {
    EXPECT_TRUE(read(tag).is_ok());
    EXPECT_TRUE(is_ended(tag, StatusCode::kOverloaded)) << int{tag};
  }
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kClosed);
  inner_->refusal = unavailable("gone");
  for (std::uint8_t tag = 11; tag <= 13; ++tag) EXPECT_TRUE(read(tag).is_ok());
  EXPECT_EQ(state(Direction::kRead), CircuitBreaker::State::kOpen);
}

}  // namespace
}  // namespace larder
