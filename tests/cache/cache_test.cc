// SPDX-License-Identifier: Apache-2.0
// The life of a prefix, tier by tier, on a model of every shape.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

class CacheShapes : public ::testing::TestWithParam<Shape> {
 protected:
  HarnessOptions options() const {
    HarnessOptions o;
    o.shape = GetParam();
    o.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
    o.config.prefetch_threshold = 4;
    o.config.load_back_threshold = 0;
    o.config.chunked_prefill_tokens = 16;
    return o;
  }
};

TEST_P(CacheShapes, ColdThenDevice) {
  Harness h(options());
  EXPECT_EQ(h.run(prompt_of(41), 8).cached(), 0u);
  const CachedTokens again = h.run(prompt_of(41), 8);
  EXPECT_EQ(again.device, 40u);
  EXPECT_EQ(again.cached(), 40u);
  h.settle();
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  EXPECT_EQ(h.failure, "");
}

TEST_P(CacheShapes, NextTurnHitsPromptAndOutput) {
  Harness h(options());
  Harness::Job job = h.begin(prompt_of(40), 24);
  while (!h.done(job)) {
    if (!h.advance(job, 16)) h.run_background(100);
    ASSERT_EQ(h.failure, "");
  }
  std::vector<TokenId> next = job.tokens;  // prompt and all outputs
  h.finish(job);
  next.resize(next.size() + 20, 3);
  // 40 + 24 - 1 tokens were computed: 15 whole pages.
  EXPECT_EQ(h.run(next, 4).cached(), 60u);
  EXPECT_EQ(h.failure, "");
}

TEST_P(CacheShapes, HostThenStorage) {
  HarnessOptions o = options();
  o.device = {32, 32, 4};
  o.host_slots = 400;
  Harness h(o);
  EXPECT_EQ(h.run(prompt_of(60), 4).cached(), 0u);
  h.settle();
  for (TokenId i = 1; i < 4; ++i) {  // other prompts push it off the device
    (void)h.run(prompt_of(100, i * 9 + 1), 4);
    h.settle();
  }
  const CachedTokens from_host = h.run(prompt_of(60), 4);
  EXPECT_GT(from_host.host, 0u);
  EXPECT_EQ(from_host.cached(), 56u);
  h.settle();
  (void)h.cache->flush();
  const CachedTokens from_storage = h.run(prompt_of(60), 4);
  EXPECT_EQ(from_storage.storage, 56u);
  h.settle();
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  EXPECT_EQ(h.failure, "");
}

TEST_P(CacheShapes, TenantsDoNotMeet) {
  Harness h(options());
  (void)h.run(prompt_of(40), 4, "alice");
  h.settle();
  EXPECT_EQ(h.run(prompt_of(40), 4, "bob").cached(), 0u);
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(40), 4, "carol").cached(), 0u);
  EXPECT_EQ(h.run(prompt_of(40), 4, "alice").cached(), 36u);
  EXPECT_EQ(h.failure, "");
}

TEST_P(CacheShapes, CacheOffMissesAndLeaksNothing) {
  HarnessOptions o = options();
  o.config.enabled = false;
  Harness h(o);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(h.run(prompt_of(50), 8).cached(), 0u);
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  EXPECT_EQ(h.device->slots(ComponentKind::kFull).counts().live, 0u);
  EXPECT_EQ(h.failure, "");
}

TEST_P(CacheShapes, BackupOfWhatWasCachedBeforeAttach) {
  HarnessOptions o = options();
  o.storage = true;
  Harness h(o);
  h.cache->detach_storage();
  (void)h.run(prompt_of(60), 4);
  h.settle();
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
  EXPECT_EQ(h.failure, "");
}

TEST_P(CacheShapes, WhatItHadIsFreeAfterItsEnd) {
  Harness h(options());
  (void)h.run(prompt_of(60), 4);
  Harness::Job job = h.begin(prompt_of(40), 4);
  for (int tries = 0; tries < 100 && job.computed < 20; ++tries) {
    if (!h.advance(job, 16)) (void)h.run_background(10);
  }
  ASSERT_GE(job.computed, 20u) << h.refusal;
  h.settle();
  h.cache.reset();
  for (const ComponentKind c : kAllComponents) {
    if (!h.model.has(c)) continue;
    EXPECT_EQ(h.device->slots(c).counts().live, 0u) << component_name(c);
    EXPECT_EQ(h.host->counts(c).live, 0u) << component_name(c);
  }
}

TEST_P(CacheShapes, WriteBackDemotesOnEviction) {
  HarnessOptions o = options();
  o.config.write_policy = WritePolicy::kWriteBack;
  o.device = {32, 32, 4};
  o.host_slots = 400;
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  h.settle();
  EXPECT_EQ(h.cache->counters().backed_up, 0u);
  for (TokenId i = 1; i < 4; ++i) (void)h.run(prompt_of(100, i * 9 + 1), 4);
  h.settle();
  EXPECT_GT(h.cache->counters().backed_up, 0u);
  EXPECT_EQ(h.run(prompt_of(60), 4).cached(), 56u);
  h.settle();
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  EXPECT_EQ(h.failure, "");
}

std::optional<Explanation> explain_of(Harness& h, const std::vector<TokenId>& prompt) {
  std::optional<Explanation> got;
  BeginRequest request;
  request.tokens = prompt;
  h.cache->explain(request, [&](Explanation e) { got = std::move(e); });
  h.settle();
  return got;
}

TEST_P(CacheShapes, ExplainNamesTiersAndReasons) {
  Harness h(options());
  store_only(h, prompt_of(60));
  const std::optional<Explanation> got = explain_of(h, prompt_of(60));
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->device_restore_pages, 0u);
  EXPECT_EQ(got->storage_restore_pages, 14u);
  EXPECT_FALSE(got->device_reason.empty());
}

// An explanation promises what a request gets, and no more.
TEST_P(CacheShapes, ExplainLeavesOutWhatIsTooShortToFetch) {
  for (const std::uint32_t threshold : {4u, 56u, 57u, 60u, 1000u}) {
    SCOPED_TRACE(threshold);
    HarnessOptions o = options();
    o.config.prefetch_threshold = threshold;
    Harness h(o);
    store_only(h, prompt_of(60));
    const std::vector<TokenId> prompt = prompt_of(60);
    const std::optional<Explanation> got = explain_of(h, prompt);
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(got->has_storage_answer);
    EXPECT_EQ(got->storage_restore_pages * h.model.page_size, h.run(prompt, 4).cached()) << got->storage_reason;
    EXPECT_EQ(got->storage_restore_pages, threshold <= 56 ? 14u : 0u);
    EXPECT_EQ(got->storage_reason.find("storage has 56 tokens more, which are too few to fetch (prefetch_threshold") ==
                  std::string::npos,
              threshold <= 56)
        << got->storage_reason;
    EXPECT_EQ(h.failure, "");
  }
}

// Each tier counts for what it adds to the restore point of those above it: KV that no window goes with adds nothing.
TEST(CacheAccount, WindowsThatStorageAloneHasAreItsOwn) {
  HarnessOptions o = eager_options(Shape::kFullSwa);
  o.device = {32, 32, 8};
  o.host_slots = 87;
  Harness h(o);
  for (const std::size_t tokens : {60u, 100u}) (void)h.run(prompt_of(tokens), 1), h.settle();
  for (TokenId first = 10; first < 12; ++first) (void)h.run(prompt_of(60, first), 1), h.settle();
  const std::optional<Explanation> got = explain_of(h, prompt_of(60));
  ASSERT_TRUE(got.has_value());
  for (const ExplainLine& line : got->pools) {
    ASSERT_EQ(line.host_pages, line.component == "full" ? 14u : 0u);
  }
  ASSERT_EQ(got->device_restore_pages, got->host_restore_pages);
  const CachedTokens cached = h.run(prompt_of(60), 4);
  EXPECT_EQ(cached.cached(), 56u);
  EXPECT_EQ(cached.device, got->device_restore_pages * h.model.page_size);
  EXPECT_EQ(cached.host, 0u);
  EXPECT_GT(cached.storage, 0u);
  EXPECT_EQ(h.failure, "");
}

// A prompt that parts from another inside a node has nothing of what that keeps behind the fork, or at its end.
TEST(CacheExplain, AnothersStateIsNotThisPrompts) {
  HarnessOptions o = eager_options(Shape::kFullMamba);
  o.config.checkpoint_grid = 0;
  Harness h(o);
  store_only(h, prompt_of(60));
  std::vector<TokenId> other = prompt_of(17);
  for (std::size_t i = 14; i < other.size(); ++i) other[i] += 100;
  (void)h.run(other, 1);  // three pages and a half of the first, and a state at its own fourth
  h.settle();
  const std::optional<Explanation> got = explain_of(h, prompt_of(40));
  ASSERT_TRUE(got && got->has_storage_answer);
  EXPECT_EQ(got->storage_restore_pages, 0u) << got->storage_reason;
  for (const ExplainLine& line : got->pools) {
    EXPECT_EQ(line.restore_pages, line.component == "mamba" ? 0u : 9u) << line.pool;
  }
  EXPECT_EQ(h.run(prompt_of(40), 1).cached(), 0u);
  EXPECT_EQ(h.failure, "");
}

TEST(CacheExplain, AnothersWindowIsNotThisPrompts) {
  HarnessOptions o = eager_options(Shape::kFullSwa);
  o.storage = false;
  Harness h(o);
  std::vector<TokenId> other = prompt_of(17);
  for (std::size_t i = 14; i < other.size(); ++i) other[i] += 100;
  (void)h.run(other, 1);
  const std::optional<Explanation> got = explain_of(h, prompt_of(40));
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->host_restore_pages, 3u);
  for (const ExplainLine& line : got->pools) EXPECT_EQ(line.restore_pages, 3u) << line.pool;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheShapes,
                         ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll,
                                           Shape::kFullSidecar),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
