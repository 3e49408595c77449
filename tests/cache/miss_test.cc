// SPDX-License-Identifier: Apache-2.0
// A miss of each reason is provoked, and the cache names it (controller/miss.h).
#include "controller/miss.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/cache/harness.h"
#include "tests/support/passing_backend.h"

namespace larder::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string name_of(const CachedTokens& cached) { return std::string(miss_reason_name(cached.miss.reason)); }

HarnessOptions miss_options(Shape shape, bool storage) {
  HarnessOptions o = eager_options(shape);
  o.device = {32, 32, 8};
  o.host_slots = 400;
  o.storage = storage;
  return o;
}

// The same as another prompt up to token `at`, and nothing like it from there on.
std::vector<TokenId> parting(std::vector<TokenId> prompt, std::size_t at) {
  for (std::size_t i = at; i < prompt.size(); ++i) prompt[i] += 1000;
  return prompt;
}

TEST(Miss, NamesAreAllDifferentAndHaveSentences) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    names.insert(miss_reason_name(reason));
    EXPECT_EQ(miss_sentence({.reason = reason}).empty(), reason == MissReason::kNone);
  }
  EXPECT_EQ(names.size(), kMissReasons);
}

TEST(Miss, NeverSeenAndNone) {
  Harness h(miss_options(Shape::kFull, false));
  const CachedTokens first = h.run(prompt_of(60), 4);
  EXPECT_EQ(name_of(first), "never_seen");
  EXPECT_EQ(first.miss.at_token, 0u);
  EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), "none");
  EXPECT_EQ(h.failure, "");
}

TEST(Miss, NeverSeenIsToldFromWhereTheCacheEnds) {
  Harness h(miss_options(Shape::kFull, false));
  (void)h.run(prompt_of(40), 1);
  const CachedTokens longer = h.run(prompt_of(80), 4);
  EXPECT_EQ(name_of(longer), "never_seen");
  EXPECT_EQ(longer.miss.at_token, 40u);
}

TEST(Miss, DivergedSaysAtWhichToken) {
  for (const std::size_t at : {16u, 21u, 43u, 58u}) {
    Harness h(miss_options(Shape::kFull, false));
    (void)h.run(prompt_of(60), 4);
    const CachedTokens other = h.run(parting(prompt_of(60), at), 4);
    EXPECT_EQ(name_of(other), at < 56 ? "diverged" : "none") << at;  // the last token is always computed
    if (at < 56) {
      EXPECT_EQ(other.miss.at_token, at);
    }
  }
}

// What a chat template gives to all prompts makes none alike.
TEST(Miss, AShortCommonHeadIsNoDivergence) {
  Harness h(miss_options(Shape::kFull, false));
  (void)h.run(prompt_of(60), 4);
  const CachedTokens other = h.run(parting(prompt_of(60), 7), 4);
  EXPECT_EQ(name_of(other), "never_seen");
}

TEST(Miss, EvictedFromTheDeviceSaysWhenAndForWhom) {
  HarnessOptions o = miss_options(Shape::kFull, false);
  o.host_slots = 0;
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  h.clock.advance(seconds(5));
  const CachedTokens pushes = h.run(prompt_of(120, 10), 4);
  h.clock.advance(seconds(7));
  const CachedTokens again = h.run(prompt_of(60), 4);
  ASSERT_EQ(name_of(again), "evicted");
  EXPECT_EQ(again.miss.tier, LostFrom::kDevice);
  EXPECT_EQ(again.miss.by, pushes.request);
  ASSERT_TRUE(again.miss.ago.has_value());
  EXPECT_GE(*again.miss.ago, seconds(7));
  EXPECT_LT(*again.miss.ago, seconds(8));
  EXPECT_EQ(again.miss.at_token, again.cached());
  EXPECT_NE(miss_sentence(again.miss).find("to make room for request " + std::to_string(pushes.request.v)),
            std::string::npos)
      << miss_sentence(again.miss);
  EXPECT_EQ(again.miss.for_tenant().by, RequestId{});
}

TEST(Miss, EvictedFromTheHost) {
  HarnessOptions o = miss_options(Shape::kFull, false);
  o.host_slots = 40;
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  h.settle();
  for (TokenId first = 10; first < 16; ++first) {
    (void)h.run(prompt_of(100, first), 4);
    h.settle();
  }
  const CachedTokens again = h.run(prompt_of(60), 4);
  ASSERT_EQ(name_of(again), "evicted");
  EXPECT_EQ(again.miss.tier, LostFrom::kHost);
}

TEST(Miss, AFlushIsNobodysRoom) {
  Harness h(miss_options(Shape::kFull, false));
  (void)h.run(prompt_of(60), 4);
  h.settle();
  const std::uint64_t on_host = h.cache->counters().host_resident;
  (void)h.cache->flush();
  EXPECT_GT(on_host, 0u);
  EXPECT_EQ(h.cache->counters().host_flushed, on_host);
  EXPECT_EQ(h.cache->counters().host_evicted, 0u);
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  h.clock.advance(seconds(3));
  const CachedTokens again = h.run(prompt_of(60), 4);
  ASSERT_EQ(name_of(again), "flushed");
  EXPECT_EQ(again.miss.by, RequestId{});
  EXPECT_EQ(again.miss.tier, LostFrom::kHost);
  EXPECT_TRUE(miss_sentence(again.miss).starts_with("a flush dropped full at token 0 from host: 3."))
      << miss_sentence(again.miss);
}

// What makes room after a flush is an eviction again.
TEST(Miss, EvictedAfterAFlush) {
  HarnessOptions o = miss_options(Shape::kFull, false);
  o.host_slots = 0;
  Harness h(o);
  (void)h.cache->flush();
  (void)h.run(prompt_of(60), 4);
  (void)h.run(prompt_of(120, 10), 4);
  EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), "evicted");
  EXPECT_EQ(h.cache->counters().host_flushed, 0u);
}

// A state is kept at the end of a prompt, and nowhere before: who parts there finds KV that it cannot use.
TEST(Miss, NoCheckpointWasKept) {
  HarnessOptions o = miss_options(Shape::kFullMamba, false);
  o.config.checkpoint_grid = 0;
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  const CachedTokens other = h.run(prompt_of(30), 4);
  ASSERT_EQ(name_of(other), "no_checkpoint");
  EXPECT_EQ(other.miss.component, ComponentKind::kMamba);
}

// Under lru the state leaves alone. Under value the end of the path leaves with it, and what is left has never had one.
TEST(Miss, AStateThatWasEvicted) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kValue}) {
    SCOPED_TRACE(eviction_policy_name(policy));
    HarnessOptions o = miss_options(Shape::kFullMamba, false);
    o.host_slots = 20;
    o.device = {200, 0, 3};
    o.config.eviction_policy = policy;
    Harness h(o);
    for (TokenId first = 0; first < 10; ++first) {
      (void)h.run(prompt_of(60, first), 1);
      h.settle();
    }
    const CachedTokens again = h.run(prompt_of(60), 1);
    ASSERT_EQ(name_of(again), "evicted");
    EXPECT_EQ(again.miss.component, ComponentKind::kMamba);
    EXPECT_EQ(again.miss.at_token, 56u);  // its last whole page that may be reused
  }
}

TEST(Miss, OfAnotherTenantOnlyTheOperatorIsTold) {
  Harness h(miss_options(Shape::kFull, false));
  (void)h.run(prompt_of(60), 4, "tenant");
  const CachedTokens other = h.run(prompt_of(60), 4, "neighbour");
  ASSERT_EQ(name_of(other), "other_namespace");
  EXPECT_TRUE(other.miss.is_other_salt);
  EXPECT_EQ(miss_reason_name(other.miss.for_tenant().reason), "never_seen");
}

TEST(Miss, StorageDamagedAndFailed) {
  for (const auto& [status, name] :
       {std::pair(corrupt("scripted"), "storage_damaged"), std::pair(unavailable("scripted"), "storage_failed")}) {
    Harness h(miss_options(Shape::kFull, true));
    store_only(h, prompt_of(60));
    h.backend->read_item = [&](const ReadItem&, std::size_t) { return status; };
    EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), name);
    h.settle();
  }
}

TEST(Miss, StorageThatCannotSayWhatItHas) {
  Harness h(miss_options(Shape::kFull, true));
  store_only(h, prompt_of(60));
  h.backend->script = [](Call c, std::size_t) { return c == Call::kExists ? Fault::kFail : Fault::kNone; };
  EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), "storage_failed");
  h.settle();
}

TEST(Miss, StorageLate) {
  Harness h(miss_options(Shape::kFull, true));
  store_only(h, prompt_of(60));
  h.backend->script = [](Call c, std::size_t) { return hold(c, Call::kRead); };
  Harness::Job job = h.begin(prompt_of(60), 4);
  look(h);
  ASSERT_FALSE(h.advance(job, 16));
  h.clock.advance(seconds(60));
  look(h);
  ASSERT_TRUE(h.advance(job, 16)) << h.refusal;
  EXPECT_EQ(name_of(job.cached), "storage_late");
  h.backend->release();
  while (!h.done(job)) (void)(h.advance(job, 16) || h.run_background(100));
  h.finish(job);
  h.settle();
}

// It had the pages when they left the host, and has lost them since.
TEST(Miss, EvictedFromStorage) {
  Harness h(miss_options(Shape::kFull, true));
  store_only(h, prompt_of(60));
  h.backend->script = [](Call c, std::size_t) { return c == Call::kExists ? Fault::kClear : Fault::kNone; };
  const CachedTokens again = h.run(prompt_of(60), 4);
  ASSERT_EQ(name_of(again), "evicted");
  EXPECT_EQ(again.miss.tier, LostFrom::kStorage);
  h.settle();
}

// Storage that has no windows any more.
class WithoutWindows final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return inner_->submit_exists(std::move(request), [done](ExistsResult found) {
      std::erase_if(found.presence, [](const PoolPresence& of) { return of.pool == PoolName::kSwa; });
      done(std::move(found));
    });
  }
};

// It has the pages that left the host. What it lacks is a restore point before the prompts part.
TEST(Miss, StorageHasFullAndNoState) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    SCOPED_TRACE(shape_name(shape));
    HarnessOptions o = miss_options(shape, true);
    o.config.checkpoint_grid = 0;
    Harness h(o);
    store_only(h, prompt_of(60));
    const CachedTokens other = h.run(parting(prompt_of(60), 30), 4);
    EXPECT_EQ(other.cached(), 0u);
    EXPECT_EQ(name_of(other), "no_checkpoint") << miss_sentence(other.miss);
    EXPECT_EQ(other.miss.component, ComponentKind::kMamba);
    EXPECT_EQ(other.miss.at_token, 0u);
    h.settle();
    EXPECT_EQ(h.failure, "");
  }
}

TEST(Miss, StorageHasFullAndNoWindow) {
  for (const Shape shape : {Shape::kFullSwa, Shape::kAll}) {
    SCOPED_TRACE(shape_name(shape));
    HarnessOptions o = miss_options(shape, true);
    o.wrap_backend = [](std::unique_ptr<StorageBackend> inner) {
      return std::make_unique<WithoutWindows>(std::move(inner));
    };
    Harness h(o);
    store_only(h, prompt_of(60));
    const CachedTokens again = h.run(prompt_of(60), 4);
    EXPECT_EQ(name_of(again), "no_checkpoint") << miss_sentence(again.miss);
    EXPECT_EQ(again.miss.component, ComponentKind::kSwa);
    h.settle();
    EXPECT_EQ(h.failure, "");
  }
}

// The tree knows nothing of what another process has stored.
TEST(Miss, WhatOnlyStorageKnowsHasNoState) {
  HarnessOptions o = miss_options(Shape::kFullMamba, true);
  o.config.checkpoint_grid = 0;
  Harness first(o);
  store_only(first, prompt_of(60));
  o.storage = false;
  Harness second(o);
  ASSERT_TRUE(second.cache->attach_storage(*first.backend).is_ok());
  Harness::Job other = second.begin(parting(prompt_of(60), 30), 4);
  for (int i = 0; i < 100 && !second.advance(other, 16); ++i) {
    (void)first.executor.run_all();
    (void)second.run_background(100);
  }
  ASSERT_TRUE(other.started) << second.refusal;
  EXPECT_EQ(name_of(other.cached), "no_checkpoint") << miss_sentence(other.cached.miss);
  EXPECT_EQ(other.cached.miss.component, ComponentKind::kMamba);
  second.cache->abort(other.id);
}

TEST(Miss, TooLittleToFetch) {
  HarnessOptions o = miss_options(Shape::kFull, true);
  o.config.prefetch_threshold = 100;
  Harness h(o);
  store_only(h, prompt_of(60));
  EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), "not_fetched");
  h.settle();
}

TEST(Miss, StorageDeclinedToKeepIt) {
  Harness h(miss_options(Shape::kFull, true));
  h.backend->write_group = [](const PageGroup&) { return unsupported("scripted"); };
  store_only(h, prompt_of(60));
  h.backend->script = [](Call c, std::size_t) { return c == Call::kExists ? Fault::kClear : Fault::kNone; };
  EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), "storage_declined");
  h.settle();
}

// best_effort starts a request before storage has answered; that is not what storage lacks.
TEST(Miss, StorageHasNotAnsweredYet) {
  HarnessOptions o = miss_options(Shape::kFull, true);
  o.config.prefetch_policy = PrefetchPolicy::kBestEffort;
  Harness h(o);
  store_only(h, prompt_of(60));
  Harness::Job job = h.begin(prompt_of(60), 4);
  ASSERT_TRUE(h.advance(job, 16)) << h.refusal;
  EXPECT_EQ(name_of(job.cached), "storage_late");
  h.finish(job);
  h.settle();
  EXPECT_EQ(h.failure, "");
}

// Runs what two caches with one storage have to do; the storage is the first one's.
void look_at_both(Harness& first, Harness& second) {
  for (int i = 0; i < 50; ++i) {
    (void)first.executor.run_all();
    (void)second.run_background(100);
  }
}

// ... nor that nobody had it, or kept no checkpoint: the tree does not know what another process has stored.
TEST(Miss, StorageHasNotSaidYetWhatAnotherProcessStored) {
  for (const Shape shape : {Shape::kFull, Shape::kFullMamba, Shape::kAll}) {
    for (const bool has_longer : {false, true}) {
      if (shape == Shape::kFull && has_longer) continue;  // it would be all there is to reuse
      SCOPED_TRACE(shape_name(shape) + (has_longer ? ", beside a longer prompt" : ""));
      HarnessOptions o = miss_options(shape, true);
      o.device = {64, 64, 8};
      o.config.checkpoint_grid = 0;
      o.config.prefetch_policy = PrefetchPolicy::kBestEffort;
      Harness first(o);
      store_only(first, prompt_of(60));
      o.storage = false;
      Harness second(o);
      if (has_longer) (void)second.run(prompt_of(100), 1);
      second.settle();
      ASSERT_TRUE(second.cache->attach_storage(*first.backend).is_ok());
      Harness::Job job = second.begin(prompt_of(60), 4);
      ASSERT_TRUE(second.advance(job, 16)) << second.refusal;
      EXPECT_EQ(name_of(job.cached), "storage_late") << miss_sentence(job.cached.miss);
      second.cache->abort(job.id);
      look_at_both(first, second);
      second.cache->detach_storage();
      EXPECT_EQ(second.failure, "");
    }
  }
}

TEST(Miss, StorageHasAnsweredThatItHasNothing) {
  HarnessOptions o = miss_options(Shape::kFull, true);
  o.config.prefetch_policy = PrefetchPolicy::kBestEffort;
  Harness h(o);
  Harness::Job job = h.begin(prompt_of(60), 4);
  look(h);
  ASSERT_TRUE(h.advance(job, 16)) << h.refusal;
  EXPECT_EQ(name_of(job.cached), "never_seen");
  h.finish(job);
  h.settle();
}

// A request that queues for so long that its fetch is over: nobody waited for it, and it was late.
TEST(Miss, StorageLateForOneThatDoesNotWait) {
  for (const Call late : {Call::kExists, Call::kRead}) {
    HarnessOptions o = miss_options(Shape::kFull, true);
    o.config.prefetch_policy = PrefetchPolicy::kBestEffort;
    Harness h(o);
    store_only(h, prompt_of(60));
    h.backend->script = [late](Call c, std::size_t) { return hold(c, late); };
    Harness::Job job = h.begin(prompt_of(60), 4);
    look(h);
    h.clock.advance(seconds(600));
    look(h);
    ASSERT_TRUE(h.advance(job, 16)) << h.refusal;
    EXPECT_EQ(name_of(job.cached), "storage_late");
    h.backend->release();
    h.cache->abort(job.id);
    h.settle();
    EXPECT_EQ(h.failure, "");
  }
}

// The host has room for a part of what storage has. That is so for those, too, that join while the part is read.
TEST(Miss, WhoJoinsAFetchThatWasCutIsToldSo) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    for (const PrefetchPolicy policy : {PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
      SCOPED_TRACE(shape_name(shape) + ", " + std::string(prefetch_policy_name(policy)));
      HarnessOptions o = miss_options(shape, true);
      o.config.checkpoint_grid = 16;
      o.config.prefetch_policy = policy;
      Harness first(o);
      store_only(first, prompt_of(120));
      o.storage = false;
      o.host_slots = 22;
      Harness second(o);
      ASSERT_TRUE(second.cache->attach_storage(*first.backend).is_ok());
      first.backend->script = [](Call c, std::size_t) { return hold(c, Call::kRead); };
      std::vector<Harness::Job> jobs;
      for (int i = 0; i < 2; ++i) {
        jobs.push_back(second.begin(prompt_of(120), 1));
        look_at_both(first, second);
      }
      EXPECT_EQ(second.cache->counters().prefetch_shared, 1u);
      first.backend->script = nullptr;
      first.backend->release();
      for (Harness::Job& job : jobs) {
        for (int i = 0; i < 200 && !second.advance(job, 16); ++i) look_at_both(first, second);
        ASSERT_TRUE(job.started) << second.refusal;
        EXPECT_EQ(name_of(job.cached), "not_fetched") << miss_sentence(job.cached.miss);
        EXPECT_TRUE(second.model.has(job.cached.miss.component)) << miss_sentence(job.cached.miss);
        EXPECT_GT(job.cached.cached(), 0u);
        second.cache->abort(job.id);
        look_at_both(first, second);
      }
      second.cache->detach_storage();
      EXPECT_EQ(second.failure, "");
    }
  }
}

// The engine's copies fail: the request begins again without what it was to get.
TEST(Miss, TheLoadFailed) {
  HarnessOptions o = miss_options(Shape::kFull, false);
  o.device = {20, 20, 8};
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  h.settle();
  (void)h.run(prompt_of(60, 10), 4);
  h.settle();
  h.device_api->script = [](CopyDirection d, std::size_t) {
    return d == CopyDirection::kHostToDevice ? Fault::kFail : Fault::kNone;
  };
  EXPECT_EQ(name_of(h.run(prompt_of(60), 4)), "load_failed");
  h.settle();
}

// ... and once it was retracted, it may have what is on the host again.
TEST(Miss, ALoadThatFailedIsForgottenByARetract) {
  HarnessOptions o = miss_options(Shape::kFull, false);
  o.device = {40, 40, 8};
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  h.settle();
  for (TokenId other = 10; other < 13; ++other) (void)h.run(prompt_of(60, other), 4), h.settle();
  bool fails = true;
  h.device_api->script = [&](CopyDirection d, std::size_t) {
    return d == CopyDirection::kHostToDevice && std::exchange(fails, false) ? Fault::kFail : Fault::kNone;
  };
  Harness::Job job = h.begin(prompt_of(60), 20);
  for (int i = 0; i < 100 && job.computed < 64; ++i) {
    if (!h.advance(job, 16)) (void)h.run_background(100);
  }
  EXPECT_EQ(job.restarts, 1);
  h.retract(job);
  h.settle();
  for (TokenId other = 20; other < 23; ++other) (void)h.run(prompt_of(60, other), 4), h.settle();
  for (int i = 0; i < 100 && !job.started; ++i) {
    if (!h.advance(job, 16)) (void)h.run_background(100);
  }
  EXPECT_GE(job.resumed, 60u);
  h.finish(job);
  h.settle();
  EXPECT_EQ(h.failure, "");
}

}  // namespace
}  // namespace larder::test
