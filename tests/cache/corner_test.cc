// SPDX-License-Identifier: Apache-2.0
// Corners that a review found: each of these was wrong once.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// ---- storage

// The defect: a page was copied when the device let go of it, however often it had been used.
TEST(CacheCorner, SelectiveBackupLetsColdPagesGo) {
  HarnessOptions options = eager_options(Shape::kFullMamba);
  options.config.write_policy = WritePolicy::kWriteThroughSelective;
  options.config.eviction_policy = EvictionPolicy::kLru;  // value would keep on the device what was used again
  Harness h(options);
  for (TokenId first = 1; first < 11; ++first) (void)h.run(prompt_of(60, first), 4);  // the device has 64 pages
  h.settle();
  EXPECT_EQ(h.cache->counters().backed_up, 0u);
  EXPECT_EQ(h.cache->counters().stored, 0u);
  for (int i = 0; i < 3; ++i) (void)h.run(prompt_of(60), 4);
  h.settle();
  const std::uint64_t hot = h.cache->counters().backed_up;
  EXPECT_GT(hot, 0u);
  for (TokenId first = 20; first < 30; ++first) (void)h.run(prompt_of(60, first), 4);
  h.settle();
  EXPECT_EQ(h.cache->counters().backed_up, hot);
  const CachedTokens again = h.run(prompt_of(60), 4);
  EXPECT_GT(again.host, 0u) << "what was used again is on the host; device " << again.device << ", storage "
                            << again.storage;
  EXPECT_EQ(h.check_settled(), "");
}

// Pages of several tenants that are stored in one go keep the identity of their own.
TEST(CacheCorner, TenantsBackedUpTogetherAreFoundApart) {
  Harness h(eager_options(Shape::kFullMamba));
  h.cache->detach_storage();
  for (const char* tenant : {"alice", "bob", ""}) (void)h.run(prompt_of(40), 4, tenant);
  h.settle();
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  h.settle();
  (void)h.cache->flush();
  for (const char* tenant : {"alice", "bob", ""}) {
    EXPECT_EQ(h.run(prompt_of(40), 4, tenant).storage, 36u) << tenant;
    h.settle();
  }
  EXPECT_EQ(h.check_clean(), "");
}

// The deadline of a prefetch that is over does not end the wait for the next one.
TEST(CacheCorner, StaleDeadlineEndsNoOtherWait) {
  Harness h(eager_options(Shape::kFull));
  store_only(h, prompt_of(60));
  h.backend->read_item = [](const ReadItem&, std::size_t i) { return i == 0 ? unavailable("x") : Status::ok(); };
  Harness::Job job = h.begin(prompt_of(60), 4);
  for (int i = 0; i < 100 && h.cache->phase(job.id) == RequestPhase::kPrefetching; ++i) (void)h.run_background(1);
  EXPECT_FALSE(h.advance(job, 16));  // storage had more: asks again
  ASSERT_EQ(h.cache->phase(job.id), RequestPhase::kPrefetching);
  (void)h.cache->poll(Nanos::zero());
  EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kPrefetching);
  EXPECT_EQ(h.cache->counters().prefetch_late, 0u);
  h.settle();
  EXPECT_TRUE(h.advance(job, 16));
  EXPECT_EQ(job.cached.storage, 56u);
  h.cache->abort(job.id);
  EXPECT_EQ(h.check_settled(), "");
}

// A page that storage promises and never has right costs one more read, not all that a request may make.
TEST(CacheCorner, APageThatIsAlwaysCorruptIsAskedForTwice) {
  Harness h(eager_options(Shape::kFull));
  store_only(h, prompt_of(60));
  std::optional<PageKey> bad;
  h.backend->read_item = [&bad](const ReadItem& item, std::size_t i) {
    if (i == 5) bad = item.key;
    return item.key == bad ? corrupt("x") : Status::ok();
  };
  const std::size_t reads = h.backend->calls[static_cast<std::size_t>(Call::kRead)];
  const CachedTokens cached = h.run(prompt_of(60), 4);
  EXPECT_EQ(cached.storage, 20u);
  EXPECT_LE(h.backend->calls[static_cast<std::size_t>(Call::kRead)] - reads, 2u);
  EXPECT_EQ(h.check_settled(), "");
}

// Many retries: the delay grows to its limit and does not overflow.
TEST(CacheCorner, RetryDelayIsBounded) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.config.backup_retries = 32;
  Harness h(o);
  h.backend->script = [](Call c, std::size_t) { return c == Call::kWrite ? Fault::kFail : Fault::kNone; };
  (void)h.run(prompt_of(15), 1);
  for (int i = 0; i < 200 && !h.cache->idle(); ++i) {
    (void)h.run_background(100);
    h.clock.advance(hours(1));
  }
  EXPECT_TRUE(h.cache->idle());
  EXPECT_EQ(h.backend->calls[static_cast<std::size_t>(Call::kWrite)], 33u);
  EXPECT_EQ(h.check_clean(), "");
}

// A storage that takes nothing is left alone for a while after the retries; then it gets all of it.
TEST(CacheCorner, SickStorageIsNotAskedForEverAndCatchesUp) {
  Harness h(eager_options(Shape::kFullMamba));
  h.cache->detach_storage();
  (void)h.run(prompt_of(60), 4);
  (void)h.run(prompt_of(60, 9), 4);
  h.settle();
  h.backend->script = [](Call c, std::size_t) { return c == Call::kWrite ? Fault::kFail : Fault::kNone; };
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  h.settle();
  EXPECT_EQ(h.failure, "");
  EXPECT_GT(h.cache->counters().store_failed, 0u);
  const std::size_t writes = h.backend->calls[static_cast<std::size_t>(Call::kWrite)];
  (void)h.run(prompt_of(20, 33), 4);
  h.settle();
  EXPECT_EQ(h.backend->calls[static_cast<std::size_t>(Call::kWrite)], writes);
  h.backend->script = {};
  h.clock.advance(std::chrono::seconds(2));
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
  EXPECT_EQ(h.run(prompt_of(60, 9), 4).storage, 56u);
  EXPECT_EQ(h.run(prompt_of(20, 33), 4).storage, 16u);
  EXPECT_EQ(h.check_settled(), "");
}

// An edge that is split while its pages wait to be written is written whole.
TEST(CacheCorner, SplitEdgeIsStoredWhole) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.config.chunked_prefill_tokens = 64;
  Harness h(o);
  h.backend->script = [](Call c, std::size_t i) { return c == Call::kWrite && i == 0 ? Fault::kFail : Fault::kNone; };
  (void)h.run(prompt_of(60), 4, "", 64);
  (void)h.executor.run_all();
  (void)h.cache->poll(Nanos::zero());  // backed up; the write
  (void)h.executor.run_all();
  (void)h.cache->poll(Nanos::zero());  // failed; waits for its retry
  std::vector<TokenId> other = prompt_of(60);
  for (std::size_t i = 30; i < other.size(); ++i) other[i] = 1;
  (void)h.run(other, 4, "", 64);  // splits the edge at page 7
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
  EXPECT_EQ(h.check_settled(), "");
}

// Control runs: what a component must not have on the host it gets from nowhere.
TEST(CacheCorner, ControlRunsKeepComponentsOnTheDevice) {
  for (const bool keeps_full : {false, true}) {
    for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
      HarnessOptions o = eager_options(shape);
      o.device = {64, 40, 6};
      o.config.host_tier_for_full = keeps_full;
      o.config.host_tier_for_state = false;
      Harness h(o);
      for (TokenId i = 0; i < 12; ++i) {
        (void)h.run(prompt_of(60, i % 5), 4);
        EXPECT_EQ(h.host->counts(ComponentKind::kMamba).live, 0u);
        if (!keeps_full) {
          EXPECT_EQ(h.host->counts(ComponentKind::kFull).live, 0u);
        }
      }
      EXPECT_EQ(h.run(prompt_of(60, 1), 4).device, 56u);
      EXPECT_EQ(h.backend->calls[static_cast<std::size_t>(Call::kExists)], 0u);
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

// ---- explain

TEST(CacheCorner, ExplainOfAPromptShorterThanTheEdge) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    HarnessOptions o = eager_options(shape);
    o.device = {512, 512, 8};
    o.host_slots = 2000;
    o.config.chunked_prefill_tokens = 1200;
    Harness h(o);
    (void)h.run(prompt_of(1200), 1, "", 1200);
    h.settle();
    std::optional<Explanation> got;
    const std::vector<TokenId> prompt = prompt_of(33);
    BeginRequest request;
    request.tokens = prompt;
    h.cache->explain(request, [&](Explanation e) { got = std::move(e); });
    h.settle();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->storage_restore_pages, 0u);  // no state that early
    for (const ExplainLine& line : got->pools) {
      if (line.component == "full") {
        EXPECT_EQ(line.restore_pages, 8u);
      }
      if (line.component == "mamba") {
        EXPECT_EQ(line.restore_pages, 0u);
      }
    }
  }
}

// Nothing of it can be reused, which is no restore point anywhere.
TEST(CacheCorner, ExplainOfAPromptWithoutAPage) {
  Harness h(eager_options(Shape::kFullMamba));
  const std::vector<TokenId> prompt = prompt_of(1);
  std::optional<Explanation> got;
  BeginRequest request;
  request.tokens = prompt;
  for (const bool has_storage : {true, false}) {
    if (!has_storage) h.cache->detach_storage();
    h.cache->explain(request, [&](Explanation e) { got = std::move(e); });
    h.settle();
    ASSERT_TRUE(got.has_value());
    for (const std::string& reason : {got->device_reason, got->host_reason, got->storage_reason}) {
      EXPECT_EQ(reason, "the prompt has no whole page to reuse");
    }
  }
}

TEST(CacheCorner, ExplainTakesNoNamespace) {
  HarnessOptions o = eager_options(Shape::kFullMamba);
  o.config.max_namespaces = 1;
  Harness h(o);
  const std::vector<TokenId> prompt = prompt_of(33);
  std::optional<Explanation> got;
  for (const char* salt : {"a", "b", "c"}) {
    BeginRequest request;
    request.tokens = prompt;
    request.salt = salt;
    h.cache->explain(request, [&](Explanation e) { got = std::move(e); });
  }
  h.settle();
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(got->storage_status.is_ok());
  EXPECT_EQ(h.run(prompt_of(33), 2).cached(), 0u);
  EXPECT_EQ(h.failure, "");
}

// A storage that hangs has what it was asked, and no more: who asked is told at the detach, and the next storage is
// asked anew.
TEST(CacheCorner, ExplanationsEndWithTheirStorage) {
  std::vector<Explanation> got;
  Harness h(eager_options(Shape::kFullMamba));
  (void)h.run(prompt_of(33), 2);
  h.settle();
  const std::vector<TokenId> prompt = prompt_of(33);
  const auto explain = [&] {
    BeginRequest request;
    request.tokens = prompt;
    h.cache->explain(request, [&](Explanation e) { got.push_back(std::move(e)); });
  };
  h.backend->script = [](Call c, std::size_t) { return c == Call::kExists ? Fault::kHold : Fault::kNone; };
  for (int i = 0; i < 16; ++i) explain();
  for (int i = 0; i < 10; ++i) (void)h.run_background(100);
  ASSERT_TRUE(got.empty());
  h.cache->detach_storage();
  EXPECT_EQ(got.size(), 16u);
  for (const Explanation& e : got) {
    EXPECT_EQ(e.storage_status.code(), StatusCode::kCancelled);
    EXPECT_EQ(e.device_restore_pages, 8u) << "what memory has it was told all the same";
    EXPECT_NE(e.storage_reason.find("detached"), std::string::npos) << e.storage_reason;
  }
  EXPECT_FALSE(h.cache->storage_idle()) << "it has not answered yet";
  EXPECT_EQ(h.cache->operations_in_flight(), 0u);
  explain();
  EXPECT_EQ(got.back().storage_reason, "no storage backend is attached");
  EXPECT_FALSE(got.back().has_storage_answer);
  h.backend->script = {};
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  got.clear();
  explain();
  h.settle();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(got[0].storage_status.is_ok());
  EXPECT_EQ(got[0].storage_restore_pages, 8u) << got[0].storage_reason;
  EXPECT_TRUE(got[0].has_storage_answer);
  EXPECT_EQ(h.backend->release(), 16u);
  h.settle();
  EXPECT_EQ(got.size(), 1u) << "each is told once";
  EXPECT_EQ(h.check_clean(), "");
}

// With the cache, too, and not twice.
TEST(CacheCorner, ExplanationsAreToldOfTheEndOnce) {
  std::vector<StatusCode> got;
  {
    Harness h(eager_options(Shape::kFull));
    const std::vector<TokenId> prompt = prompt_of(33);
    BeginRequest request;
    request.tokens = prompt;
    h.backend->script = [](Call, std::size_t) { return Fault::kHold; };
    for (const bool detaches : {true, false}) {
      h.cache->explain(request, [&](const Explanation& e) { got.push_back(e.storage_status.code()); });
      if (!detaches) break;
      h.cache->detach_storage();
      ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
    }
    EXPECT_EQ(got.size(), 1u);
    h.cache.reset();
    h.backend->script = {};
    EXPECT_EQ(h.backend->release(), 2u);
    (void)h.executor.run_all();
  }
  EXPECT_EQ(got, std::vector<StatusCode>(2, StatusCode::kCancelled));
}

// Whoever is told may call the cache, and end what waits: the answer that is being told is not told again.
TEST(CacheCorner, WhoIsToldMayDetachTheStorage) {
  std::vector<StatusCode> got;
  Harness h(eager_options(Shape::kFull));
  const std::vector<TokenId> prompt = prompt_of(33);
  BeginRequest request;
  request.tokens = prompt;
  for (int i = 0; i < 2; ++i) {
    h.cache->explain(request, [&](const Explanation& e) {
      got.push_back(e.storage_status.code());
      if (got.size() == 1) h.cache->detach_storage();
    });
  }
  h.settle();
  EXPECT_EQ(got, (std::vector{StatusCode::kOk, StatusCode::kCancelled}));
  EXPECT_EQ(h.check_clean(), "");
}

// ---- what a cache is made of

// Each operation may be a copy: one that its engine refused would be a copy that failed.
TEST(CacheCorner, ATransferEngineTakesWhatTheCacheMayHaveInFlight) {
  Harness h(eager_options(Shape::kFull));
  CacheParts parts;
  parts.model = &h.model;
  parts.device = h.device.get();
  parts.clock = &h.clock;
  CacheConfig config;
  config.max_operations = 16;
  for (const std::size_t places : {15u, 16u, 17u}) {
    for (HostPools* const host : {static_cast<HostPools*>(nullptr), h.host.get()}) {
      const auto device = make_cpu_device(h.executor);
      const auto engine = TransferEngine::create(*device, *h.device, host, places).value();
      EXPECT_EQ(engine->max_in_flight(), places);
      parts.host = host;
      parts.transfer = engine.get();
      parts.scope.layout = h.options.layout;
      const Status made = Cache::create(config, parts).status();
      EXPECT_EQ(made.code(), places < 16 ? StatusCode::kInvalidArgument : StatusCode::kOk) << made.to_string();
      if (made.is_ok()) continue;
      EXPECT_NE(made.message().find("max_operations is 16"), std::string::npos) << made.message();
      EXPECT_NE(made.message().find("max_in_flight is 15"), std::string::npos) << made.message();
    }
  }
}

// One that copies between other pools would serve nobody, and say so with each copy.
TEST(CacheCorner, ATransferEngineIsOfTheCachesPools) {
  Harness h(eager_options(Shape::kFull));
  const Harness other(eager_options(Shape::kFull));
  CacheParts parts;
  parts.model = &h.model;
  parts.device = h.device.get();
  parts.host = h.host.get();
  parts.clock = &h.clock;
  parts.scope.layout = h.options.layout;
  const auto made = [&](DevicePools& device, HostPools* host) {
    const auto cpu = make_cpu_device(h.executor);
    const auto engine = TransferEngine::create(*cpu, device, host, CacheConfig().max_operations).value();
    parts.transfer = engine.get();
    return Cache::create({}, parts).status();
  };
  EXPECT_TRUE(made(*h.device, h.host.get()));
  for (const Status& status :
       {made(*h.device, nullptr), made(*other.device, h.host.get()), made(*h.device, other.host.get())}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("other device pools or host pools"), std::string::npos) << status.message();
  }
  parts.host = nullptr;
  EXPECT_TRUE(made(*h.device, h.host.get())) << "it can do more than is asked";
  EXPECT_TRUE(made(*h.device, nullptr));
}

// ---- steps

// The engine computes less than was prepared: what it did not get to holds no state.
TEST(CacheCorner, StepThatEndsEarly) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    for (std::uint64_t leave = 1; leave < 12; ++leave) {
      Harness h(eager_options(shape));
      Harness::Job job = h.begin(prompt_of(41), 8);
      for (int i = 0; i < 100 && !job.started; ++i) {
        if (!h.advance(job, 16)) (void)h.run_background(10);
      }
      for (std::uint64_t left = leave; !h.done(job) && h.failure.empty(); left = left > 0 ? left - 1 : 0) {
        if (!h.advance(job, 16, {.leave = left})) (void)h.run_background(10);
      }
      h.finish(job);
      EXPECT_EQ(h.run(prompt_of(41), 8).cached(), 40u) << shape_name(shape) << " leave " << leave;
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

// A step ran, its outcome was thrown away, the request ends: the state it wrote is not that of the tokens before it.
TEST(CacheCorner, StepThatDoesNotComplete) {
  for (int steps = 1; steps < 24; ++steps) {
    for (const bool again : {false, true}) {
      Harness h(eager_options(Shape::kFullMamba));
      Harness::Job job = h.begin(prompt_of(41), 24);
      for (int i = 0; (i < steps || !job.started) && h.failure.empty();) {
        if (h.advance(job, 16)) {
          ++i;
        } else {
          (void)h.run_background(10);
        }
      }
      const std::vector<TokenId> tokens = job.tokens;
      (void)h.advance(job, 16, {.leave = 0, .completes = false});
      if (again) h.cancel_open(job);
      h.finish(job);
      h.cancel_open(job);
      std::vector<TokenId> next = tokens;
      next.resize(std::max<std::size_t>(next.size(), 42), 5);
      next.resize(next.size() + 8, 7);
      (void)h.run(next, 2);  // checks each restored byte
      h.settle();
      ASSERT_EQ(h.check_clean(), "") << steps << " steps";
    }
  }
}

// The request goes on: the step is computed again, shorter, from where it began.
TEST(CacheCorner, StepThatIsCancelledAndComputedAgain) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    for (int steps = 1; steps < 12; ++steps) {
      Harness h(eager_options(shape));
      (void)h.run(prompt_of(21), 2);
      h.settle();
      Harness::Job job = h.begin(prompt_of(41), 8);
      for (int i = 0; !h.done(job) && h.failure.empty();) {
        if (i == steps) {
          (void)h.advance(job, 6, {.leave = 0, .completes = false});
          h.cancel_open(job);
        }
        if (h.advance(job, 3)) {
          ++i;
        } else {
          (void)h.run_background(10);
        }
      }
      EXPECT_EQ(job.cached.cached(), 20u);
      h.finish(job);
      EXPECT_EQ(h.run(prompt_of(45), 2).cached(), 40u) << shape_name(shape) << " after " << steps << " steps";
      h.settle();
      ASSERT_EQ(h.check_clean(), "") << shape_name(shape) << " after " << steps << " steps";
    }
  }
}

// As few states as create() takes: a fork, the end of the prompt and the last boundary fall into one step.
TEST(CacheCorner, FewestStatesStillFinish) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    HarnessOptions o = eager_options(shape);
    o.device = {64, 64, 3};
    o.config.chunked_prefill_tokens = 64;
    o.config.checkpoint_grid = 16;
    Harness h(o);
    (void)h.run(prompt_of(24), 4, "", 64);
    (void)h.run(prompt_of(44), 4, "", 64);
    std::vector<TokenId> fork = prompt_of(48);
    for (std::size_t i = 32; i < fork.size(); ++i) fork[i] = 2;
    (void)h.run(fork, 8, "", 64);
    EXPECT_EQ(h.failure, "") << shape_name(shape);
    EXPECT_EQ(h.run(fork, 8, "", 64).cached(), 44u);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// As few window pages as create() takes, and a commit that met the load it stands on: the step after the load must hand
// over what is due, or it waits for ever for the pages that the request itself keeps.
TEST(CacheCorner, CommitThatMetALoadIsTriedAgain) {
  HarnessOptions o = eager_options(Shape::kFullSwa);
  o.config.chunked_prefill_tokens = 40;
  o.device = {64, 19, 0};
  o.host_slots = 400;
  o.storage = false;
  Harness h(o);
  (void)h.run(prompt_of(60), 4, "", 40);
  h.settle();
  (void)h.run(prompt_of(200, 9), 4, "", 40);
  h.settle();
  const CachedTokens got = h.run(prompt_of(180), 4, "", 40);
  EXPECT_GT(got.host, 0u);
  EXPECT_EQ(got.cached(), 60u);
  EXPECT_EQ(h.failure, "");
  EXPECT_EQ(h.check_settled(), "");
}

// ---- requests

// A client asks for so many tokens that their sum with the prompt begins again at 0.
TEST(CacheCorner, NewTokensThatOverflowAreRefused) {
  Harness h(eager_options(Shape::kFull));  // 64 device pages of 4 tokens
  const std::vector<TokenId> prompt = prompt_of(200);
  const auto begin = [&](std::uint64_t new_tokens) {
    BeginRequest request;
    request.tokens = prompt;
    request.max_new_tokens = new_tokens;
    const Result<RequestId> id = h.cache->begin(request);
    if (id.is_ok()) h.cache->abort(*id);
    return id.status().code();
  };
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t too_many : {most, most - 100, most - 199, most - 200, most / 2, std::uint64_t{58}}) {
    EXPECT_EQ(begin(too_many), StatusCode::kInvalidArgument) << too_many;
  }
  for (const std::uint64_t fits : {0u, 1u, 57u}) EXPECT_EQ(begin(fits), StatusCode::kOk) << fits;
  EXPECT_EQ(h.check_settled(), "");
}

// The layout is a part of the identity of every page: pools of another one would give pages that are named wrongly.
TEST(CacheCorner, HostPoolsThatTheScopeDoesNotNameAreRefused) {
  Harness h(eager_options(Shape::kFull));
  const ModelSpec other = small_model(Shape::kFullSidecar);
  const auto create = [&](const ModelSpec& model, HostLayout pools, HostLayout scope) {
    const auto host = std::move(HostPools::create(model, pools, 1 << 16, host_memory_source())).value();
    const auto cpu = make_cpu_device(h.executor);
    const auto engine = TransferEngine::create(*cpu, *h.device, host.get(), CacheConfig().max_operations);
    CacheParts parts{.model = &h.model, .device = h.device.get(), .host = host.get(), .transfer = h.transfer.get()};
    if (engine.is_ok()) parts.transfer = engine->get();  // none between pools of different models
    parts.clock = &h.clock;
    parts.scope.layout = scope;
    return Cache::create(CacheConfig{}, parts).status().code();
  };
  EXPECT_EQ(create(h.model, HostLayout::kLayerFirst, HostLayout::kPageFirst), StatusCode::kInvalidArgument);
  EXPECT_EQ(create(h.model, HostLayout::kLayerFirst, HostLayout::kLayerFirst), StatusCode::kOk);
  EXPECT_EQ(create(other, HostLayout::kPageFirst, HostLayout::kPageFirst), StatusCode::kInvalidArgument);
}

// ---- room

// What cannot fit evicts nothing.
TEST(CacheCorner, EdgeLargerThanTheHostEvictsNothingThere) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.storage = false;
  o.host_slots = 20;
  o.config.chunked_prefill_tokens = 400;
  Harness h(o);
  (void)h.run(prompt_of(40), 1, "", 400);
  h.settle();
  ASSERT_EQ(h.cache->counters().host_resident, 10u);
  (void)h.run(prompt_of(200, 9), 1, "", 400);
  h.settle();
  EXPECT_EQ(h.cache->counters().host_evicted, 0u);
  EXPECT_EQ(h.check_clean(), "");
}

TEST(CacheCorner, RequestThatCannotStartYetEvictsNothing) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.storage = false;
  Harness h(o);
  (void)h.run(prompt_of(80), 1);
  h.settle();
  Harness::Job running = h.begin(prompt_of(120, 9), 1);
  ASSERT_TRUE(h.advance(running, 16));
  ASSERT_TRUE(h.advance(running, 16));
  ASSERT_GT(h.cache->operations_in_flight(), 0u);  // its backup
  const std::uint64_t before = h.device->free_slots(ComponentKind::kFull);
  Harness::Job waiting = h.begin(prompt_of(200, 30), 1);
  EXPECT_FALSE(h.advance(waiting, 16));
  EXPECT_EQ(h.device->free_slots(ComponentKind::kFull), before);
  h.cache->abort(running.id);
  h.cache->abort(waiting.id);
  EXPECT_EQ(h.check_settled(), "");
}

}  // namespace
}  // namespace larder::test
