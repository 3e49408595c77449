// SPDX-License-Identifier: Apache-2.0
// Namespaces come and go: the limit is on those in use, not on those ever seen.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "controller/rank_group.h"
#include "tests/cache/harness.h"

namespace larder::test {
namespace {

std::string tenant(int i) { return "tenant " + std::to_string(i); }

HarnessOptions few_namespaces(Shape shape) {
  HarnessOptions o = eager_options(shape);
  o.config.max_namespaces = 4;
  return o;
}

TEST(Namespaces, IdleOnesMakeRoomForOthers) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    Harness h(few_namespaces(shape));
    for (int i = 0; i < 20; ++i) {
      (void)h.run(prompt_of(40), 4, tenant(i));
      h.settle();
      ASSERT_EQ(h.failure, "") << i;
      (void)h.cache->flush();
    }
    // Their pages are in storage, each under its own name.
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(h.run(prompt_of(40), 4, tenant(i)).storage, 36u) << i;
      h.settle();
      (void)h.cache->flush();
    }
    EXPECT_EQ(h.check_clean(), "");
  }
}

TEST(Namespaces, ThoseInUseCount) {
  Harness h(few_namespaces(Shape::kFullMamba));
  const std::vector<TokenId> prompt = prompt_of(40);
  const auto begin = [&](int i) {
    const std::string salt = tenant(i);
    BeginRequest request;
    request.tokens = prompt;
    request.salt = salt;
    return h.cache->begin(request);
  };
  std::vector<RequestId> begun;
  for (int i = 0; i < 4; ++i) begun.push_back(begin(i).value());
  EXPECT_EQ(begin(4).status().code(), StatusCode::kOverloaded) << "four have a request";
  h.cache->abort(begun[2]);
  EXPECT_EQ(begin(4).status().code(), StatusCode::kOverloaded) << "its query is still under way";
  h.settle();
  const Result<RequestId> fifth = begin(4);
  ASSERT_TRUE(fifth.is_ok()) << fifth.status().to_string();
  for (const RequestId id : {begun[0], begun[1], begun[3], *fifth}) h.cache->abort(id);
  h.settle();
  for (int i = 10; i < 14; ++i) (void)h.run(prompt, 4, tenant(i));  // with pages
  h.settle();
  EXPECT_TRUE(begin(20).is_ok()) << "pages of those that idle are no reason to refuse";
  EXPECT_EQ(h.failure, "");
}

// A request that is over, but has steps open, holds its place in the tree until they have ended, if only the root.
TEST(Namespaces, OneWithAnOpenStepStays) {
  for (const bool aborts : {false, true}) {
    HarnessOptions o = eager_options(Shape::kFull);
    o.config.max_namespaces = 1;
    o.storage = false;
    Harness h(o);
    Harness::Job job = h.begin(prompt_of(12), 4, tenant(0));
    ASSERT_TRUE(h.advance(job, 4));
    ASSERT_TRUE(h.advance(job, 4, {.leave = 0, .completes = false}));
    aborts ? h.cache->abort(job.id) : h.cache->finish(job.id);
    const std::vector<TokenId> prompt = prompt_of(12);
    BeginRequest other;
    other.tokens = prompt;
    other.salt = tenant(1);
    EXPECT_EQ(h.cache->begin(other).status().code(), StatusCode::kOverloaded);
    h.cancel_open(job);
    const Result<RequestId> begun = h.cache->begin(other);
    ASSERT_TRUE(begun.is_ok()) << begun.status().to_string();
    h.cache->abort(*begun);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// Whoever idles for the longest time gives way, with its pages; the others keep theirs.
TEST(Namespaces, PagesOfIdleOnesKeepNobodyOut) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    HarnessOptions o = few_namespaces(shape);
    o.storage = false;
    Harness h(o);
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(h.run(prompt_of(12), 4, tenant(i)).cached(), 0u) << i;
      h.settle();
      EXPECT_EQ(h.run(prompt_of(12), 4, tenant(0)).cached(), 8u) << "it never idles for long";
      h.settle();
      ASSERT_EQ(h.cache->check_invariants().to_string(), "ok");
      ASSERT_EQ(h.failure, "") << i;
    }
    for (const int i : {9, 10, 11}) EXPECT_EQ(h.run(prompt_of(12), 4, tenant(i)).cached(), 8u) << i;
    EXPECT_EQ(h.run(prompt_of(12), 4, tenant(8)).cached(), 0u);
    EXPECT_EQ(h.check_settled(), "");
  }
}

TEST(Namespaces, OneWithoutPagesGoesBeforeOlderOnesWithPages) {
  HarnessOptions o = few_namespaces(Shape::kFull);
  o.storage = false;
  Harness h(o);
  for (int i = 0; i < 3; ++i) (void)h.run(prompt_of(12), 4, tenant(i));
  Harness::Job job = h.begin(prompt_of(12), 4, tenant(3));
  h.cache->abort(job.id);
  h.settle();
  (void)h.run(prompt_of(12), 4, tenant(4));
  for (const int i : {0, 1, 2, 4}) EXPECT_EQ(h.run(prompt_of(12), 4, tenant(i)).cached(), 8u) << i;
  EXPECT_EQ(h.check_settled(), "");
}

// However many idle ones are still being written, one behind them that is not gives way.
TEST(Namespaces, ThoseBeingWrittenHideNoneThatMayGo) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.config.max_namespaces = 31;
  o.config.max_operations = 256;
  Harness h(o);
  h.backend->script = [](Call c, std::size_t) { return c == Call::kWrite ? Fault::kHold : Fault::kNone; };
  const auto look = [&] {
    for (int i = 0; i < 20; ++i) (void)h.run_background(100);
  };
  for (int i = 0; i < 30; ++i) {
    (void)h.run(prompt_of(9), 1, tenant(i));
    look();
  }
  EXPECT_EQ(h.cache->operations_in_flight(), 16u) << "as many as are written at once";
  h.cache->abort(h.begin(prompt_of(9), 1, tenant(30)).id);
  look();
  const Harness::Job job = h.begin(prompt_of(9), 1, tenant(31));
  EXPECT_EQ(h.failure, "");
  h.cache->abort(job.id);
  h.backend->script = {};
  (void)h.backend->release();
  EXPECT_EQ(h.check_settled(), "");
}

TEST(Namespaces, OperationsInFlightKeepTheirNamespace) {
  Harness h(few_namespaces(Shape::kFull));
  h.backend->script = [](Call c, std::size_t) { return c == Call::kWrite ? Fault::kHold : Fault::kNone; };
  for (int i = 0; i < 4; ++i) (void)h.run(prompt_of(40), 4, tenant(i));
  for (int i = 0; i < 20; ++i) (void)h.run_background(100);
  EXPECT_GE(h.backend->held(), 4u);
  const std::vector<TokenId> prompt = prompt_of(40);
  const std::string salt = tenant(4);
  BeginRequest request;
  request.tokens = prompt;
  request.salt = salt;
  EXPECT_EQ(h.cache->begin(request).status().code(), StatusCode::kOverloaded) << "all of them are being written";
  h.backend->script = {};
  (void)h.backend->release();
  h.settle();
  (void)h.run(prompt, 4, tenant(4));
  h.settle();
  EXPECT_EQ(h.failure, "");
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt, 4, tenant(0)).storage, 36u) << "what was written has its own name";
  EXPECT_EQ(h.check_settled(), "");
}

// The number of a closed namespace is used again: nothing of the old one may be met in the new one.
TEST(Namespaces, NumbersUsedAgainKeepTenantsApart) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    HarnessOptions o = few_namespaces(shape);
    o.storage = false;
    Harness h(o);
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(h.run(prompt_of(40), 4, tenant(i)).cached(), 0u) << i;
      EXPECT_EQ(h.run(prompt_of(40), 4, tenant(i)).cached(), 36u) << i;
      h.settle();
      if (i % 2 == 1) (void)h.cache->flush();
      ASSERT_EQ(h.cache->check_invariants().to_string(), "ok");
      ASSERT_EQ(h.failure, "") << i;
    }
    EXPECT_EQ(h.check_clean(), "");
  }
}

TEST(Namespaces, RanksCloseTheSame) {
  ManualClock clock;
  const auto groups = make_in_process_rank_group(2, clock, 64);
  HarnessOptions o = few_namespaces(Shape::kFull);
  o.ranks = groups[0].get();
  Harness a(o);
  o.ranks = groups[1].get();
  Harness b(o);
  const std::vector<TokenId> prompt = prompt_of(40);
  for (int i = 0; i < 20; ++i) {
    // An operator who asks one rank changes nothing there.
    BeginRequest explained;
    explained.tokens = prompt;
    const std::string salt = tenant(i / 2);
    explained.salt = salt;
    a.cache->explain(explained, [](Explanation) {});
    Harness::Job ja = a.begin(prompt, 4, tenant(i)), jb = b.begin(prompt, 4, tenant(i));
    for (int step = 0; step < 1000 && !(a.done(ja) && b.done(jb)); ++step) {
      const bool moved = a.advance(ja, 16);
      ASSERT_EQ(moved, b.advance(jb, 16));
      if (moved) continue;
      (void)a.run_background(3);
      (void)b.run_background(100);
    }
    a.finish(ja);
    b.finish(jb);
    for (int step = 0; step < 20; ++step) {
      (void)a.run_background(100);
      (void)b.run_background(100);
    }
    if (i < 10 && i % 3 == 2) {  // after that, those with pages give way
      (void)a.cache->flush();
      (void)b.cache->flush();
    }
    ASSERT_EQ(a.failure + b.failure, "") << i;
    ASSERT_EQ(a.cache->tree().node_count(), b.cache->tree().node_count());
  }
}

}  // namespace
}  // namespace larder::test
