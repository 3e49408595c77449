// SPDX-License-Identifier: Apache-2.0
// What a request waits for, and what it does not: copies of other requests that are under way.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

HarnessOptions without_storage(Shape shape) {
  HarnessOptions o = eager_options(shape);
  o.storage = false;
  o.host_slots = 400;
  return o;
}

// prompt_of(60) is on the host, and the device, which has 32 pages, has let go of most of it.
void push_to_host(Harness& h) {
  (void)h.run(prompt_of(60), 1);
  h.settle();
  (void)h.run(prompt_of(120, 9), 1);
  h.settle();
  ASSERT_LT(h.cache->tree().match(NamespaceId(0), prompt_of(60)).full_device_pages, 4u);
}

// ---- start

// A backup under way on the prompt's path lengthens no match, whatever others load meanwhile. It was waited for.
TEST(CacheWaiting, BackupsOnThePathHoldNobodyUp) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    HarnessOptions o = without_storage(shape);
    o.device = {32, 32, 9};
    Harness h(o);
    push_to_host(h);
    (void)h.run(prompt_of(13, 30), 1);  // nothing runs the copies to the host
    const std::size_t backups = h.cache->operations_in_flight();
    ASSERT_GT(backups, 0u);
    Harness::Job stranger = h.begin(prompt_of(60), 1);
    ASSERT_TRUE(h.advance(stranger, 16)) << h.refusal;
    ASSERT_GT(h.cache->operations_in_flight(), backups) << "loads";
    Harness::Job follower = h.begin(prompt_of(17, 30), 1);
    EXPECT_TRUE(h.advance(follower, 16)) << shape_name(shape) << ": " << h.refusal;
    EXPECT_EQ(follower.cached.device, 12u);
    h.cache->abort(stranger.id);
    h.cache->abort(follower.id);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// What is being loaded for one request is waited for by the next, which would load it again.
TEST(CacheWaiting, LoadsOnThePathAreWaitedFor) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa}) {
    HarnessOptions o = without_storage(shape);
    o.device = {32, 32, 0};
    Harness h(o);
    push_to_host(h);
    Harness::Job first = h.begin(prompt_of(60), 1), second = h.begin(prompt_of(60), 1);
    ASSERT_TRUE(h.advance(first, 16)) << h.refusal;
    EXPECT_FALSE(h.advance(second, 16));
    h.settle();
    EXPECT_TRUE(h.advance(second, 16)) << h.refusal;
    EXPECT_EQ(second.cached.device, 56u);
    h.cache->abort(first.id);
    h.cache->abort(second.id);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// ---- room

// A load frees nothing for a running request that needs window pages, and was waited for: when the victims had no room
// on the host, until an instant without any copy.
TEST(CacheWaiting, LoadsOfOthersHoldNoRunningRequestUp) {
  HarnessOptions o = without_storage(Shape::kFullSwa);
  o.device = {96, 56, 0};
  o.host_slots = 10;
  o.config.chunked_prefill_tokens = 80;
  Harness h(o);
  (void)h.run(prompt_of(16), 1);  // four pages, which have room on the host
  h.settle();
  h.cache->set_policies(PrefetchPolicy::kTimeout, WritePolicy::kWriteBack);
  for (const TokenId first : {9, 18, 27, 36}) {  // twenty pages in one node each, which do not
    (void)h.run(prompt_of(80, first), 1, "", 80);
    h.settle();
  }
  Harness::Job running = h.begin(prompt_of(120, 45), 8);
  for (int i = 0; i < 10 && !h.advance(running, 16); ++i) h.settle();
  h.device_api->script = [](CopyDirection d, std::size_t) {
    return d == CopyDirection::kHostToDevice ? Fault::kHold : Fault::kNone;
  };
  Harness::Job loading = h.begin(prompt_of(20), 1);
  for (int i = 0; i < 10 && !h.advance(loading, 16); ++i) (void)h.run_background(1000);
  ASSERT_TRUE(running.started && loading.started) << h.refusal;
  ASSERT_GT(loading.cached.host, 0u);
  for (int tries = 0; !h.done(running); ++tries) {
    if (h.advance(running, 16)) tries = 0;
    ASSERT_LT(tries, 3) << "at " << running.computed << ": " << h.refusal;
    (void)h.run_background(1000);
  }
  h.cache->abort(loading.id);
  h.cache->abort(running.id);
  ASSERT_TRUE(h.device_api->release().is_ok());
  EXPECT_EQ(h.check_settled(), "");
}

// A checkpoint on the way is worth one poll of waiting for the copy of its victim, and no more.
TEST(CacheWaiting, ACheckpointHoldsItsRequestUpOnce) {
  for (const WritePolicy policy : {WritePolicy::kWriteThrough, WritePolicy::kWriteBack}) {
    HarnessOptions o = without_storage(Shape::kFullMamba);
    o.device = {400, 0, 9};
    o.config.write_policy = policy;
    Harness h(o);
    for (TokenId i = 0; i < 8; ++i) (void)h.run(prompt_of(9, i * 5), 1);  // nothing runs their copies
    (void)h.cache->poll(Nanos::zero());
    std::size_t held = 0;
    for (TokenId i = 8; i < 12; ++i) {
      Harness::Job job = h.begin(prompt_of(9, i * 5), 1);
      while (!h.advance(job, 16)) {
        ASSERT_LT(++held, 20u) << h.refusal;
        (void)h.executor.run_all();
        (void)h.cache->poll(Nanos::zero());
      }
      for (std::size_t here = 0; !h.done(job); (void)h.cache->poll(Nanos::zero())) {
        if (!h.advance(job, 16)) ++held, ++here;
        ASSERT_LE(here, 1u) << write_policy_name(policy) << ": " << h.refusal;
      }
      h.finish(job);
    }
    EXPECT_GT(held, 0u) << write_policy_name(policy);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// While it waits, a request asks again and again: what is being copied for it counts.
TEST(CacheWaiting, AskingAgainCopiesNoMore) {
  HarnessOptions o = without_storage(Shape::kFull);
  o.device = {32, 0, 0};
  o.config.write_policy = WritePolicy::kWriteBack;
  Harness h(o);
  for (TokenId i = 0; i < 8; ++i) (void)h.run(prompt_of(16, i * 5), 1);  // four pages each
  Harness::Job job = h.begin(prompt_of(15, 50), 1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(h.advance(job, 16));
    (void)h.cache->poll(Nanos::zero());
  }
  EXPECT_EQ(h.cache->counters().backed_up, 4u);
  h.settle();
  EXPECT_TRUE(h.advance(job, 16)) << h.refusal;
  EXPECT_EQ(h.cache->counters().backed_up, 4u);
  h.cache->abort(job.id);
  EXPECT_EQ(h.check_settled(), "");
}

}  // namespace
}  // namespace larder::test
