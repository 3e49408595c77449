// SPDX-License-Identifier: Apache-2.0
// What the cache remembers of a storage: which pages it has, when it was emptied or taken away.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/cache/harness.h"
#include "tree/tree_backlog.h"

namespace larder::test {
namespace {

using std::chrono::seconds;

TEST(StorageMarks, WhatCameFromStorageIsNotWrittenThere) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSidecar, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    HarnessOptions o = eager_options(shape);
    o.host_slots = 400;
    Harness h(o);
    store_only(h, prompt_of(60));
    EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
    h.settle();
    EXPECT_TRUE(h.cache->tree().backlog().unstored(1, 100).empty()) << shape_name(shape);
    EXPECT_EQ(h.check_clean(), "");
  }
}

TEST(StorageMarks, EmptiedStorageIsFilledAgain) {
  Harness h(eager_options(Shape::kFullMamba));
  (void)h.run(prompt_of(60), 4);
  h.settle();
  ASSERT_TRUE(h.backend->submit_clear(nullptr, [](Status) {}).is_ok());
  (void)h.executor.run_all();
  h.cache->storage_cleared();
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
  EXPECT_EQ(h.check_settled(), "");
}

// A fork's checkpoint reaches the host while the node that it lies in is being written, and the write of its own fails
// for good: it is written later, not taken for stored with the rest.
TEST(StorageMarks, StateThatCameDuringAWriteIsWrittenToo) {
  Harness h(eager_options(Shape::kFullMamba));
  const auto with_tail = [](TokenId tail) {
    std::vector<TokenId> prompt = prompt_of(20);
    for (TokenId i = 0; i < 12; ++i) prompt.push_back(tail + i);
    return prompt;
  };
  h.backend->script = [](Call c, std::size_t number) {
    return c != Call::kWrite ? Fault::kNone : number == 0 ? Fault::kHold : Fault::kFail;
  };
  (void)h.run(prompt_of(40), 1, "", 40);
  (void)h.run(with_tail(30), 1);
  for (int i = 0; i < 20; ++i) {
    look(h);
    h.clock.advance(seconds(100));
  }
  ASSERT_EQ(h.cache->operations_in_flight(), 1u) << "the first write";
  h.backend->script = {};
  (void)h.backend->release();
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(with_tail(45), 1).storage, 20u);
  EXPECT_EQ(h.check_settled(), "");
}

// A request that runs keeps the path of prompt_of(65) on the device. Its state, and what the host had, are gone.
class Lost : public Harness {
 public:
  explicit Lost(Shape shape) : Harness(roomy(shape)) {
    backend->saw_write = [this](const WriteRequest&) { ++writes; };
    (void)run(prompt_of(65), 1);
    settle();
    keeper_ = begin(prompt_of(65), 100);
    for (int i = 0; i < 20 && !keeper_.started; ++i) {
      (void)advance(keeper_, 8);
      work();
    }
    (void)cache->flush();
    writes = 0;
  }
  void work() {
    (void)run_background(100);
    (void)cache->poll(Nanos{0});
  }
  void run_again() {
    (void)run(prompt_of(65), 1);
    for (int i = 0; i < 50; ++i) work();
  }
  // Tokens that storage alone has of it.
  [[nodiscard]] std::uint64_t stored() {
    cache->abort(keeper_.id);
    settle();
    (void)cache->flush();
    const std::uint64_t tokens = run(prompt_of(65), 1).storage;
    settle();
    EXPECT_EQ(failure, "");
    EXPECT_EQ(check_clean(), "");
    return tokens;
  }
  std::size_t writes = 0;

 private:
  static HarnessOptions roomy(Shape shape) {
    HarnessOptions o = eager_options(shape);
    o.device = {200, 200, 40};
    o.host_slots = 400;
    return o;
  }
  Job keeper_;
};

TEST(StorageMarks, WhatStorageLostIsStoredAnew) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    Lost h(shape);
    ASSERT_TRUE(h.backend->submit_clear(nullptr, [](Status) {}).is_ok());  // its own eviction: nobody is told
    (void)h.executor.run_all();
    h.run_again();
    EXPECT_GT(h.writes, 0u) << shape_name(shape);
    EXPECT_EQ(h.stored(), 64u) << shape_name(shape);
  }
}

// It says that it has the state, and what comes is none.
TEST(StorageMarks, WhatStorageDamagedIsStoredAnew) {
  for (const StatusCode code : {StatusCode::kCorrupt, StatusCode::kNotFound}) {
    Lost h(Shape::kFullMamba);
    h.backend->read_item = [&](const ReadItem& item, std::size_t) {
      return h.model.find_pool(item.pool)->component == ComponentKind::kMamba ? Status(code, "lost") : Status::ok();
    };
    h.run_again();
    h.backend->read_item = {};
    EXPECT_GT(h.writes, 0u);
    EXPECT_EQ(h.stored(), 64u);
  }
}

// What it cannot say or give now, it may have still.
TEST(StorageMarks, WhatStorageFailsToAnswerIsNotStoredAnew) {
  for (const Call fails : {Call::kExists, Call::kRead}) {
    Lost h(Shape::kFullMamba);
    h.backend->script = [&](Call call, std::size_t) { return call == fails ? Fault::kFail : Fault::kNone; };
    h.run_again();
    h.backend->script = {};
    EXPECT_EQ(h.writes, 0u);
    EXPECT_EQ(h.stored(), 64u);
  }
}

// A read that hung until its request gave up: after a detach nobody waits for it any more.
TEST(StorageMarks, DetachLeavesNoReadThatWasGivenUp) {
  HarnessOptions o = eager_options(Shape::kFullMamba);
  o.config.prefetch_policy = PrefetchPolicy::kTimeout;
  Harness h(o);
  store_only(h, prompt_of(60));
  h.backend->script = [](Call c, std::size_t) { return hold(c, Call::kRead); };
  Harness::Job job = h.begin(prompt_of(60), 1);
  look(h);
  h.clock.advance(seconds(100));
  look(h);
  while (!h.done(job) && h.failure.empty()) {
    if (!h.advance(job, 16)) look(h);
  }
  h.finish(job);
  look(h);
  EXPECT_GT(h.cache->operations_in_flight(), 0u) << "the read may still be used";
  h.cache->detach_storage();
  EXPECT_EQ(h.cache->operations_in_flight(), 0u);
  h.backend->script = {};
  (void)h.backend->release();
  EXPECT_EQ(h.check_settled(), "");
}

// A read has brought its pages, and before they are adopted an operator empties the storage: it has them no longer.
TEST(StorageMarks, WhatWasReadBeforeAClearIsStoredAnew) {
  for (const Shape shape : {Shape::kFull, Shape::kFullMamba, Shape::kAll}) {
    Harness h(eager_options(shape));
    store_only(h, prompt_of(60));
    h.backend->script = [](Call c, std::size_t) { return hold(c, Call::kRead); };
    Harness::Job job = h.begin(prompt_of(60), 4);
    look(h);
    h.backend->script = {};
    ASSERT_EQ(h.backend->release(), 1u) << shape_name(shape);
    (void)h.executor.run_all();  // its end is known in the next poll
    ASSERT_TRUE(h.backend->submit_clear(nullptr, [](Status) {}).is_ok());
    (void)h.executor.run_all();
    h.cache->storage_cleared();
    look(h);
    EXPECT_EQ(h.cache->counters().prefetched, 14u) << shape_name(shape);
    h.cache->abort(job.id);
    h.settle();
    (void)h.cache->flush();
    EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u) << shape_name(shape);
    h.settle();
    EXPECT_EQ(h.failure, "");
    EXPECT_EQ(h.check_clean(), "");
  }
}

TEST(StorageMarks, ExplanationEndsWithTheCache) {
  Harness h(eager_options(Shape::kFull));
  h.backend->script = [](Call c, std::size_t) { return hold(c, Call::kExists); };
  std::optional<Explanation> got;
  const std::vector<TokenId> prompt = prompt_of(60);
  BeginRequest request;
  request.tokens = prompt;
  h.cache->explain(request, [&](Explanation e) { got = std::move(e); });
  look(h);
  EXPECT_FALSE(got.has_value());
  h.cache.reset();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->storage_status.code(), StatusCode::kCancelled);
  EXPECT_EQ(got->prompt_pages, 14u);
  (void)h.backend->release();
  (void)h.executor.run_all();
}

}  // namespace
}  // namespace larder::test
