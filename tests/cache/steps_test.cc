// SPDX-License-Identifier: Apache-2.0
// An engine that runs ahead: several steps open, requests that end beneath them, drafts that are rejected.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/world/pattern.h"
#include "tests/cache/harness.h"

namespace larder::test {
namespace {

// A kernel that was launched: it writes where its step said, whatever happens to the request.
struct Launched {
  StepToken token;
  std::uint64_t from = 0, until = 0;
  PageTable pages;
  std::vector<CheckpointSlot> snapshots;
};

class Ahead : public ::testing::Test {
 protected:
  void make(Shape shape, ComponentCounts device = {64, 64, 16}, std::size_t host_slots = 128) {
    HarnessOptions o = eager_options(shape);
    o.device = device;
    o.host_slots = host_slots;
    o.storage = false;
    o.config.decode_headroom_tokens = 8;
    h_ = std::make_unique<Harness>(o);
  }
  Harness::Job started(std::vector<TokenId> prompt, std::uint64_t new_tokens) {
    Harness::Job job = h_->begin(std::move(prompt), new_tokens);
    for (int i = 0; i < 100 && !job.started; ++i) {
      if (!h_->advance(job, 16)) (void)h_->run_background(100);
    }
    EXPECT_TRUE(job.started) << h_->refusal;
    return job;
  }
  Launched launch(const Harness::Job& job, std::uint64_t from, std::uint64_t until) {
    const Result<StepGrant> grant = h_->cache->prepare_step(job.id, until);
    EXPECT_TRUE(grant.is_ok()) << grant.status().to_string();
    if (!grant.is_ok()) return {};
    if (grant->gate) (void)h_->executor.run_all();
    return {grant->token, from, grant->until, *grant->pages, grant->checkpoints};
  }
  // The kernel runs: right bytes as far as the tokens go, anything behind them.
  void run(const std::vector<TokenId>& tokens, const Launched& k) {
    const sim::Pattern pattern(h_->model, *h_->device);
    const std::uint64_t page = h_->model.page_size;
    for (std::uint64_t p = k.from / page; p * page < k.until; ++p) {
      pattern.write(ComponentKind::kFull, tokens, (p + 1) * page, "", k.pages.full[p]);
      if (h_->model.has(ComponentKind::kSwa))
        pattern.write(ComponentKind::kSwa, tokens, (p + 1) * page, "", k.pages.swa[p]);
    }
    if (!h_->model.has(ComponentKind::kMamba)) return;
    for (const CheckpointSlot& s : k.snapshots) pattern.write(ComponentKind::kMamba, tokens, s.position, "", s.slot);
    pattern.write(ComponentKind::kMamba, tokens, std::min<std::uint64_t>(k.until, tokens.size()), "", k.pages.state);
  }
  Status complete(const Launched& k, const std::vector<TokenId>& tokens, std::uint64_t computed) {
    return h_->cache->complete_step(k.token, std::span<const TokenId>(tokens).first(computed));
  }
  std::uint32_t free_pages() const { return h_->device->free_slots(ComponentKind::kFull); }

  std::unique_ptr<Harness> h_;
};

TEST_F(Ahead, StepsCompleteInTheirOrder) {
  make(Shape::kAll);
  const Harness::Job job = started(prompt_of(40), 20);
  const Launched a = launch(job, 0, 16), b = launch(job, 16, 32), c = launch(job, 32, 40);
  for (const Launched& k : {a, b, c}) run(job.tokens, k);
  EXPECT_EQ(complete(b, job.tokens, 32).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(complete(a, job.tokens, 16).is_ok());
  EXPECT_EQ(complete(a, job.tokens, 16).code(), StatusCode::kNotFound);
  EXPECT_EQ(complete(b, job.tokens, 33).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(complete(b, job.tokens, 16).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(complete(b, job.tokens, 32).is_ok());
  EXPECT_TRUE(complete(c, job.tokens, 40).is_ok());
  EXPECT_EQ(h_->cache->computed_tokens(job.id), 40u);
  h_->cache->finish(job.id);
  EXPECT_EQ(h_->run(prompt_of(44), 2).cached(), 40u);
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

TEST_F(Ahead, TokensThatNameNothing) {
  make(Shape::kFull);
  Harness::Job job = started(prompt_of(40), 20);
  const std::vector<TokenId> tokens = job.tokens;
  for (const StepToken token : {StepToken{}, StepToken{job.id, 0}, StepToken{job.id, 7}, StepToken{RequestId(99), 1}}) {
    EXPECT_EQ(h_->cache->cancel_step(token).code(), StatusCode::kNotFound);
    EXPECT_EQ(h_->cache->complete_step(token, tokens).code(), StatusCode::kNotFound);
  }
  const Launched a = launch(job, 0, 16);
  EXPECT_EQ(h_->cache->prepare_step(job.id, 16).status().code(), StatusCode::kInvalidArgument);
  h_->finish(job);
  EXPECT_TRUE(h_->cache->cancel_step(a.token).is_ok());
  EXPECT_EQ(h_->cache->cancel_step(a.token).code(), StatusCode::kNotFound);
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

TEST_F(Ahead, OpenStepsAreBounded) {
  make(Shape::kFull);
  Harness::Job job = started(prompt_of(40), 20);
  std::vector<Launched> open;
  for (std::uint64_t i = 0; i < h_->options.config.max_open_steps; ++i) open.push_back(launch(job, 4 * i, 4 * i + 4));
  EXPECT_EQ(h_->cache->prepare_step(job.id, 40).status().code(), StatusCode::kOverloaded);
  EXPECT_FALSE(h_->cache->is_starved(job.id));
  EXPECT_TRUE(complete(open[0], job.tokens, 4).is_ok());
  open.push_back(launch(job, 32, 36));
  h_->finish(job);
  EXPECT_FALSE(h_->cache->idle());
  for (std::size_t i = open.size(); i-- > 1;) EXPECT_TRUE(h_->cache->cancel_step(open[i].token).is_ok());
  h_->settle();
  EXPECT_TRUE(h_->cache->idle());
  EXPECT_EQ(h_->check_clean(), "");
}

// Requests that are over count as begun while their steps are open: what they hold is bounded.
TEST_F(Ahead, EndedRequestsWithOpenStepsAreBounded) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.config.max_requests = 2;
  o.storage = false;
  h_ = std::make_unique<Harness>(o);
  std::vector<Launched> open;
  for (TokenId first = 1; first < 3; ++first) {
    Harness::Job job = started(prompt_of(8, first), 2);
    open.push_back(launch(job, 0, 8));
    h_->finish(job);
  }
  const std::vector<TokenId> prompt = prompt_of(8);
  EXPECT_EQ(h_->cache->begin({.tokens = prompt}).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(complete(open[0], prompt_of(8, 1), 8).code(), StatusCode::kConflict) << "it counts for nothing, and ends";
  const Result<RequestId> id = h_->cache->begin({.tokens = prompt});
  EXPECT_TRUE(id.is_ok());
  h_->cache->abort(*id);
  EXPECT_TRUE(h_->cache->cancel_step(open[1].token).is_ok());
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

// However a request lets go, what a launched kernel writes is nobody else's.
TEST_F(Ahead, NobodyGetsWhatAnOpenStepMayWrite) {
  using End = std::function<void(Cache&, RequestId)>;
  const std::vector<std::pair<std::string, End>> ends = {
      {"finish", [](Cache& c, RequestId id) { c.finish(id); }},
      {"abort", [](Cache& c, RequestId id) { c.abort(id); }},
      {"retract", [](Cache& c, RequestId id) { ASSERT_TRUE(c.retract(id).is_ok()); }},
      {"restart", [](Cache& c, RequestId id) { ASSERT_TRUE(c.restart(id).is_ok()); }},
  };
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar}) {
    for (const auto& [name, end] : ends) {
      SCOPED_TRACE(shape_name(shape) + " " + name);
      make(shape, {24, 40, 9});
      Harness::Job job = started(prompt_of(40), 20);
      const Launched a = launch(job, 0, 16), b = launch(job, 16, 32), c = launch(job, 32, 40);
      run(job.tokens, a);
      ASSERT_TRUE(complete(a, job.tokens, 16).is_ok());
      const std::uint32_t before = free_pages();
      end(*h_->cache, job.id);
      EXPECT_EQ(free_pages(), before) << "nothing is free yet";
      EXPECT_EQ(h_->cache->check_invariants().to_string(), "ok");
      EXPECT_EQ(h_->cache->complete_step(b.token, job.tokens).code(), StatusCode::kConflict);
      for (TokenId other = 1; other < 5; ++other) {  // takes and gives back every slot that can be had
        Harness::Job o = started(prompt_of(20, other), 2);
        while (!h_->done(o) && h_->failure.empty()) {
          if (!h_->advance(o, 4)) (void)h_->run_background(100);
          run(prompt_of(64, 50), c);  // late, and with anything
        }
        h_->finish(o);
      }
      EXPECT_TRUE(h_->cache->cancel_step(c.token).is_ok());
      EXPECT_GT(free_pages() + h_->cache->tree().counts(ComponentKind::kFull, Tier::kDevice).evictable(), before);
      if (name == "retract" || name == "restart") h_->cache->abort(job.id);
      for (TokenId other = 1; other < 5; ++other) (void)h_->run(prompt_of(24, other), 2);  // compares every byte
      h_->settle();
      ASSERT_EQ(h_->check_clean(), "");
    }
  }
}

// Two requests compute the same prompt side by side. The tree keeps the pages of the first; those of the second are
// read by the step that it has launched already.
TEST_F(Ahead, DuplicatesStayWhileAStepReadsThem) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    make(shape);
    Harness::Job first = started(prompt_of(40), 20), second = started(prompt_of(40), 20);
    const Launched a = launch(first, 0, 32);
    const Launched b = launch(second, 0, 32), c = launch(second, 32, 40);
    run(first.tokens, a);
    run(second.tokens, b);
    ASSERT_TRUE(complete(a, first.tokens, 32).is_ok());
    const std::uint32_t before = free_pages();
    ASSERT_TRUE(complete(b, second.tokens, 32).is_ok());
    EXPECT_EQ(free_pages(), before);
    EXPECT_EQ(h_->cache->check_invariants().to_string(), "ok");
    run(second.tokens, c);
    ASSERT_TRUE(complete(c, second.tokens, 40).is_ok());
    EXPECT_EQ(free_pages(), before + 8);
    for (const Harness::Job& job : {first, second}) h_->cache->finish(job.id);
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
  }
}

// How the void one ends does no harm to those that came after it.
TEST_F(Ahead, ACancelledStepVoidsThoseBuiltOnIt) {
  for (const bool is_cancelled : {false, true}) {
    make(Shape::kFullMamba);
    Harness::Job job = started(prompt_of(40), 20);
    const Launched a = launch(job, 0, 16), b = launch(job, 16, 32), c = launch(job, 32, 40);
    run(job.tokens, a);
    ASSERT_TRUE(complete(a, job.tokens, 16).is_ok());
    EXPECT_TRUE(h_->cache->cancel_step(b.token).is_ok());
    const Launched again = launch(job, 16, 30);  // while c still runs
    if (is_cancelled) {
      EXPECT_TRUE(h_->cache->cancel_step(c.token).is_ok());
    } else {
      EXPECT_EQ(complete(c, job.tokens, 40).code(), StatusCode::kConflict);
    }
    EXPECT_EQ(h_->cache->cancel_step(c.token).code(), StatusCode::kNotFound) << "it has ended";
    run(job.tokens, again);
    ASSERT_TRUE(complete(again, job.tokens, 30).is_ok());
    const Launched last = launch(job, 30, 40);
    run(job.tokens, last);
    ASSERT_TRUE(complete(last, job.tokens, 40).is_ok());
    h_->finish(job);
    EXPECT_EQ(h_->run(prompt_of(44), 2).cached(), 40u);
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
  }
}

// A step that was built on drafts has computed from tokens that are not the request's.
TEST_F(Ahead, RejectedDraftsVoidTheStepsAfterThem) {
  make(Shape::kFull);
  Harness::Job job = started(prompt_of(40), 20);
  const Launched drafts = launch(job, 0, 10), next = launch(job, 10, 14);
  run(job.tokens, drafts);
  ASSERT_TRUE(complete(drafts, job.tokens, 8).is_ok());
  EXPECT_EQ(complete(next, job.tokens, 14).code(), StatusCode::kConflict);
  EXPECT_EQ(h_->cache->computed_tokens(job.id), 8u);
  const Launched again = launch(job, 8, 20);
  run(job.tokens, again);
  ASSERT_TRUE(complete(again, job.tokens, 20).is_ok());
  h_->finish(job);
  EXPECT_EQ(h_->run(prompt_of(24), 2).cached(), 20u);
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

TEST_F(Ahead, WhatQueuesCannotRestart) {
  make(Shape::kFull);
  Harness::Job job = started(prompt_of(40), 20);
  const Launched a = launch(job, 0, 16);
  run(job.tokens, a);
  ASSERT_TRUE(complete(a, job.tokens, 16).is_ok());
  ASSERT_TRUE(h_->cache->retract(job.id).is_ok());
  EXPECT_EQ(h_->cache->restart(job.id).code(), StatusCode::kInvalidArgument);
  h_->cache->abort(job.id);
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

// Drafts reach beyond a page boundary and are rejected before it: the checkpoint at the one before is still there.
TEST_F(Ahead, RejectedDraftsKeepTheLastCheckpoint) {
  for (const std::uint64_t accepted : {34u, 35u, 36u, 37u}) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(std::to_string(accepted) + (ahead ? " ahead" : ""));
      make(Shape::kFullMamba);
      Harness::Job job = started(prompt_of(30), 20);
      while (job.computed < 33 && h_->failure.empty()) {
        if (!h_->advance(job, 16)) (void)h_->run_background(100);
      }
      std::vector<TokenId> tokens = job.tokens;
      while (tokens.size() < 60) tokens.push_back(sim::next_token(tokens, h_->model.vocab_size));
      const Launched drafts = launch(job, 33, 38);
      const std::optional<Launched> next = ahead ? std::optional(launch(job, 38, 43)) : std::nullopt;
      EXPECT_EQ(drafts.until, 38u);
      run(tokens, drafts);
      ASSERT_TRUE(complete(drafts, tokens, accepted).is_ok());
      EXPECT_EQ(h_->cache->computed_tokens(job.id), accepted);
      h_->finish(job);
      if (next) {
        EXPECT_TRUE(h_->cache->cancel_step(next->token).is_ok());
      }
      tokens.resize(50);
      EXPECT_EQ(h_->run(tokens, 2).cached(), accepted / 4 * 4);
      h_->settle();
      EXPECT_EQ(h_->check_clean(), "");
    }
  }
}

TEST_F(Ahead, TheLastGrantEndsWithTheRequest) {
  make(Shape::kFull);
  Harness::Job job = started(prompt_of(40), 4);  // 43 tokens, 11 pages
  const Launched a = launch(job, 0, 40), b = launch(job, 40, 100);
  EXPECT_EQ(b.until, 44u);
  EXPECT_EQ(h_->cache->prepare_step(job.id, 45).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(h_->cache->cancel_step(b.token).is_ok());
  EXPECT_TRUE(h_->cache->cancel_step(a.token).is_ok());
  h_->finish(job);
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

// Drafts take what the device has, and do not starve the request.
TEST_F(Ahead, AGrantIsPartWhereTheDeviceIsFull) {
  make(Shape::kFull, {13, 0, 0});
  Harness::Job job = started(prompt_of(30), 20), other = started(prompt_of(2, 9), 10);
  (void)launch(other, 0, 2);
  const Launched a = launch(job, 0, 30);
  EXPECT_EQ(free_pages(), 0u);
  const Launched b = launch(job, 30, 48);
  EXPECT_EQ(b.until, 40u);
  EXPECT_FALSE(h_->cache->is_starved(job.id));
  h_->finish(job);
  h_->finish(other);
  EXPECT_TRUE(h_->cache->cancel_step(a.token).is_ok());
  EXPECT_TRUE(h_->cache->cancel_step(b.token).is_ok());
  EXPECT_TRUE(h_->cache->cancel_step({other.id, 1}).is_ok());
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

// Beside a full device it has the window pages that it was promised, for a window and a chunk.
TEST_F(Ahead, AStepThatIsLongerThanAChunkIsGrantedInParts) {
  make(Shape::kFullSwa, {64, 13, 0});
  const Harness::Job job = started(prompt_of(100), 2);
  const Launched a = launch(job, 0, 100);
  EXPECT_EQ(a.until, 16u);
  h_->cache->abort(job.id);
  EXPECT_TRUE(h_->cache->cancel_step(a.token).is_ok());
  EXPECT_EQ(h_->run(prompt_of(100), 2, "", 100).cached(), 0u);
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

// ---- steps that are ended before their kernels

// A chunk is told of as soon as it is launched: the copies of its pages hold what it writes, not what was there.
TEST_F(Ahead, WhatIsCopiedIsWhatTheStepHasWritten) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar}) {
    SCOPED_TRACE(shape_name(shape));
    make(shape, {24, 40, 9}, 1024);
    const Harness::Job job = started(prompt_of(40), 2);
    const Launched a = launch(job, 0, 40);
    const auto over = std::make_shared<DeviceEvent>();
    ASSERT_TRUE(h_->cache->complete_step(a.token, job.tokens, over).is_ok());
    h_->cache->finish(job.id);
    (void)h_->run_background(1000);
    run(job.tokens, a);
    over->fire();
    h_->settle();
    for (TokenId other = 1; other < 5; ++other) (void)h_->run(prompt_of(40, other), 2);
    EXPECT_EQ(h_->run(prompt_of(44), 2).host, 40u);  // compares every byte
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
  }
}

// The slots of a step that was cancelled are free, and a load is to have them: it comes after the last of its kernels.
TEST_F(Ahead, WhatIsLoadedIsNotWrittenByAStepThatHasEnded) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    SCOPED_TRACE(shape_name(shape));
    make(shape, {24, 40, 9}, 1024);
    (void)h_->run(prompt_of(40), 2);
    for (TokenId other = 1; other < 5; ++other) (void)h_->run(prompt_of(40, other), 2);
    h_->settle();
    Harness::Job leaving = started(prompt_of(40, 9), 2);
    const Launched a = launch(leaving, 0, 40);
    const auto over = std::make_shared<DeviceEvent>();
    ASSERT_TRUE(h_->cache->cancel_step(a.token, over).is_ok());
    h_->cache->abort(leaving.id);
    Harness::Job job = started(prompt_of(44), 2);
    EXPECT_EQ(job.cached.host, 40u);
    (void)h_->run_background(1000);
    run(prompt_of(64, 50), a);
    over->fire();
    (void)h_->run_background(1000);
    while (!h_->done(job) && h_->failure.empty()) {
      if (!h_->advance(job, 4)) (void)h_->run_background(100);
    }
    h_->finish(job);
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
  }
}

// An engine that waits for loads on its streams alone ends a step before what it reads is there.
class AheadOfLoads : public Ahead {
 protected:
  struct Ended {
    Harness::Job job;
    Launched step;
    std::shared_ptr<LayerGate> gate;
    std::shared_ptr<DeviceEvent> over;
  };
  // prompt_of(40) was computed, and so many others have taken its place on the device.
  void push_out(TokenId others) {
    (void)h_->run(prompt_of(40), 2);
    for (TokenId other = 1; other <= others; ++other) (void)h_->run(prompt_of(40, other), 2);
    h_->settle();
  }
  void hold_loads() {
    h_->device_api->script = [](CopyDirection d, std::size_t) {
      return d == CopyDirection::kHostToDevice ? Fault::kHold : Fault::kNone;
    };
  }
  // One that goes on from it has ended its only step, which reads what is being loaded.
  Ended end_a_step() {
    const Harness::Job job = started(prompt_of(48), 2);
    const Result<StepGrant> grant = h_->cache->prepare_step(job.id, 48);
    EXPECT_TRUE(grant.is_ok()) << grant.status().to_string();
    if (!grant.is_ok()) return {};
    EXPECT_NE(grant->gate, nullptr);
    const auto over = std::make_shared<DeviceEvent>();
    EXPECT_EQ(h_->cache->complete_step(grant->token, job.tokens, over).to_string(), "ok");
    return {
        job, {grant->token, job.cached.cached(), grant->until, *grant->pages, grant->checkpoints}, grant->gate, over};
  }
  // What was held comes, or fails; then the kernels run, and the request ends. Another finds what came right.
  void let_loads_end(const Ended& ended, bool comes) {
    h_->device_api->script = nullptr;
    ASSERT_TRUE(h_->device_api->release(!comes).is_ok());
    (void)h_->run_background(1000);
    ASSERT_TRUE(ended.gate->finished());
    EXPECT_EQ(ended.gate->ready(h_->model.layer_count() - 1), comes);
    run(ended.job.tokens, ended.step);
    ended.over->fire();
    h_->cache->finish(ended.job.id);
    h_->settle();
    EXPECT_EQ(h_->run(prompt_of(52), 2).cached() >= 48, comes);
    expect_clean();
  }
  void expect_clean() {
    EXPECT_EQ(h_->failure, "");
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
  }
};

// Nobody else has what the step computes until what it reads has come, and nobody ever has if that does not come.
TEST_F(AheadOfLoads, WhatAStepReadsMayComeAfterItWasEnded) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar}) {
    for (const bool comes : {true, false}) {
      SCOPED_TRACE(std::string(shape_name(shape)) + (comes ? " comes" : " fails"));
      make(shape, {24, 40, 9}, 1024);
      push_out(4);
      hold_loads();
      const Ended ended = end_a_step();
      ASSERT_GT(ended.job.cached.host, 0u);
      const std::size_t backups = h_->device_api->transfers[static_cast<std::size_t>(CopyDirection::kDeviceToHost)];
      (void)h_->run_background(1000);
      EXPECT_FALSE(ended.gate->finished());
      EXPECT_EQ(h_->device_api->transfers[static_cast<std::size_t>(CopyDirection::kDeviceToHost)], backups);
      let_loads_end(ended, comes);
    }
  }
}

// All pages are on the device, and the state alone is loaded: of its copy the tree knows nothing.
TEST_F(AheadOfLoads, WhatComesAfterAStepMayBeAStateAlone) {
  for (const bool comes : {true, false}) {
    SCOPED_TRACE(comes ? "comes" : "fails");
    make(Shape::kFullMamba, {160, 0, 7}, 1024);
    push_out(9);
    hold_loads();
    const Ended ended = end_a_step();
    ASSERT_EQ(ended.job.cached.host, 40u) << "without its state the device alone gives nothing";
    (void)h_->run_background(1000);
    ASSERT_FALSE(ended.gate->finished());
    const Harness::Job other = started(prompt_of(52), 2);
    EXPECT_LE(other.cached.cached(), 40u) << "what may yet turn out wrong was shared";
    h_->cache->abort(other.id);
    let_loads_end(ended, comes);
  }
}

// The request is over before what it resumed from has come: nothing of it is kept, and nothing hangs.
TEST_F(AheadOfLoads, ARequestMayEndBeforeWhatItsStepReadsHasCome) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    SCOPED_TRACE(shape_name(shape));
    make(shape, {24, 40, 9}, 1024);
    push_out(4);
    const Ended ended = end_a_step();
    h_->cache->finish(ended.job.id);
    ended.over->fire();
    h_->settle();
    EXPECT_LE(h_->run(prompt_of(52), 2).cached(), 40u);
    expect_clean();
  }
}

// An engine that ends without its events: the copies end uncopied, and nothing hangs.
TEST_F(Ahead, AnEngineThatDiesLeavesNothingBehind) {
  make(Shape::kAll);
  const Harness::Job job = started(prompt_of(40), 2);
  const Launched a = launch(job, 0, 40);
  ASSERT_TRUE(h_->cache->complete_step(a.token, job.tokens, std::make_shared<DeviceEvent>()).is_ok());
  h_->cache->finish(job.id);
  (void)h_->run_background(1000);
  EXPECT_GT(h_->cache->operations_in_flight(), 0u);
  h_->device_api->synchronize();
  h_->settle();
  EXPECT_EQ(h_->check_clean(), "");
}

}  // namespace
}  // namespace larder::test
