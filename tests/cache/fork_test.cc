// SPDX-License-Identifier: Apache-2.0
// Requests that are forked: several answers to one prompt, and beams.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

constexpr Shape kForkShapes[] = {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar};

class Forks : public ::testing::Test {
 protected:
  void make(Shape shape, ComponentCounts device = {64, 64, 16}, std::function<void(HarnessOptions&)> change = {}) {
    HarnessOptions o = eager_options(shape);
    o.device = device;
    o.storage = false;
    o.config.decode_headroom_tokens = 8;
    if (change) change(o);
    h_ = std::make_unique<Harness>(o);
  }
  // Runs the job until it has computed so much.
  void advance_to(Harness::Job& job, std::uint64_t tokens) {
    for (int i = 0; i < 1000 && job.computed < tokens && h_->failure.empty(); ++i) {
      if (!h_->advance(job,
                       std::min<std::uint64_t>(16, tokens - std::min(tokens, job.computed)) + (job.started ? 0 : 1)))
        (void)h_->run_background(100);
    }
    EXPECT_EQ(job.computed, tokens) << h_->refusal << h_->failure;
  }
  Harness::Job started(std::vector<TokenId> prompt, std::uint64_t new_tokens, std::uint64_t tokens) {
    Harness::Job job = h_->begin(std::move(prompt), new_tokens);
    advance_to(job, tokens);
    return job;
  }
  // The engine's side of a fork: it knows the same tokens, and samples another one next.
  Harness::Job forked(const Harness::Job& job, RequestId id) {
    Harness::Job fork = job;
    fork.id = id;
    fork.resumed = fork.computed;  // every byte is compared at its first step
    fork.table = fork.late_table = {};
    if (fork.tokens.size() > fork.prompt.size()) fork.tokens.back() = (fork.tokens.back() + 1 + id.v) % 64;
    return fork;
  }
  Harness::Job fork(const Harness::Job& job) {
    const Result<RequestId> id = h_->cache->fork(job.id);
    EXPECT_TRUE(id.is_ok()) << id.status().to_string();
    return forked(job, id.is_ok() ? *id : RequestId{});
  }
  // In turns, so that each writes while the others run.
  void run_all(std::vector<Harness::Job*> jobs) {
    for (int i = 0; i < 3000 && !jobs.empty() && h_->failure.empty(); ++i) {
      bool has_moved = false;
      for (Harness::Job* const job : jobs) has_moved = (!h_->done(*job) && h_->advance(*job, 3)) || has_moved;
      std::erase_if(jobs, [&](Harness::Job* job) {
        if (!h_->done(*job)) return false;
        h_->finish(*job);
        return true;
      });
      if (!has_moved) (void)h_->run_background(1);
    }
    EXPECT_TRUE(jobs.empty()) << h_->refusal << h_->failure;
  }
  [[nodiscard]] std::string bytes(ComponentKind c, DeviceSlot slot) const {
    std::string out;
    for (const PoolSpec* pool : h_->model.pools_of(c)) {
      for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
        for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
          out.append(reinterpret_cast<const char*>(h_->device->page(pool->name, layer, plane, slot)),
                     pool->planes[plane].layer_bytes());
        }
      }
    }
    return out;
  }
  [[nodiscard]] std::vector<SlotTable::Counts> slots() const {
    std::vector<SlotTable::Counts> counts;
    for (const ComponentKind c : kAllComponents) counts.push_back(h_->device->slots(c).counts());
    return counts;
  }
  void expect_clean() {
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
    EXPECT_TRUE(h_->cache->idle());
  }

  std::unique_ptr<Harness> h_;
};

// In the prompt, at its end, on a page boundary, behind it.
TEST_F(Forks, GoTheirOwnWay) {
  for (const Shape shape : kForkShapes) {
    for (const std::uint64_t at : {5u, 16u, 29u, 30u, 32u, 35u}) {
      SCOPED_TRACE(shape_name(shape) + " at " + std::to_string(at));
      make(shape);
      Harness::Job job = started(prompt_of(30), 20, at);
      Harness::Job first = fork(job);
      while (h_->cache->phase(first.id) == RequestPhase::kLoading && h_->run_background(1)) {}
      Harness::Job second = fork(job);
      EXPECT_EQ(h_->cache->computed_tokens(second.id), at);
      EXPECT_EQ(h_->cache->check_invariants().to_string(), "ok");
      run_all({&job, &first, &second});
      h_->settle();
      if (at >= 30) {
        for (const Harness::Job* j : {&job, &first, &second}) {
          std::vector<TokenId> prompt = j->tokens;
          prompt.resize(49);
          EXPECT_EQ(h_->run(prompt, 2).cached(), 48u) << "each has cached its own way";
        }
      }
      expect_clean();
    }
  }
}

// A fork of a fork, one level for each token.
TEST_F(Forks, OfForks) {
  make(Shape::kAll, {128, 128, 40});
  Harness::Job root = started(prompt_of(18), 14, 20);
  std::vector<Harness::Job> jobs = {root};
  for (int level = 0; level < 5; ++level) {
    jobs.push_back(fork(jobs.back()));
    Harness::Job& last = jobs.back();
    for (int i = 0; i < 100 && h_->cache->phase(last.id) == RequestPhase::kLoading; ++i) (void)h_->run_background(10);
    advance_to(last, last.computed + 1);
  }
  std::vector<Harness::Job*> all;
  for (Harness::Job& job : jobs) all.push_back(&job);
  run_all(all);
  expect_clean();
}

// Only what the tree does not share is copied: the page that is not full, and the state.
TEST_F(Forks, ShareWholePages) {
  for (const Shape shape : kForkShapes) {
    SCOPED_TRACE(shape_name(shape));
    make(shape);
    Harness::Job job = started(prompt_of(30), 20, 30);
    const auto before = slots();
    const std::uint32_t resident = h_->cache->tree().counts(ComponentKind::kFull, Tier::kDevice).resident;
    Harness::Job other = fork(job);
    EXPECT_EQ(h_->cache->tree().counts(ComponentKind::kFull, Tier::kDevice).resident, resident);
    // 7 whole pages; the rest of a table of 38 tokens.
    EXPECT_EQ(slots()[0].live, before[0].live + 3);
    EXPECT_EQ(slots()[2].live, before[2].live + (h_->model.has(ComponentKind::kMamba) ? 1 : 0));
    EXPECT_EQ(h_->cache->phase(other.id), RequestPhase::kLoading);
    EXPECT_EQ(h_->cache->prepare_step(other.id, 31).status().code(), StatusCode::kOverloaded);
    EXPECT_EQ(h_->cache->prepare_step(job.id, 31).status().code(), StatusCode::kOverloaded) << "it is being read";
    (void)h_->run_background(1000);
    const Result<StepGrant> mine = h_->cache->prepare_step(job.id, 31), its = h_->cache->prepare_step(other.id, 31);
    ASSERT_TRUE(mine.is_ok() && its.is_ok());
    for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(its->pages->full[i], mine->pages->full[i]);
    EXPECT_NE(its->pages->full[7], mine->pages->full[7]);
    EXPECT_EQ(bytes(ComponentKind::kFull, its->pages->full[7]), bytes(ComponentKind::kFull, mine->pages->full[7]));
    if (h_->model.has(ComponentKind::kSwa)) {
      EXPECT_NE(its->pages->swa[7], mine->pages->swa[7]);
      EXPECT_EQ(bytes(ComponentKind::kSwa, its->pages->swa[7]), bytes(ComponentKind::kSwa, mine->pages->swa[7]));
    }
    if (h_->model.has(ComponentKind::kMamba)) {
      EXPECT_NE(its->pages->state, mine->pages->state);
      EXPECT_EQ(bytes(ComponentKind::kMamba, its->pages->state), bytes(ComponentKind::kMamba, mine->pages->state));
    }
    EXPECT_TRUE(h_->cache->cancel_step(mine->token).is_ok() && h_->cache->cancel_step(its->token).is_ok());
    run_all({&job, &other});
    expect_clean();
  }
}

TEST_F(Forks, OnlyWhatRunsCanBeForked) {
  make(Shape::kAll);
  const auto code = [&](RequestId id) { return h_->cache->fork(id).status().code(); };
  EXPECT_EQ(code(RequestId(77)), StatusCode::kNotFound);
  Harness::Job job = h_->begin(prompt_of(30), 20);
  EXPECT_EQ(code(job.id), StatusCode::kInvalidArgument);
  advance_to(job, 30);
  const Result<StepGrant> open = h_->cache->prepare_step(job.id, 31);
  ASSERT_TRUE(open.is_ok());
  EXPECT_EQ(code(job.id), StatusCode::kInvalidArgument);
  EXPECT_TRUE(h_->cache->cancel_step(open->token).is_ok());
  Harness::Job other = fork(job);
  EXPECT_EQ(code(other.id), StatusCode::kOverloaded) << "it is still being copied";
  run_all({&job, &other});
  expect_clean();
}

// What a void step writes in place is copied only once the step is over.
TEST_F(Forks, OfAStateThatAVoidStepMayWriteWait) {
  for (const Shape shape : {Shape::kFull, Shape::kFullMamba}) {
    make(shape, {64, 64, 16}, [](HarnessOptions& o) { o.config.max_open_steps = 2; });
    Harness::Job job = started(prompt_of(30), 20, 30);
    const std::uint64_t at = h_->cache->computed_tokens(job.id);
    const Result<StepGrant> first = h_->cache->prepare_step(job.id, at + 1);
    const Result<StepGrant> second = h_->cache->prepare_step(job.id, at + 2);
    ASSERT_TRUE(first.is_ok() && second.is_ok());
    EXPECT_EQ(h_->cache->fork(job.id).status().code(), StatusCode::kInvalidArgument);
    ASSERT_TRUE(h_->cache->cancel_step(first->token).is_ok());
    const Result<RequestId> early = h_->cache->fork(job.id);
    EXPECT_EQ(early.status().code(), shape == Shape::kFull ? StatusCode::kOk : StatusCode::kOverloaded);
    ASSERT_TRUE(h_->cache->cancel_step(second->token).is_ok());
    const Result<RequestId> late = shape == Shape::kFull ? early : h_->cache->fork(job.id);
    ASSERT_TRUE(late.is_ok()) << late.status().to_string();
    h_->cache->abort(*late);
    h_->cache->abort(job.id);
    expect_clean();
  }
}

// Refused for want of anything: nothing is held.
TEST_F(Forks, ThatAreRefusedHoldNothing) {
  const auto expect_refused = [&](const Harness::Job& job) {
    const auto before = slots();
    const Status status = h_->cache->fork(job.id).status();
    EXPECT_EQ(status.code(), StatusCode::kOverloaded) << status.to_string();
    EXPECT_EQ(slots(), before);
    EXPECT_EQ(h_->cache->check_invariants().to_string(), "ok");
  };
  struct Case {
    const char* name;
    Shape shape;
    ComponentCounts device;
    std::function<void(HarnessOptions&)> change;
  };
  const std::vector<Case> cases = {
      {"requests", Shape::kAll, {64, 64, 16}, [](HarnessOptions& o) { o.config.max_requests = 1; }},
      {"pages", Shape::kFull, {11, 0, 0}, {}},
      {"windows", Shape::kFullSwa, {64, 19, 0}, {}},
      {"states", Shape::kFullMamba, {64, 0, 5}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    make(c.shape, c.device, c.change);
    Harness::Job job = started(prompt_of(30), 10, 30);
    h_->settle();
    expect_refused(job);
    run_all({&job});
    expect_clean();
  }
}

// What it hands over first is copied to the host, which may take the last place that the fork's own copy was to have.
TEST_F(Forks, ThatFindNoPlaceAfterAllAreRefused) {
  for (const Shape shape : kForkShapes) {
    SCOPED_TRACE(shape_name(shape));
    make(shape, {64, 64, 24}, [](HarnessOptions& o) { o.config.max_operations = 4; });
    Harness::Job job = started(prompt_of(30), 20, 38);
    h_->settle();
    std::vector<Harness::Job> others;
    for (TokenId i = 1; i <= 3; ++i) others.push_back(h_->begin(prompt_of(8, 11 * i), 1));
    for (Harness::Job& other : others) {  // each has its copy to the host under way
      for (int i = 0; i < 10 && !h_->done(other); ++i) (void)h_->advance(other, 8);
      h_->finish(other);
    }
    ASSERT_EQ(h_->cache->operations_in_flight(), 3u);
    const Status status = h_->cache->fork(job.id).status();
    EXPECT_EQ(status.code(), StatusCode::kOverloaded) << status.to_string();
    EXPECT_EQ(h_->cache->operations_in_flight(), 4u) << "as many as there may be";
    EXPECT_EQ(h_->cache->check_invariants().to_string(), "ok");
    h_->settle();
    Harness::Job later = fork(job);
    run_all({&job, &later});
    EXPECT_EQ(later.restarts, 0);
    expect_clean();
  }
}

// Either may go while the copies are under way; what they touch stays until they have ended.
TEST_F(Forks, EitherMayGoWhileItIsCopied) {
  for (const Shape shape : kForkShapes) {
    for (const int who : {0, 1, 2, 3}) {  // the first, the fork, both; the first is set aside
      SCOPED_TRACE(shape_name(shape) + " " + std::to_string(who));
      make(shape, {48, 64, 16});
      Harness::Job job = started(prompt_of(30), 10, 33);
      Harness::Job other = fork(job);
      if (who == 0 || who == 2) h_->cache->abort(job.id);
      if (who == 1 || who == 2) h_->cache->abort(other.id);
      if (who == 3) h_->retract(job);
      EXPECT_EQ(h_->cache->check_invariants().to_string(), "ok");
      Harness::Job next = started(prompt_of(40, 5), 4, 40);  // takes what is free, and writes there
      std::vector<Harness::Job*> rest = {&next};
      if (who == 1 || who == 3) rest.push_back(&job);
      if (who == 0 || who == 3) rest.push_back(&other);
      run_all(rest);
      expect_clean();
    }
  }
}

// The copy failed: its engine learns of it where it learns of a failed load-back, and the other runs on.
TEST_F(Forks, WhoseCopyFailedStartAgain) {
  for (const Shape shape : kForkShapes) {
    for (const Fault fault : {Fault::kFail, Fault::kRefuse}) {
      SCOPED_TRACE(shape_name(shape));
      make(shape);
      Harness::Job job = started(prompt_of(30), 10, 33);
      h_->device_api->script = [&](CopyDirection direction, std::size_t) {
        return direction == CopyDirection::kDeviceToDevice ? fault : Fault::kNone;
      };
      Harness::Job other = fork(job);
      h_->settle();
      h_->device_api->script = {};
      other.retracts = 1;  // it keeps its tokens when it starts again
      run_all({&job, &other});
      EXPECT_EQ(other.restarts, 1);
      expect_clean();
    }
  }
}

TEST_F(Forks, WithoutATransferEngineNeedNoCopy) {
  make(Shape::kFull, {64, 0, 0}, [](HarnessOptions& o) { o.host_slots = 0; });
  Harness::Job job = started(prompt_of(30), 10, 30);
  const auto before = slots();
  EXPECT_EQ(h_->cache->fork(job.id).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(slots(), before);
  advance_to(job, 32);
  Harness::Job other = fork(job);
  EXPECT_EQ(h_->cache->phase(other.id), RequestPhase::kRunning);
  run_all({&job, &other});
  expect_clean();
}

// With the cache off there is no tree to share in: all pages are copied.
TEST_F(Forks, WithTheCacheOffCopyEverything) {
  for (const Shape shape : kForkShapes) {
    SCOPED_TRACE(shape_name(shape));
    make(shape, {64, 64, 16}, [](HarnessOptions& o) { o.config.enabled = false; });
    Harness::Job job = started(prompt_of(30), 10, 33);
    Harness::Job other = fork(job);
    run_all({&job, &other});
    h_->settle();
    EXPECT_EQ(h_->check_clean(), "");
  }
}

}  // namespace
}  // namespace larder::test
