// SPDX-License-Identifier: Apache-2.0
// Everything below the cache fails, at every call, in every way: each request still ends, with right bytes, and no slot
// is lost. (Rules 1, 2, 3 and 5 of DESIGN.md section 3.)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

HarnessOptions options_for(Shape shape) {
  HarnessOptions o = eager_options(shape);
  o.device = {32, 32, 4};
  o.host_slots = 400;
  return o;
}

// One prefix through all tiers: computed, pushed to the host, loaded back, read from storage, continued; two tenants.
void live(Harness& h) {
  const auto settled_run = [&](std::vector<TokenId> prompt, const char* salt) {
    if (!h.failure.empty()) return;
    (void)h.run(std::move(prompt), 4, salt);
    h.settle();
  };
  settled_run(prompt_of(60), "");
  settled_run(prompt_of(100, 10), "");
  settled_run(prompt_of(100, 19), "");
  settled_run(prompt_of(60), "");
  (void)h.cache->flush();
  settled_run(prompt_of(60), "");
  settled_run(prompt_of(77), "");
  settled_run(prompt_of(60), "tenant");
  (void)h.cache->flush();
  settled_run(prompt_of(77), "tenant");
}

class Faults : public ::testing::TestWithParam<Shape> {};

// ---- storage

TEST_P(Faults, NthStorageCallFails) {
  for (const Call call : {Call::kExists, Call::kRead, Call::kWrite}) {
    for (const Fault fault : {Fault::kRefuse, Fault::kFail, Fault::kClear}) {
      for (std::size_t n = 0;; ++n) {
        Harness h(options_for(GetParam()));
        h.backend->script = [&](Call c, std::size_t i) { return c == call && i == n ? fault : Fault::kNone; };
        live(h);
        ASSERT_EQ(h.check_clean(), "") << "call " << static_cast<int>(call) << " fault " << static_cast<int>(fault)
                                       << " at " << n;
        if (h.backend->faults == 0) break;
      }
    }
  }
}

TEST_P(Faults, StorageAlwaysFails) {
  for (const Call call : {Call::kExists, Call::kRead, Call::kWrite}) {
    for (const Fault fault : {Fault::kRefuse, Fault::kFail}) {
      Harness h(options_for(GetParam()));
      h.backend->script = [&](Call c, std::size_t) { return c == call ? fault : Fault::kNone; };
      live(h);
      ASSERT_EQ(h.check_clean(), "");
      (void)h.cache->flush();
      EXPECT_EQ(h.run(prompt_of(60), 4).cached(), 0u);
      EXPECT_EQ(h.failure, "");
    }
  }
}

TEST_P(Faults, NthItemOfAReadFails) {
  for (const Status& fault : {not_found("scripted"), corrupt("scripted"), unavailable("scripted")}) {
    for (std::size_t n = 0;; ++n) {
      Harness h(options_for(GetParam()));
      h.backend->read_item = [&](const ReadItem&, std::size_t i) { return i == n ? fault : Status::ok(); };
      live(h);
      ASSERT_EQ(h.check_clean(), "") << fault.to_string() << " at item " << n;
      if (h.backend->faults == 0) break;
      EXPECT_EQ(h.cache->counters().prefetch_partial, 1u);
      EXPECT_EQ(h.cache->counters().corrupt, fault.code() == StatusCode::kCorrupt ? 1u : 0u);
    }
  }
}

// The nth write fails for a while; the retry stores it, and everything is found.
TEST_P(Faults, FailedWriteIsRetried) {
  for (std::size_t n = 0; n < 4; ++n) {
    Harness h(options_for(GetParam()));
    h.backend->script = [&](Call c, std::size_t i) {
      return c == Call::kWrite && i >= n && i < n + 2 ? Fault::kFail : Fault::kNone;
    };
    store_only(h, prompt_of(60));
    EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
    EXPECT_EQ(h.cache->counters().store_failed, 0u);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// ---- copies

TEST_P(Faults, NthCopyFails) {
  for (const CopyDirection direction :
       {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice, CopyDirection::kDeviceToDevice}) {
    for (const Fault fault : {Fault::kRefuse, Fault::kFail}) {
      for (std::size_t n = 0;; ++n) {
        Harness h(options_for(GetParam()));
        h.device_api->script = [&](CopyDirection d, std::size_t i) {
          return d == direction && i == n ? fault : Fault::kNone;
        };
        live(h);
        ASSERT_EQ(h.check_clean(), "") << "direction " << static_cast<int>(direction) << " fault "
                                       << static_cast<int>(fault) << " at " << n;
        if (h.device_api->faults == 0) break;
      }
    }
  }
}

// A device that copies nothing: everything is computed.
TEST_P(Faults, EveryCopyFails) {
  for (const Fault fault : {Fault::kRefuse, Fault::kFail}) {
    for (const std::size_t directions : {1u, 2u, 4u, 7u}) {
      Harness h(options_for(GetParam()));
      h.device_api->script = [&](CopyDirection d, std::size_t) {
        return ((directions >> static_cast<unsigned>(d)) & 1) != 0 ? fault : Fault::kNone;
      };
      live(h);
      ASSERT_EQ(h.check_clean(), "") << "directions " << directions;
    }
  }
}

// ---- limits

TEST_P(Faults, FewestOperations) {
  for (const PrefetchPolicy policy :
       {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    HarnessOptions o = options_for(GetParam());
    o.config.max_operations = 4;
    o.config.prefetch_policy = policy;
    Harness h(o);
    live(h);
    EXPECT_EQ(h.check_clean(), "");
  }
}

// ---- aborts and operators, in every phase

TEST_P(Faults, AbortAtEveryMove) {
  for (const std::size_t background : {0u, 1u, 3u}) {
    bool was_done = false;
    for (int moves = 0; moves < 200 && !was_done; ++moves) {
      Harness h(options_for(GetParam()));
      (void)h.run(prompt_of(60), 4);
      h.settle();
      if (moves % 2 == 0) (void)h.cache->flush();  // from storage, else from the host
      (void)h.run(prompt_of(100, 10), 4);
      h.settle();
      Harness::Job job = h.begin(prompt_of(77), 4);
      for (int i = 0; i < moves && !was_done; ++i) {
        (void)h.advance(job, 16);
        (void)h.run_background(background);
        if (background == 0 && i % 8 == 7) h.settle();
        was_done = h.done(job);
      }
      h.cache->abort(job.id);
      EXPECT_EQ(h.run(prompt_of(60), 4).prompt, 60u);
      h.settle();
      ASSERT_EQ(h.check_clean(), "") << moves << " moves, background " << background;
    }
    EXPECT_TRUE(was_done);
  }
}

enum class Act { kFlush, kDetach, kReattach };

TEST_P(Faults, OperatorsActDuringAPrefetch) {
  for (const Act act : {Act::kFlush, Act::kDetach, Act::kReattach}) {
    for (int tasks = 0; tasks < 12; ++tasks) {
      Harness h(options_for(GetParam()));
      store_only(h, prompt_of(60));
      Harness::Job job = h.begin(prompt_of(77), 4);
      for (int i = 0; i < tasks; ++i) (void)h.run_background(1);
      if (act == Act::kFlush) (void)h.cache->flush();
      if (act != Act::kFlush) h.cache->detach_storage();
      if (act == Act::kReattach) {
        ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
      }
      while (!h.done(job) && h.failure.empty()) {
        if (h.advance(job, 16)) continue;
        (void)h.run_background(10);
        h.clock.advance(milliseconds(10));
      }
      h.finish(job);
      h.settle();
      EXPECT_TRUE(h.cache->storage_idle());
      ASSERT_EQ(h.check_clean(), "") << "act " << static_cast<int>(act) << " after " << tasks << " tasks";
    }
  }
}

// ---- storage that is late

// A request that waited until its deadline computes; what it waited for is there for the next one.
TEST_P(Faults, LateDataServesTheNextRequest) {
  for (const PrefetchPolicy policy :
       {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    for (const bool aborts : {false, true}) {
      HarnessOptions o = options_for(GetParam());
      o.config.prefetch_policy = policy;
      o.config.prefetch_wait_limit = seconds(7);
      Harness h(o);
      store_only(h, prompt_of(60));
      h.backend->script = [](Call c, std::size_t) { return c == Call::kRead ? Fault::kHold : Fault::kNone; };
      Harness::Job job = h.begin(prompt_of(60), 4);
      (void)h.run_background(100);
      ASSERT_EQ(h.backend->held(), 1u);
      const bool waits = policy != PrefetchPolicy::kBestEffort;
      EXPECT_EQ(h.cache->phase(job.id), waits ? RequestPhase::kPrefetching : RequestPhase::kReady);
      h.clock.advance(policy == PrefetchPolicy::kTimeout ? milliseconds(900) : milliseconds(6900));
      (void)h.run_background(100);
      EXPECT_EQ(h.cache->phase(job.id), waits ? RequestPhase::kPrefetching : RequestPhase::kReady);
      h.clock.advance(seconds(30));
      (void)h.run_background(100);
      EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kReady);
      EXPECT_EQ(h.cache->counters().prefetch_late, waits ? 1u : 0u);
      if (aborts) {
        h.cache->abort(job.id);
      } else {
        ASSERT_TRUE(h.advance(job, 16));
        EXPECT_EQ(job.cached.cached(), 0u);  // without the data
        h.cache->abort(job.id);
      }
      h.backend->script = {};
      EXPECT_EQ(h.backend->release(), 1u);
      h.settle();
      EXPECT_EQ(h.cache->counters().prefetched, 14u);
      EXPECT_EQ(h.run(prompt_of(60), 4).host, 56u);
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

// What a late read continues was evicted meanwhile: it is given up, and nothing else happens.
TEST_P(Faults, LateDataWithoutItsPathIsGivenUp) {
  HarnessOptions o = options_for(GetParam());
  Harness h(o);
  store_only(h, prompt_of(80));
  (void)h.run(prompt_of(40), 4);  // the first half only
  h.settle();
  h.backend->script = [](Call c, std::size_t) { return c == Call::kRead ? Fault::kHold : Fault::kNone; };
  Harness::Job job = h.begin(prompt_of(80), 4);
  (void)h.run_background(100);
  ASSERT_EQ(h.backend->held(), 1u);
  h.clock.advance(seconds(40));
  (void)h.run_background(100);
  h.cache->abort(job.id);
  (void)h.cache->flush();
  EXPECT_EQ(h.cache->tree().node_count(), 0u);  // a read that hangs keeps no path in place
  h.backend->script = {};
  (void)h.backend->release();
  EXPECT_EQ(h.check_settled(), "");
}

// Reads and writes that never come back: requests that need the whole device still get it, for as long as it lasts.
TEST_P(Faults, StorageThatHangsStopsNobody) {
  for (const PrefetchPolicy policy :
       {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    for (const Call call : {Call::kExists, Call::kRead, Call::kWrite}) {
      HarnessOptions o = options_for(GetParam());
      o.host_slots = 60;
      o.config.prefetch_policy = policy;
      o.config.prefetch_wait_limit = seconds(5);
      o.config.max_operations = 16;
      Harness h(o);
      store_only(h, prompt_of(60));
      h.backend->script = [&](Call c, std::size_t) { return c == call ? Fault::kHold : Fault::kNone; };
      for (TokenId i = 0; i < 30 && h.failure.empty(); ++i) {
        (void)h.run(prompt_of(60 + i % 3 * 20, i % 2 == 0 ? 0 : i), 4);
        (void)h.run(prompt_of(120, i), 4);  // 31 of 32 device pages
      }
      EXPECT_EQ(h.failure, "") << "policy " << static_cast<int>(policy) << " call " << static_cast<int>(call);
      EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
      h.backend->script = {};
      (void)h.backend->release();
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

// The cache goes while storage still has its buffers.
TEST_P(Faults, ShutdownWithReadsAndWritesInFlight) {
  for (const Call call : {Call::kExists, Call::kRead, Call::kWrite}) {
    Harness h(options_for(GetParam()));
    store_only(h, prompt_of(60));
    h.backend->script = [&](Call c, std::size_t) { return c == call ? Fault::kHold : Fault::kNone; };
    Harness::Job job = h.begin(prompt_of(60), 4);
    (void)h.run_background(1000);
    (void)h.run(prompt_of(70, 5), 4);
    (void)h.executor.run_all();
    const std::size_t submitted = h.backend->calls[0] + h.backend->calls[1] + h.backend->calls[2];
    h.cache.reset();
    EXPECT_EQ(h.backend->calls[0] + h.backend->calls[1] + h.backend->calls[2], submitted);
    (void)h.backend->release();  // into host memory, which is still there
    (void)h.executor.run_all();
  }
}

// ---- partial arrivals

TEST(PartialPrefetch, AdoptsTheLargestWholeRestorePoint) {
  for (const auto& [shape, pool] : {std::pair{Shape::kFull, PoolName::kKv},
                                    {Shape::kFullSidecar, PoolName::kKv},
                                    {Shape::kFullSidecar, PoolName::kDraft}}) {
    for (std::uint64_t page = 0; page < 14; ++page) {
      Harness h(options_for(shape));
      store_only(h, prompt_of(60));
      std::uint64_t seen = 0;
      const PoolName failing = pool;
      h.backend->read_item = [&](const ReadItem& item, std::size_t) {
        return item.pool == failing && seen++ == page ? not_found("scripted") : Status::ok();
      };
      Harness::Job job = h.begin(prompt_of(60), 4);
      for (int i = 0; i < 100 && h.cache->phase(job.id) == RequestPhase::kPrefetching; ++i) (void)h.run_background(1);
      EXPECT_EQ(h.cache->counters().prefetched, page) << shape_name(shape);
      EXPECT_EQ(h.cache->counters().prefetch_partial, 1u);
      h.cache->abort(job.id);
      h.backend->read_item = [](const ReadItem&, std::size_t) { return unavailable("scripted"); };
      EXPECT_EQ(h.run(prompt_of(60), 4).host, page * 4);
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

// A window or a state that did not arrive leaves no earlier restore point, because only the last one's were read:
// nothing is adopted that nobody could use.
TEST(PartialPrefetch, NothingIsAdoptedWithoutItsWindowAndState) {
  for (const Shape shape : {Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    for (std::size_t n = 0; n < 14; ++n) {
      Harness h(options_for(shape));
      store_only(h, prompt_of(60));
      h.backend->read_item = [&](const ReadItem&, std::size_t i) { return i == n ? not_found("x") : Status::ok(); };
      Harness::Job job = h.begin(prompt_of(60), 4);
      for (int i = 0; i < 100 && h.cache->phase(job.id) == RequestPhase::kPrefetching; ++i) (void)h.run_background(1);
      ASSERT_EQ(h.backend->faults, 1u);
      EXPECT_EQ(h.cache->counters().prefetched, 0u) << shape_name(shape) << " item " << n;
      h.cache->abort(job.id);
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Faults,
                         ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll,
                                           Shape::kFullSidecar),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
