// SPDX-License-Identifier: Apache-2.0
// Requests that grow while they run, and make room for each other: no slot is reserved for a token that may never come.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

HarnessOptions small_device(Shape shape, std::uint32_t pages) {
  HarnessOptions o = eager_options(shape);
  o.device = {pages, 64, 24};
  o.storage = false;
  o.config.decode_headroom_tokens = 4;  // a page
  return o;
}

std::uint32_t free_pages(const Harness& h) { return h.device->free_slots(ComponentKind::kFull); }

// Until the job has computed so many tokens, or moves no more.
bool grow_to(Harness& h, Harness::Job& job, std::uint64_t computed) {
  for (int idle = 0; (!job.started || job.computed < computed) && idle < 20 && h.failure.empty();) {
    if (h.advance(job, 16)) {
      idle = 0;
    } else {
      (void)h.run_background(100), ++idle;
    }
  }
  return job.started && job.computed >= computed;
}

TEST(CacheGrowth, StartReservesThePromptAndAHeadroom) {
  HarnessOptions o = small_device(Shape::kFull, 200);
  o.config.decode_headroom_tokens = 10;
  Harness h(o);
  Harness::Job job = h.begin(prompt_of(40), 700);
  ASSERT_TRUE(h.advance(job, 16));
  EXPECT_EQ(free_pages(h), 200u - 13u);  // 50 tokens, pages of 4
  ASSERT_TRUE(grow_to(h, job, 52));
  EXPECT_EQ(h.cache->counters().grown, 0u);
  ASSERT_TRUE(grow_to(h, job, 400));
  EXPECT_GE(h.cache->counters().grown, 100u - 13u);
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  h.finish(job);
  EXPECT_EQ(h.check_settled(), "");
}

// A request that waits for a slow storage keeps the pages that it goes on from in place; a request that runs comes
// first.
TEST(CacheGrowth, WhatWaitsForStorageHoldsUpNobodyWhoRuns) {
  for (const PrefetchPolicy policy : {PrefetchPolicy::kTimeout, PrefetchPolicy::kWaitComplete}) {
    HarnessOptions o = small_device(Shape::kFull, 30);
    o.storage = true;
    o.config.prefetch_policy = policy;
    Harness h(o);
    store_only(h, prompt_of(80));
    (void)h.run(prompt_of(40), 1);
    h.settle();
    h.backend->script = [](Call c, std::size_t) { return c == Call::kRead ? Fault::kHold : Fault::kNone; };
    Harness::Job running = h.begin(prompt_of(40, 7), 60), other = h.begin(prompt_of(4, 9), 30);
    ASSERT_TRUE(grow_to(h, running, 40));
    ASSERT_TRUE(grow_to(h, other, 8));
    Harness::Job waiting = h.begin(prompt_of(80), 4);
    look(h);
    ASSERT_GT(h.backend->held(), 0u);
    EXPECT_TRUE(grow_to(h, running, 92)) << h.refusal;  // 23 pages of 30, and others have three
    EXPECT_EQ(h.cache->counters().retracted, 0u);
    h.finish(running);
    h.finish(other);
    h.backend->script = {};
    (void)h.backend->release();
    for (int i = 0; i < 200 && !h.done(waiting); ++i) {
      if (!h.advance(waiting, 16)) (void)h.run_background(100);
    }
    EXPECT_TRUE(h.done(waiting)) << h.refusal;
    h.finish(waiting);
    h.settle();
    EXPECT_EQ(h.failure, "");
    EXPECT_EQ(h.check_clean(), "");
  }
}

// A request of which little is left reserves no more than that.
TEST(CacheGrowth, TheHeadroomEndsWithTheRequest) {
  HarnessOptions o = small_device(Shape::kFull, 64);
  o.config.decode_headroom_tokens = 100;
  Harness h(o);
  Harness::Job job = h.begin(prompt_of(40), 5);
  ASSERT_TRUE(h.advance(job, 16));
  EXPECT_EQ(free_pages(h), 64u - 11u);  // the last token is never fed
  h.finish(job);
  EXPECT_EQ(h.check_settled(), "");
}

TEST(CacheGrowth, WhatCannotEverFitIsRefusedAtBegin) {
  Harness h(small_device(Shape::kFull, 64));
  const std::vector<TokenId> prompt = prompt_of(40);
  EXPECT_EQ(h.cache->begin({.tokens = prompt, .max_new_tokens = 218}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(h.cache->begin({.tokens = prompt, .max_new_tokens = 217}).is_ok());
}

// Cached pages go first; then a request starves, and one that is retracted makes room.
TEST(CacheGrowth, StarvesWhenRunningRequestsFillTheDevice) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar}) {
    SCOPED_TRACE(shape_name(shape));
    Harness h(small_device(shape, 40));
    (void)h.run(prompt_of(60, 5), 2);  // 15 pages that nobody uses
    h.settle();
    Harness::Job first = h.begin(prompt_of(50), 100);
    Harness::Job second = h.begin(prompt_of(50, 9), 100);
    ASSERT_TRUE(grow_to(h, first, 60));
    ASSERT_TRUE(grow_to(h, second, 60)) << h.refusal;
    EXPECT_FALSE(h.cache->is_starved(first.id));
    EXPECT_FALSE(grow_to(h, first, 149) && grow_to(h, second, 149));
    ASSERT_TRUE(h.cache->is_starved(first.id) || h.cache->is_starved(second.id)) << h.refusal;
    const std::vector<TokenId> before = second.tokens;
    h.retract(second);
    EXPECT_EQ(h.cache->phase(second.id), RequestPhase::kReady);
    EXPECT_EQ(h.cache->counters().retracted, 1u);
    EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
    ASSERT_TRUE(grow_to(h, first, 149)) << h.refusal << h.failure;
    h.finish(first);
    ASSERT_TRUE(grow_to(h, second, 149)) << h.refusal << h.failure;
    EXPECT_GT(second.resumed, 40u) << "it goes on where it was";
    EXPECT_TRUE(std::equal(before.begin(), before.end(), second.tokens.begin()));
    h.finish(second);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// At once, on what is still there: all of it but a part of a page.
TEST(CacheGrowth, ResumesAtTheEndOfWhatItComputed) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    for (std::uint64_t computed = 30; computed < 70; ++computed) {
      SCOPED_TRACE(shape_name(shape) + " at " + std::to_string(computed));
      Harness h(small_device(shape, 60));
      Harness::Job job = h.begin(prompt_of(30), 60);
      ASSERT_TRUE(grow_to(h, job, computed));
      h.retract(job);
      ASSERT_TRUE(grow_to(h, job, 1));
      EXPECT_EQ(job.resumed, computed == 30 ? 28 : computed / 4 * 4);
      EXPECT_EQ(job.cached.cached(), 0u) << "what the first start found";
      ASSERT_TRUE(grow_to(h, job, 89)) << h.failure;
      h.finish(job);
      EXPECT_GE(h.run(job.tokens, 2).cached(), 84u);
      h.settle();
      ASSERT_EQ(h.check_clean(), "");
    }
  }
}

// A start that came to nothing is no answer: the next one finds what is there by then.
TEST(CacheGrowth, AStartWithoutAStepIsToldAnew) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    SCOPED_TRACE(shape_name(shape));
    Harness h(small_device(shape, 40));
    (void)h.run(prompt_of(60), 1);
    h.settle();
    Harness::Job job = h.begin(prompt_of(60), 20);
    ASSERT_TRUE(h.advance(job, 16)) << h.refusal;
    EXPECT_EQ(job.cached.cached(), 56u);
    h.retract(job);
    (void)h.cache->flush();
    ASSERT_TRUE(h.advance(job, 16)) << h.refusal;
    EXPECT_EQ(job.resumed, 0u);
    EXPECT_EQ(job.cached.cached(), 0u);
    EXPECT_EQ(miss_reason_name(job.cached.miss.reason), "flushed");
    ASSERT_TRUE(grow_to(h, job, 70)) << h.refusal << h.failure;
    h.retract(job);
    ASSERT_TRUE(grow_to(h, job, 1));
    EXPECT_GT(job.resumed, 60u);
    EXPECT_EQ(job.cached.cached(), 0u) << "it has computed with that";
    h.finish(job);
    EXPECT_EQ(h.check_settled(), "");
  }
}

TEST(CacheGrowth, RetractInEveryPhase) {
  Harness h(small_device(Shape::kFullMamba, 64));
  EXPECT_EQ(h.cache->retract(RequestId(77)).code(), StatusCode::kNotFound);
  EXPECT_FALSE(h.cache->is_starved(RequestId(77)));
  (void)h.run(prompt_of(60), 4);
  h.settle();
  for (TokenId other = 1; other < 9; ++other) (void)h.run(prompt_of(60, other), 4);  // it is on the host only
  h.settle();
  Harness::Job job = h.begin(prompt_of(60), 20);
  EXPECT_EQ(h.cache->retract(job.id).code(), StatusCode::kInvalidArgument);  // it holds nothing
  while (!job.started && h.failure.empty()) {
    if (!h.advance(job, 16)) (void)h.run_background(1);
  }
  h.retract(job);  // its load-back is under way
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  ASSERT_TRUE(grow_to(h, job, 20));
  h.retract(job);  // in its prompt
  ASSERT_TRUE(grow_to(h, job, 70)) << h.failure << h.refusal;
  h.cache->abort(job.id);
  EXPECT_EQ(h.check_settled(), "");
}

// A start that a retract made void has brought the pages to the device; they came from where they were all the same.
TEST(CacheGrowth, ARetractBeforeTheFirstStepTellsWherePagesCameFrom) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    for (const bool from_storage : {false, true}) {
      SCOPED_TRACE(shape_name(shape) + (from_storage ? ", storage" : ", host"));
      HarnessOptions o = eager_options(shape);
      o.device = {40, 40, 8};
      o.host_slots = 400;
      Harness h(o);
      if (from_storage) {
        store_only(h, prompt_of(60));
      } else {
        (void)h.run(prompt_of(60), 4);
        h.settle();
        for (TokenId other = 10; other < 19; ++other) (void)h.run(prompt_of(60, other), 4), h.settle();
      }
      const auto start = [&](Harness::Job& job) {
        for (int i = 0; i < 200 && !h.advance(job, 16); ++i) look(h);
        ASSERT_TRUE(job.started) << h.refusal;
      };
      Harness::Job job = h.begin(prompt_of(60), 4);
      start(job);
      look(h);
      EXPECT_EQ(from_storage ? job.cached.storage : job.cached.host, 56u);
      for (int retracts = 0; retracts < 2; ++retracts) {
        h.retract(job);
        look(h);
        start(job);
        EXPECT_EQ(job.resumed, 56u);
        EXPECT_EQ(job.cached.device, 0u);
        EXPECT_EQ(from_storage ? job.cached.storage : job.cached.host, 56u);
      }
      while (!h.done(job) && h.failure.empty()) (void)(h.advance(job, 16) || h.run_background(100));
      h.finish(job);
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

// Its pages would be found under the tokens of the first answer.
TEST(CacheGrowth, AnAnswerThatBeginsAnewIsAnotherRequest) {
  Harness h(small_device(Shape::kFull, 60));
  Harness::Job job = h.begin(prompt_of(30), 60);
  ASSERT_TRUE(grow_to(h, job, 70));
  h.retract(job);
  h.settle();
  (void)h.cache->flush();
  ASSERT_TRUE(h.advance(job, 16));
  ASSERT_EQ(job.resumed, 0u);
  const Result<StepGrant> step = h.cache->prepare_step(job.id, 50);
  ASSERT_TRUE(step.is_ok());
  for (const std::uint64_t at : {29u, 30u, 49u}) {
    std::vector<TokenId> other(job.tokens.begin(), job.tokens.begin() + 50);
    other[at] ^= 1;
    const Status refused = h.cache->complete_step(step->token, other);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("token " + std::to_string(at)), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(h.cache->complete_step(step->token, std::span<const TokenId>(job.tokens).first(50)).is_ok());
  h.cache->abort(job.id);
  EXPECT_EQ(h.check_settled(), "");
}

// It does not come back to the pages that it has just left to others.
TEST(CacheGrowth, WhoWasRetractedWaitsForRoomForItselfAndAPageForEachOther) {
  Harness h(small_device(Shape::kFull, 40));
  Harness::Job first = h.begin(prompt_of(50), 100);
  Harness::Job second = h.begin(prompt_of(50, 9), 100);
  ASSERT_TRUE(grow_to(h, first, 51));
  ASSERT_TRUE(grow_to(h, second, 60));
  (void)grow_to(h, first, 149);
  ASSERT_TRUE(h.cache->is_starved(first.id));
  h.retract(second);
  ASSERT_TRUE(h.advance(first, 16));
  int starts = 0;
  while (!h.done(first) && h.failure.empty()) {
    starts += h.advance(second, 16) && second.retracts > 1;
    if (h.advance(first, 16)) continue;
    if (h.cache->is_starved(first.id)) h.retract(second);
    (void)h.run_background(10);
  }
  EXPECT_LE(second.retracts, 2);
  h.finish(first);
  ASSERT_TRUE(grow_to(h, second, 149)) << h.refusal << h.failure << second.computed << second.started
                                       << h.cache->is_starved(second.id);
  h.finish(second);
  EXPECT_EQ(h.check_settled(), "");
}

}  // namespace
}  // namespace larder::test
