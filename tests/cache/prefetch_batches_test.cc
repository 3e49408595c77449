// SPDX-License-Identifier: Apache-2.0
// Reads in batches: what has come by the limit counts, nothing is asked for beyond it, and every slot comes back.
#include <gtest/gtest.h>

#include <vector>

#include "key/page_key.h"
#include "tests/cache/harness.h"

namespace larder::test {
namespace {

constexpr std::size_t kBatchTokens = 481;  // 120 whole pages that may be reused
constexpr std::size_t kPages = 120;

// A batch for each page.
HarnessOptions page_by_page(Shape shape, PrefetchPolicy policy = PrefetchPolicy::kTimeout) {
  HarnessOptions o = eager_options(shape);
  o.device = {320, 320, 80};
  o.host_slots = 1600;
  o.config.prefetch_policy = policy;
  o.config.prefetch_batch_bytes = 1;
  o.config.prefetch_capacity = 1;
  o.config.checkpoint_grid = 16;
  return o;
}

class Batches : public Harness {
 public:
  // prompt_of(kBatchTokens) is in storage, and in no other tier.
  explicit Batches(const HarnessOptions& o) : Harness(o) {
    (void)run(prompt_of(kBatchTokens), 1);
    settle();
    (void)cache->flush();
    backend->script = [this](Call call, std::size_t n) {
      return call == Call::kRead && n >= first_read + answered ? Fault::kHold : Fault::kNone;
    };
    first_read = reads();
  }
  ~Batches() {
    backend->script = {};
    (void)backend->release();
  }
  [[nodiscard]] std::size_t reads() const { return backend->calls[static_cast<std::size_t>(Call::kRead)]; }
  void work() {
    for (int i = 0; i < 200; ++i) {
      (void)run_background(1000);
      (void)cache->poll(Nanos::zero());
    }
  }
  // The limit of the policy passes.
  void pass_limit() {
    clock.advance(std::chrono::hours(1));
    work();
  }
  // Tokens that storage gave.
  [[nodiscard]] std::uint64_t start(Job& job) {
    for (int i = 0; i < 20 && !job.started; ++i) {
      (void)advance(job, 16);
      (void)run_background(1000);
      (void)cache->poll(Nanos::zero());
    }
    EXPECT_TRUE(job.started) << refusal;
    return job.cached.storage;
  }
  void end(Job& job) {
    for (int i = 0; i < 100 && !done(job); ++i) {
      (void)advance(job, 16);
      (void)run_background(1000);
      (void)cache->poll(Nanos::zero());
    }
    EXPECT_TRUE(done(job)) << refusal;
    finish(job);
    backend->script = {};
    (void)backend->release();
    settle();
    EXPECT_EQ(failure, "");
    EXPECT_EQ(check_clean(), "");
  }

  std::size_t answered = 1000, first_read = 0;  // reads that storage answers; the others hang
};

TEST(PrefetchBatches, WhatCameByTheLimitCounts) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSidecar}) {
    Batches h(page_by_page(shape));
    h.answered = 10;
    Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
    h.work();
    EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kPrefetching);
    h.pass_limit();
    EXPECT_EQ(h.start(job), 10u * 4) << shape_name(shape);
    h.end(job);
  }
}

TEST(PrefetchBatches, AllOfThemAreTheWholePrompt) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSidecar, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    Batches h(page_by_page(shape));
    Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
    h.work();
    EXPECT_EQ(h.start(job), kPages * 4) << shape_name(shape);
    EXPECT_EQ(h.reads() - h.first_read, kPages) << shape_name(shape);
    h.end(job);
  }
}

// A request that shares the fetch of a longer prompt goes on when its own part has come, or at its own limit.
TEST(PrefetchBatches, AShortRequestDoesNotWaitForALongOne) {
  HarnessOptions o = page_by_page(Shape::kFull);
  o.config.prefetch_timeout_base = std::chrono::seconds(1);
  o.config.prefetch_timeout_per_ki_token = std::chrono::seconds(100);
  o.config.prefetch_timeout_max = std::chrono::minutes(10);
  for (const std::size_t answered : {std::size_t{12}, std::size_t{3}}) {
    Batches h(o);
    h.answered = answered;
    Harness::Job whole = h.begin(prompt_of(kBatchTokens), 4), head = h.begin(prompt_of(41), 4);
    EXPECT_EQ(h.cache->counters().prefetch_shared, 1u);
    h.work();
    EXPECT_EQ(h.cache->phase(whole.id), RequestPhase::kPrefetching);
    if (answered < 10) {
      EXPECT_EQ(h.cache->phase(head.id), RequestPhase::kPrefetching);
      h.clock.advance(std::chrono::seconds(5));  // its own: 1 s and 3.9 s; the other one's: 48 s
      h.work();
    }
    EXPECT_EQ(h.cache->phase(head.id), RequestPhase::kReady);
    EXPECT_EQ(h.cache->phase(whole.id), RequestPhase::kPrefetching);
    EXPECT_EQ(h.start(head), std::min<std::size_t>(answered, 10) * 4);
    h.pass_limit();
    (void)h.start(whole);
    EXPECT_EQ(whole.cached.cached(), answered * 4);
    h.finish(head);
    h.end(whole);
  }
}

// A full queue of storage's is no failure: what it did not take it is given later.
TEST(PrefetchBatches, AFullQueueIsWaitedFor) {
  Batches h(page_by_page(Shape::kFull));
  h.backend->script = [](Call call, std::size_t n) {
    return call == Call::kRead && n % 3 != 0 ? Fault::kRefuse : Fault::kNone;
  };
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  EXPECT_EQ(h.start(job), kPages * 4);
  EXPECT_GT(h.reads() - h.first_read, 2 * kPages) << "most were refused";
  h.end(job);

  Batches g(page_by_page(Shape::kFull));  // and the limit holds
  g.backend->script = [&](Call call, std::size_t n) {
    return call == Call::kRead && n >= g.first_read + 5 ? Fault::kRefuse : Fault::kNone;
  };
  Harness::Job late = g.begin(prompt_of(kBatchTokens), 4);
  g.work();
  EXPECT_EQ(g.cache->phase(late.id), RequestPhase::kPrefetching);
  g.pass_limit();
  EXPECT_EQ(g.start(late), 5u * 4);
  g.end(late);
}

// A hybrid model is served up to a restore point on the way, not to the last page that came.
TEST(PrefetchBatches, HybridModelsStopOnTheWay) {
  for (const Shape shape : {Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    std::vector<std::uint64_t> got;
    for (const std::size_t answered : {std::size_t{2}, kPages / 2, kPages - 1, kPages}) {
      Batches h(page_by_page(shape));
      h.answered = answered;
      Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
      h.work();
      h.pass_limit();
      const std::uint64_t tokens = h.start(job);
      EXPECT_LE(tokens, answered * 4) << shape_name(shape);
      got.push_back(tokens);
      h.end(job);
    }
    EXPECT_EQ(got.front(), 0u) << shape_name(shape);
    EXPECT_GT(got[1], 0u) << shape_name(shape) << ": half of it came";
    EXPECT_GE(got[2], got[1]) << shape_name(shape) << ": all but one page came";
    EXPECT_EQ(got.back(), kPages * 4) << shape_name(shape);
  }
}

TEST(PrefetchBatches, NothingIsAskedForBeyondTheLimit) {
  Batches h(page_by_page(Shape::kFull));
  h.answered = 0;
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  const std::size_t asked = h.reads() - h.first_read;
  EXPECT_GT(asked, 1u) << "several at once";
  EXPECT_LT(asked, kPages);
  h.pass_limit();
  EXPECT_EQ(h.start(job), 0u);
  h.backend->script = {};
  (void)h.backend->release();
  h.work();
  EXPECT_EQ(h.reads() - h.first_read, asked);
  h.end(job);
}

// What is under way at the limit is adopted when it comes, for the next request.
TEST(PrefetchBatches, WhatComesLateServesTheNextRequest) {
  Batches h(page_by_page(Shape::kFull));
  h.answered = 4;
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  const std::size_t asked = h.reads() - h.first_read;
  h.pass_limit();
  h.cache->finish(job.id);  // without having started
  (void)h.cache->flush();   // but for what it adopted, which nobody holds
  h.backend->script = {};
  (void)h.backend->release();
  h.settle();
  const std::uint64_t there = h.cache->tree().match(NamespaceId(0), prompt_of(kBatchTokens)).any.at.pages;
  EXPECT_TRUE(there == 0 || there == asked) << there << " of " << asked;
  EXPECT_EQ(there, 0u) << "what it continues was flushed";
  EXPECT_EQ(h.check_clean(), "");

  Batches g(page_by_page(Shape::kFull));
  g.answered = 4;
  Harness::Job first = g.begin(prompt_of(kBatchTokens), 4);
  g.work();
  const std::size_t under_way = g.reads() - g.first_read;
  g.pass_limit();
  EXPECT_EQ(g.cache->tree().match(NamespaceId(0), prompt_of(kBatchTokens)).any.at.pages, 4u);
  g.cache->finish(first.id);
  g.backend->script = {};
  (void)g.backend->release();
  g.settle();
  EXPECT_EQ(g.cache->tree().match(NamespaceId(0), prompt_of(kBatchTokens)).any.at.pages, under_way);
  EXPECT_EQ(g.check_clean(), "");
}

// Nothing behind a page that is missing can be used: the request does not wait for it. It asks for it once more, within
// the same limit.
TEST(PrefetchBatches, AHoleEndsTheWait) {
  Batches h(page_by_page(Shape::kFull));
  h.answered = 25;
  const std::size_t before = h.backend->items_read;
  h.backend->read_item = [&](const ReadItem&, std::size_t n) {
    return n == before + 20 ? not_found("scripted") : Status::ok();
  };
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kReady) << "reads 25 and on hang";
  h.answered = 0;
  h.clock.advance(std::chrono::milliseconds(400));
  EXPECT_FALSE(h.advance(job, 16));
  EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kPrefetching);
  h.pass_limit();
  EXPECT_EQ(h.start(job), 20u * 4);
  h.backend->read_item = {};
  h.end(job);
}

// However often a request asks: what it waits for storage in all is what its policy says.
TEST(PrefetchBatches, AllFetchesOfARequestHaveOneLimit) {
  HarnessOptions o = page_by_page(Shape::kFull);
  o.config.prefetch_timeout_base = std::chrono::seconds(1);
  o.config.prefetch_timeout_per_ki_token = Nanos{0};
  Batches h(o);
  const std::size_t before = h.backend->items_read;
  h.backend->read_item = [&](const ReadItem&, std::size_t n) {
    return n == before + 20 ? not_found("scripted") : Status::ok();
  };
  h.answered = 20;
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  h.clock.advance(std::chrono::milliseconds(700));
  h.answered = 1000;
  (void)h.backend->release();
  h.work();
  EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kReady);
  h.answered = 0;
  EXPECT_FALSE(h.advance(job, 16)) << "it asks again";
  h.work();
  h.clock.advance(std::chrono::milliseconds(299));
  h.work();
  EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kPrefetching);
  h.clock.advance(std::chrono::milliseconds(1));
  h.work();
  EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kReady);
  EXPECT_EQ(h.start(job), 20u * 4);
  h.backend->read_item = {};
  h.end(job);
}

// A queue of storage's may have room for those that wait only: these do not stand behind what it does not take.
// When the first request gives up, it asks for itself.
TEST(PrefetchBatches, WhoJoinsLateWaitsAsLongAsItMay) {
  for (const bool comes : {true, false}) {
    HarnessOptions o = page_by_page(Shape::kFullMamba);
    o.config.prefetch_timeout_base = std::chrono::seconds(10);
    o.config.prefetch_timeout_per_ki_token = Nanos{0};
    Batches h(o);
    h.answered = 0;
    const auto waits = [&](const Harness::Job& job) { return h.cache->phase(job.id) == RequestPhase::kPrefetching; };
    const auto pass = [&](int milliseconds) {
      h.clock.advance(std::chrono::milliseconds(milliseconds));
      h.work();
    };
    Harness::Job first = h.begin(prompt_of(kBatchTokens), 1);
    h.work();
    pass(9990);
    Harness::Job second = h.begin(prompt_of(kBatchTokens), 1);
    ASSERT_EQ(h.cache->counters().prefetch_shared, 1u);
    pass(11);
    EXPECT_FALSE(waits(first));
    EXPECT_EQ(h.cache->counters().prefetch_late, 1u);
    EXPECT_EQ(h.cache->start(second.id).status().code(), StatusCode::kOverloaded) << "it asks for itself";
    EXPECT_TRUE(waits(second));
    pass(9900);
    EXPECT_TRUE(waits(second));
    if (comes) {
      h.backend->script = {};
      (void)h.backend->release();
      h.work();
    } else {
      pass(100);
    }
    EXPECT_FALSE(waits(second));
    EXPECT_EQ(h.cache->counters().prefetch_late, comes ? 1u : 2u);
    EXPECT_EQ(h.start(second), comes ? kPages * 4 : 0u);
    h.cache->abort(first.id);
    h.end(second);
  }
}

TEST(PrefetchBatches, WhatIsWaitedForGoesFirst) {
  HarnessOptions o = page_by_page(Shape::kFull, PrefetchPolicy::kBestEffort);
  Harness h(o);
  for (const TokenId first : {0, 1}) (void)h.run(prompt_of(kBatchTokens, first), 1);
  h.settle();
  (void)h.cache->flush();
  std::size_t refused = 0;
  bool is_full = true;
  h.backend->refuse_read = [&](const ReadRequest& request) {
    const bool refuses = is_full && request.terms.urgency == Urgency::kSpeculative;
    refused += refuses ? 1 : 0;
    return refuses;
  };
  Harness::Job idle = h.begin(prompt_of(kBatchTokens, 0), 4);
  for (int i = 0; i < 10; ++i) (void)h.run_background(1000), (void)h.cache->poll(Nanos::zero());
  EXPECT_GT(refused, 0u);
  h.cache->set_policies(PrefetchPolicy::kTimeout, o.config.write_policy);
  Harness::Job waiting = h.begin(prompt_of(kBatchTokens, 1), 4);
  for (int i = 0; i < 200; ++i) (void)h.run_background(1000), (void)h.cache->poll(Nanos::zero());
  EXPECT_EQ(h.cache->phase(waiting.id), RequestPhase::kReady);
  EXPECT_TRUE(h.advance(waiting, 16));
  EXPECT_EQ(waiting.cached.storage, kPages * 4);
  is_full = false;
  for (Harness::Job* job : {&waiting, &idle}) {
    for (int i = 0; i < 400 && !h.done(*job); ++i) {
      (void)h.advance(*job, 16);
      (void)h.run_background(1000), (void)h.cache->poll(Nanos::zero());
    }
    EXPECT_TRUE(h.done(*job)) << h.refusal;
    h.finish(*job);
  }
  h.settle();
  EXPECT_EQ(h.failure, "");
  EXPECT_EQ(h.check_clean(), "");
}

// While reads of its own are under way, the cache learns from their ends that there may be room: it does not build the
// same request anew in every poll.
TEST(PrefetchBatches, ARefusedBatchIsNotBuiltInEveryPoll) {
  Batches h(page_by_page(Shape::kFull));
  h.answered = 0;  // they hang
  std::size_t given = 0, refused = 0;
  h.backend->refuse_read = [&](const ReadRequest&) { return ++given > 4 && ++refused > 0; };
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  (void)h.run_background(1000);
  for (int i = 0; i < 64; ++i) (void)h.cache->poll(Nanos::zero());
  EXPECT_GE(refused, 4u) << "others may have filled the queue: so it asks again";
  EXPECT_LE(refused, 8u);
  h.backend->refuse_read = {};
  h.answered = 1000;
  (void)h.backend->release();
  h.work();
  EXPECT_EQ(h.start(job), kPages * 4);
  h.end(job);
}

TEST(PrefetchBatches, BestEffortTakesWhatIsThere) {
  for (const std::size_t answered : {std::size_t{0}, std::size_t{7}, std::size_t{30}}) {
    Batches h(page_by_page(Shape::kFull, PrefetchPolicy::kBestEffort));
    h.answered = answered;
    Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
    EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kReady);
    h.work();
    EXPECT_EQ(h.start(job), answered * 4);
    h.end(job);
  }
}

// A request that is refused its start while its fetch goes on does not ask again, nor join itself.
TEST(PrefetchBatches, BestEffortAsksOnce) {
  Batches h(page_by_page(Shape::kFull, PrefetchPolicy::kBestEffort));
  h.answered = 7;
  std::array<std::vector<DeviceSlot>, kComponentCount> taken;
  ASSERT_TRUE(h.device->reserve({h.device->free_slots(ComponentKind::kFull), 0, 0}, taken));
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(h.advance(job, 16)) << "the device is taken";
  EXPECT_EQ(h.cache->counters().prefetch_shared, 0u);
  for (const DeviceSlot slot : taken[0]) ASSERT_TRUE(h.device->free(ComponentKind::kFull, slot).is_ok());
  EXPECT_EQ(h.start(job), 7u * 4);
  h.end(job);
}

TEST(PrefetchBatches, AnAbortGivesBackWhatDidNotBegin) {
  Batches h(page_by_page(Shape::kFull));
  h.answered = 3;
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  const std::size_t asked = h.reads() - h.first_read;
  const std::uint64_t held = h.host->counts(ComponentKind::kFull).live;
  h.cache->abort(job.id);
  EXPECT_LE(h.host->counts(ComponentKind::kFull).live, held - (kPages - asked));
  EXPECT_TRUE(h.cache->check_invariants().is_ok()) << h.cache->check_invariants().to_string();
  h.backend->script = {};
  (void)h.backend->release();
  h.settle();
  EXPECT_EQ(h.reads() - h.first_read, asked);
  EXPECT_EQ(h.check_clean(), "");
}

// Another storage is attached while the first one's reads hang: it is not asked for the rest.
TEST(PrefetchBatches, ADetachedStorageKeepsItsOwn) {
  Batches h(page_by_page(Shape::kFull));
  h.answered = 5;
  Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
  h.work();
  const std::size_t asked = h.reads() - h.first_read;
  h.cache->detach_storage();
  std::unique_ptr<StorageBackend> other = h.factory.create("memory", {}, {nullptr, &h.clock, &h.executor}).value();
  ASSERT_TRUE(h.cache->attach_storage(*other).is_ok());
  h.clock.advance(std::chrono::seconds(2));
  h.work();
  EXPECT_EQ(h.start(job), 5u * 4);
  EXPECT_EQ(other->stats().reads, 0u);
  EXPECT_EQ(h.reads() - h.first_read, asked);
  h.end(job);
  h.cache->detach_storage();
  h.settle();
}

// Batches are asked for in the order of the chain, each one's window and state with the pages they belong to.
TEST(PrefetchBatches, ComeInChainOrder) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kAll}) {
    Batches h(page_by_page(shape));
    std::vector<PageKey> anchors;
    h.backend->saw_read = [&](const ReadRequest& request) {
      for (const ReadItem& item : request.items) {
        if (item.pool == PoolName::kKv) anchors.push_back(item.key);
      }
    };
    Harness::Job job = h.begin(prompt_of(kBatchTokens), 4);
    h.work();
    PageKeyChain chain(h.model.page_size, namespace_digest(h.model, {.layout = h.options.layout}));
    chain.append_pages(prompt_of(kPages * 4));
    ASSERT_EQ(anchors.size(), kPages) << shape_name(shape);
    for (std::size_t i = 0; i < kPages; ++i) EXPECT_EQ(anchors[i], chain.keys()[i]) << shape_name(shape) << " " << i;
    EXPECT_EQ(h.start(job), kPages * 4);
    h.backend->saw_read = {};
    h.end(job);
  }
}

}  // namespace
}  // namespace larder::test
