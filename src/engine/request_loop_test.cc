// SPDX-License-Identifier: Apache-2.0
// The loop turn by turn, against a cache and an engine that follow a script or a seed.
#include "engine/request_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "base/rng.h"

namespace larder {
namespace {

constexpr std::uint32_t kVocab = 400;

// The token that the fake model says after `tokens`: any other prefix gives another one, most likely.
TokenId next_token(std::span<const TokenId> tokens) {
  std::uint64_t hash = 1469598103934665603ull;
  for (const TokenId token : tokens) hash = (hash ^ token) * 1099511628211ull;
  return static_cast<TokenId>((hash >> 20) % kVocab);
}

// What the fake engine has computed for each request: the cache gives it a prefix at start.
using Memory = std::map<std::uint64_t, std::vector<TokenId>>;

class FakeCache final : public Cache {
 public:
  struct Entry {
    std::vector<TokenId> prompt;
    std::uint64_t max_new = 0;
    RequestPhase phase = RequestPhase::kReady;
    std::uint64_t computed = 0;
    std::uint64_t steps = 0;  // prepared
    std::uint64_t held = 0;   // tokens that it has room for
    bool is_starved = false;
    PageTable pages;
    std::shared_ptr<LayerGate> gate;
  };
  FakeCache(Memory& memory, std::uint64_t seed) : memory_(memory), rng_(seed) {}

  // The script. Chances are in percent, rolled with the seed.
  std::uint64_t overload_chance = 0, prefetch_chance = 0, gate_failure_chance = 0;
  std::function<Status(const BeginRequest&)> on_begin;       // not ok: the answer
  std::function<Status(const Entry&)> on_start, on_prepare;  // the same
  std::function<void(const Entry&)> on_complete, on_abort;   // may throw
  std::uint64_t cached = 0;                                  // tokens that a start finds, at most prompt - 1
  MissReason miss = MissReason::kNone;                       // of a start
  std::size_t operations = 0;
  std::uint64_t pages = 0;               // of one token each; 0: as many as anybody wants
  std::vector<std::uint64_t> retracted;  // ids
  std::uint64_t begun = 0, finished = 0, aborted = 0, restarts = 0, polls = 0;
  std::map<std::uint64_t, Entry> entries;

  Result<RequestId> begin(const BeginRequest& request) override {
    if (on_begin) LARDER_RETURN_IF_ERROR(on_begin(request));
    Entry e;
    e.prompt.assign(request.tokens.begin(), request.tokens.end());
    e.max_new = request.max_new_tokens;
    if (roll(prefetch_chance)) e.phase = RequestPhase::kPrefetching;
    const RequestId id(++begun);
    e.pages.state = DeviceSlot(static_cast<std::uint32_t>(id.v));
    entries[id.v] = std::move(e);
    return id;
  }
  RequestPhase phase(RequestId id) const override { return entries.at(id.v).phase; }
  Result<CachedTokens> start(RequestId id) override {
    Entry& e = entries.at(id.v);
    EXPECT_EQ(e.phase, RequestPhase::kReady);
    if (on_start) LARDER_RETURN_IF_ERROR(on_start(e));
    if (roll(overload_chance)) return overloaded("start: by chance");
    if (!take(e, e.prompt.size())) return overloaded("start: no page is free");
    e.phase = RequestPhase::kRunning;
    CachedTokens out;
    out.prompt = e.prompt.size();
    out.miss.reason = miss;
    out.host = e.computed = std::min<std::uint64_t>(cached, e.prompt.size() - 1);
    memory_[id.v].assign(e.prompt.begin(), e.prompt.begin() + static_cast<std::ptrdiff_t>(e.computed));
    if (roll(gate_failure_chance)) {
      e.gate = std::make_shared<LayerGate>(1);
      e.gate->fail(unavailable("by chance"));
    }
    return out;
  }
  std::uint64_t computed_tokens(RequestId id) const override { return entries.at(id.v).computed; }
  Result<StepGrant> prepare_step(RequestId id, std::uint64_t until) override {
    Entry& e = entries.at(id.v);
    EXPECT_EQ(e.phase, RequestPhase::kRunning);
    EXPECT_GT(until, e.computed);
    EXPECT_LE(until, e.prompt.size() + e.max_new);
    if (on_prepare) LARDER_RETURN_IF_ERROR(on_prepare(e));
    if (roll(overload_chance)) return overloaded("prepare_step: by chance");
    if (!take(e, until)) return overloaded("prepare_step: no page is free");
    StepGrant grant;
    grant.token = {id, ++e.steps};
    grant.until = until;
    grant.pages = &e.pages;
    grant.gate = e.gate;
    return grant;
  }
  Status cancel_step(StepToken step, std::shared_ptr<DeviceEvent>) override {
    EXPECT_EQ(entries.at(step.request.v).steps, step.number);
    return Status::ok();
  }
  Status complete_step(StepToken step, std::span<const TokenId> tokens, std::shared_ptr<DeviceEvent>) override {
    const RequestId id = step.request;
    Entry& e = entries.at(id.v);
    EXPECT_EQ(e.steps, step.number);
    EXPECT_GT(tokens.size(), e.computed);
    if (on_complete) on_complete(e);
    e.computed = tokens.size();
    EXPECT_TRUE(std::ranges::equal(memory_[id.v], tokens)) << "the engine was fed something else";
    return Status::ok();
  }
  bool is_starved(RequestId id) const override { return pages > 0 && entries.at(id.v).is_starved; }
  Status retract(RequestId id) override {
    Entry& e = entries.at(id.v);
    EXPECT_EQ(e.phase, RequestPhase::kRunning);
    retracted.push_back(id.v);
    e.held = 0;
    e.phase = RequestPhase::kReady;
    return Status::ok();
  }
  Result<RequestId> fork(RequestId) override { return unsupported("nobody forks here"); }
  Status restart(RequestId id) override {
    ++restarts;
    Entry& e = entries.at(id.v);
    e.phase = RequestPhase::kReady;
    e.gate.reset();
    return Status::ok();
  }
  void finish(RequestId id) override { finished += entries.erase(id.v); }
  void abort(RequestId id) override {
    if (on_abort) on_abort(entries.at(id.v));
    aborted += entries.erase(id.v);
  }
  bool poll(Nanos) override {
    ++polls;
    bool changed = false;
    for (auto& [id, e] : entries) {
      if (e.phase != RequestPhase::kPrefetching || roll(70)) continue;
      e.phase = RequestPhase::kReady;
      changed = true;
    }
    return changed;
  }
  void wake() override {}
  bool idle() const override { return entries.empty(); }
  std::size_t operations_in_flight() const override {
    return operations + static_cast<std::size_t>(std::ranges::count_if(
                            entries, [](const auto& e) { return e.second.phase == RequestPhase::kPrefetching; }));
  }
  std::uint64_t flush() override { return 0; }
  Status attach_storage(StorageBackend&) override { return Status::ok(); }
  void detach_storage() override {}
  bool storage_idle() const override { return true; }
  void storage_cleared() override {}
  void set_policies(PrefetchPolicy, WritePolicy) override {}
  void explain(const BeginRequest&, std::function<void(Explanation)>) override {}
  const RadixTree& tree() const override { throw std::logic_error("no tree"); }
  CacheCounters counters() const override { return {}; }
  Status check_invariants() const override { return Status::ok(); }

 private:
  bool take(Entry& e, std::uint64_t tokens) {
    if (pages == 0) return true;
    std::uint64_t held = std::max(tokens, e.held) - e.held;
    for (const auto& [id, other] : entries) held += other.held;
    e.is_starved = held > pages;
    if (!e.is_starved) e.held = std::max(tokens, e.held);
    return !e.is_starved;
  }
  bool roll(std::uint64_t percent) { return percent > 0 && rng_.chance(percent, 100); }
  Memory& memory_;
  Rng rng_;
};

class FakeEngine final : public ReferenceEngine {
 public:
  explicit FakeEngine(Memory& memory) : memory_(memory) {}
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> batches;  // (start, tokens) of each sequence
  std::function<Status(const SequenceStep&)> on_step;

  std::vector<StepResult> step(std::span<const SequenceStep> steps) override {
    std::vector<StepResult> results(steps.size());
    batches.emplace_back();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const SequenceStep& s = steps[i];
      batches.back().emplace_back(s.start, s.tokens.size());
      if (s.gate != nullptr) results[i].status = s.gate->wait(0, Nanos{0});
      if (results[i].status.is_ok() && on_step) results[i].status = on_step(s);
      if (!results[i].status.is_ok()) continue;
      std::vector<TokenId>& known = memory_[s.pages->state.v];
      EXPECT_EQ(known.size(), s.start);
      known.insert(known.end(), s.tokens.begin(), s.tokens.end());
      results[i].logits.assign(kVocab, 0.0F);
      results[i].logits[next_token(known)] = 1.0F;
    }
    return results;
  }

 private:
  Memory& memory_;
};

struct Heard {
  std::vector<TokenId> tokens;
  std::uint64_t ends = 0;
  GenerateUpdate last;
};

class RequestLoopTest : public ::testing::Test {
 protected:
  void make(LoopLimits limits, std::uint64_t seed = 1) {
    model_.vocab_size = kVocab;
    memory_.clear();
    heard_.clear();
    cache_ = std::make_unique<FakeCache>(memory_, seed);
    engine_ = std::make_unique<FakeEngine>(memory_);
    numbers_ = std::make_unique<MetricsRegistry>();
    metrics_ = std::make_unique<RequestMetrics>(*numbers_, "m");
    loop_ =
        std::make_unique<RequestLoop>(limits, LoopParts{cache_.get(), engine_.get(), &model_, &clock_, metrics_.get()});
  }
  // Returns the ticket; its updates are collected in heard_.
  Scheduler::Ticket add(std::vector<TokenId> prompt, std::uint64_t max_new, std::int32_t priority = 0) {
    auto s = std::make_unique<Sequence>();
    const Scheduler::Ticket ticket = s->ticket = heard_.size() + 1;
    s->tokens = std::move(prompt);
    s->prompt = s->tokens.size();
    s->request.max_new_tokens = max_new;
    s->request.ignore_eos = true;
    s->request.priority = priority;
    heard_[ticket];
    s->update = [this, ticket](const GenerateUpdate& u) {
      Heard& h = heard_[ticket];
      EXPECT_EQ(h.ends, 0u) << "an update after the last one";
      h.tokens.insert(h.tokens.end(), u.new_tokens.begin(), u.new_tokens.end());
      EXPECT_EQ(u.completion_tokens, h.tokens.size());
      h.ends += u.finish != FinishReason::kRunning;
      h.last = u;
    };
    loop_->add(std::move(s));
    return ticket;
  }
  void run_until_over(int most_turns = 20'000) {
    for (int i = 0; i < most_turns; ++i) {
      (void)loop_->turn();
      if (std::ranges::all_of(heard_, [](const auto& h) { return h.second.ends == 1; })) return;
    }
    FAIL() << "the loop does not end";
  }

  ModelSpec model_;
  ManualClock clock_;
  Memory memory_;
  std::map<Scheduler::Ticket, Heard> heard_;
  std::unique_ptr<FakeCache> cache_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<MetricsRegistry> numbers_;
  std::unique_ptr<RequestMetrics> metrics_;
  std::unique_ptr<RequestLoop> loop_;
};

std::vector<TokenId> prompt_of(Rng& rng, std::size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (TokenId& t : prompt) t = static_cast<TokenId>(rng.below(kVocab));
  return prompt;
}

std::vector<TokenId> expected_output(std::vector<TokenId> tokens, std::uint64_t count) {
  std::vector<TokenId> out;
  for (; count > 0; --count) {
    out.push_back(next_token(tokens));
    tokens.push_back(out.back());
  }
  return out;
}

using Batch = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

TEST_F(RequestLoopTest, MixesDecodesWithChunksOfPrefill) {
  make({.running = 4, .chunk_tokens = 128});
  Rng rng(1);
  (void)add(prompt_of(rng, 100), 4);
  (void)add(prompt_of(rng, 300), 2);
  run_until_over();
  const std::vector<Batch> expected = {
      {{0, 100}},            // 28 tokens of the second would be a sliver
      {{100, 1}, {0, 128}},  // a decode and a chunk
      {{101, 1}, {128, 128}},
      {{102, 1}, {256, 44}},
      {{300, 1}},
  };
  EXPECT_EQ(engine_->batches, expected);
  EXPECT_EQ(cache_->finished, 2u);
  EXPECT_EQ(loop_->totals().steps, 5u);
}

TEST_F(RequestLoopTest, SharesTheChunkAmongShortPrompts) {
  make({.running = 8, .chunk_tokens = 128});
  Rng rng(1);
  for (const std::size_t tokens : {40u, 40u, 40u, 40u, 200u}) (void)add(prompt_of(rng, tokens), 1);
  run_until_over();
  const std::vector<Batch> expected = {{{0, 40}, {0, 40}, {0, 40}}, {{0, 40}, {0, 88}}, {{88, 112}}};
  EXPECT_EQ(engine_->batches, expected);
}

TEST_F(RequestLoopTest, BeginsOnlySoManyThatWait) {
  make({.running = 1, .chunk_tokens = 64});
  Rng rng(1);
  for (int i = 0; i < 200; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->begun, RequestLoop::kMaxBegunWaiting);
  run_until_over();
  EXPECT_EQ(cache_->begun, 200u);
  EXPECT_EQ(cache_->finished, 200u);
}

TEST_F(RequestLoopTest, FailedLoadBackStartsAgain) {
  make({.running = 2, .chunk_tokens = 64});
  cache_->cached = 50;
  cache_->gate_failure_chance = 100;
  Rng rng(3);
  const std::vector<TokenId> prompt = prompt_of(rng, 100);
  (void)add(prompt, 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->restarts, 1u);
  cache_->gate_failure_chance = 0;
  run_until_over();
  EXPECT_TRUE(heard_[1].last.status.is_ok());
  EXPECT_EQ(heard_[1].tokens, expected_output(prompt, 3));
  EXPECT_EQ(heard_[1].last.cached.host, 50u);
}

TEST_F(RequestLoopTest, FailingForEverIsAnErrorNotALoop) {
  make({.running = 2, .chunk_tokens = 64});
  engine_->on_step = [](const SequenceStep&) { return unavailable("the device is gone"); };
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(50);
  EXPECT_EQ(heard_[1].last.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(cache_->restarts, RequestLoop::kMaxRestarts);
  // What the engine refuses as wrong is not tried again.
  engine_->on_step = [](const SequenceStep&) { return invalid_argument("no such token"); };
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(50);
  EXPECT_EQ(heard_[2].last.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_->restarts, RequestLoop::kMaxRestarts);
  EXPECT_TRUE(cache_->entries.empty());
}

TEST_F(RequestLoopTest, WhoNeverFitsGetsAnErrorInsteadOfAHang) {
  make({.running = 4, .chunk_tokens = 64});
  cache_->on_start = [](const FakeCache::Entry& e) {
    return e.prompt.size() > 50 ? overloaded("it is too large") : Status::ok();
  };
  Rng rng(3);
  (void)add(prompt_of(rng, 60), 3);
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(100);
  EXPECT_EQ(heard_[1].last.status.code(), StatusCode::kOverloaded);
  EXPECT_NE(heard_[1].last.status.message().find("it is too large"), std::string::npos);
  EXPECT_TRUE(heard_[2].last.status.is_ok());
  EXPECT_EQ(loop_->totals().stalls, 1u);
}

// The device is full of those that run: who matters least makes room, and comes back with its tokens.
TEST_F(RequestLoopTest, WhoMattersLeastMakesRoom) {
  make({.running = 4, .chunk_tokens = 64});
  cache_->pages = 60;
  Rng rng(3);
  std::vector<std::vector<TokenId>> prompts;
  for (const std::int32_t priority : {0, 0, 1, 0}) {
    prompts.push_back(prompt_of(rng, 10));
    (void)add(prompts.back(), 30, priority);
  }
  run_until_over(500);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(heard_[i + 1].last.status.is_ok()) << heard_[i + 1].last.status.to_string();
    EXPECT_EQ(heard_[i + 1].tokens, expected_output(prompts[i], 30));
  }
  // The third was submitted with a higher priority, and so begun first: its id is 1. Then came the others.
  ASSERT_FALSE(cache_->retracted.empty());
  EXPECT_EQ(cache_->retracted[0], 4u);
  EXPECT_EQ(std::ranges::count(cache_->retracted, 1u), 0);
  EXPECT_GE(std::ranges::count(cache_->retracted, 4u), std::ranges::count(cache_->retracted, 3u));
  EXPECT_GE(std::ranges::count(cache_->retracted, 3u), std::ranges::count(cache_->retracted, 2u));
  EXPECT_EQ(loop_->totals().retracts, cache_->retracted.size());
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

// The least important is starved itself: it waits, and nobody starts meanwhile.
TEST_F(RequestLoopTest, NobodyStartsWhileOneIsStarved) {
  make({.running = 8, .chunk_tokens = 64});
  cache_->pages = 45;
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 30);
  (void)add(prompt_of(rng, 20), 3);
  for (int i = 0; i < 3; ++i) (void)loop_->turn();
  (void)add(prompt_of(rng, 10), 30);
  (void)add(prompt_of(rng, 1), 3);
  run_until_over(500);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

TEST_F(RequestLoopTest, WhoCannotBeginNowBeginsLater) {
  make({.running = 8, .chunk_tokens = 64});
  cache_->on_begin = [&](const BeginRequest&) {
    return cache_->entries.size() >= 2 ? overloaded("two are in use, which is the limit") : Status::ok();
  };
  Rng rng(3);
  for (int i = 0; i < 12; ++i) (void)add(prompt_of(rng, 10), 3, i % 3);
  run_until_over(200);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

// The first in line waits for a place that one behind it has: it is passed over.
TEST_F(RequestLoopTest, WhoCannotBeginHoldsUpNobody) {
  make({.running = 1, .chunk_tokens = 64});
  cache_->on_begin = [&](const BeginRequest&) {
    return cache_->entries.size() >= 4 ? overloaded("four are in use, which is the limit") : Status::ok();
  };
  Rng rng(3);
  for (int i = 0; i < 6; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  for (int i = 0; i < 20; ++i) (void)add(prompt_of(rng, 10), 3, 1);
  run_until_over(400);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

TEST_F(RequestLoopTest, WhoCanNeverBeginGetsAnErrorInsteadOfAHang) {
  make({.running = 4, .chunk_tokens = 64});
  cache_->on_begin = [](const BeginRequest&) { return overloaded("others have them all"); };
  cache_->operations = 1;
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 3);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(loop_->turn());
  cache_->operations = 0;  // nothing will come any more
  run_until_over(20);
  EXPECT_EQ(heard_[1].last.status.message(), "others have them all");
  EXPECT_EQ(loop_->totals().stalls, 1u);
  EXPECT_EQ(loop_->waiting(), 0u);
}

TEST_F(RequestLoopTest, StallWaitsForWhatIsInFlightAndThenFailsTheYoungest) {
  make({.running = 4, .chunk_tokens = 64});
  Rng rng(3);
  for (int i = 0; i < 3; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  ASSERT_EQ(loop_->running(), 3u);
  cache_->on_prepare = [&](const FakeCache::Entry&) {
    return cache_->entries.size() > 2 ? overloaded("no window page is free") : Status::ok();
  };
  cache_->operations = 1;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(loop_->turn());
  EXPECT_EQ(loop_->running(), 3u);  // the copy in flight may free something
  cache_->operations = 0;
  run_until_over(100);
  EXPECT_EQ(heard_[3].last.status.code(), StatusCode::kOverloaded);
  EXPECT_TRUE(heard_[1].last.status.is_ok());
  EXPECT_TRUE(heard_[2].last.status.is_ok());
}

TEST_F(RequestLoopTest, AStartWhoseLoadFailedIsCountedAsWhatItCameTo) {
  make({.running = 1, .chunk_tokens = 64});
  cache_->cached = 50;
  cache_->gate_failure_chance = 100;
  Rng rng(3);
  (void)add(prompt_of(rng, 60), 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->restarts, 1u);
  cache_->cached = cache_->gate_failure_chance = 0;
  cache_->miss = MissReason::kLoadFailed;
  run_until_over(20);
  EXPECT_EQ(loop_->totals().prompt_tokens, 60u);
  EXPECT_EQ(loop_->totals().cached.cached(), 0u);
  for (const char* line :
       {"sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 0\n",
        "sglang:prompt_tokens_total{model_name=\"m\"} 60\n", "sglang:queue_time_seconds_count{model_name=\"m\"} 1\n",
        "larder_misses_total{model_name=\"m\",reason=\"load_failed\"} 1\n",
        "larder_missed_tokens_total{model_name=\"m\",reason=\"load_failed\"} 60\n"}) {
    EXPECT_NE(numbers_->render().find(line), std::string::npos) << line << numbers_->render();
  }
}

TEST_F(RequestLoopTest, CallbackThatThrowsHarmsNobodyElse) {
  make({.running = 4, .chunk_tokens = 64});
  Rng rng(3);
  auto bad = std::make_unique<Sequence>();
  bad->ticket = 99;
  bad->tokens = prompt_of(rng, 10);
  bad->prompt = 10;
  bad->request.max_new_tokens = 3;
  bad->update = [](const GenerateUpdate&) { throw std::runtime_error("client code"); };
  loop_->add(std::move(bad));
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(100);
  EXPECT_EQ(cache_->finished, 2u);
}

TEST_F(RequestLoopTest, CancelAndAbortAllEndInAnyPhase) {
  make({.running = 1, .chunk_tokens = 16});
  Rng rng(3);
  for (int i = 0; i < 4; ++i) (void)add(prompt_of(rng, 100), 3);
  (void)loop_->turn();
  loop_->cancel(1);  // in the middle of its prompt
  loop_->cancel(3);  // waiting
  loop_->cancel(3);
  loop_->cancel(77);
  EXPECT_EQ(heard_[1].last.finish, FinishReason::kAbort);
  EXPECT_EQ(heard_[3].last.status.code(), StatusCode::kCancelled);
  (void)loop_->turn();
  EXPECT_EQ(loop_->running(), 1u);
  loop_->finish(2);
  EXPECT_EQ(heard_[2].last.finish, FinishReason::kStop);
  EXPECT_TRUE(heard_[2].last.status.is_ok());
  (void)loop_->turn();
  loop_->abort_all(cancelled("shutting down"));
  for (const auto& [ticket, h] : heard_) EXPECT_EQ(h.ends, 1u) << ticket;
  EXPECT_TRUE(cache_->entries.empty());
  EXPECT_EQ(cache_->finished, 3u);  // those that ran keep what they computed
  EXPECT_FALSE(loop_->turn());
}

TEST_F(RequestLoopTest, AfterAnExceptionEveryRequestEndsOnceAndTheCacheIsLeftAlone) {
  make({.running = 2, .chunk_tokens = 64});
  Rng rng(3);
  for (const std::uint64_t max_new : {1u, 30u, 30u, 30u}) (void)add(prompt_of(rng, 10), max_new);
  cache_->on_complete = [](const FakeCache::Entry& e) {
    if (e.max_new == 30) throw std::runtime_error("no memory");
  };
  EXPECT_THROW((void)loop_->turn(), std::runtime_error);
  EXPECT_EQ(heard_[1].ends, 1u);  // in the same step, and not yet swept
  loop_->fail_all(internal_error("no memory"));
  for (const auto& [ticket, h] : heard_) {
    EXPECT_EQ(h.ends, 1u) << ticket;
    EXPECT_EQ(h.last.status.code(), ticket == 1 ? StatusCode::kOk : StatusCode::kInternal) << ticket;
  }
  EXPECT_EQ(cache_->finished, 1u);
  EXPECT_EQ(cache_->aborted, 0u);
  EXPECT_EQ(loop_->running() + loop_->waiting(), 0u);
}

TEST_F(RequestLoopTest, ARequestThatAnExceptionThrowsAwayIsToldSo) {
  make({.running = 1, .chunk_tokens = 64});
  Rng rng(3);
  for (int i = 0; i < 2; ++i) (void)add(prompt_of(rng, 10), 30);
  (void)loop_->turn();
  cache_->on_abort = [](const FakeCache::Entry&) { throw std::runtime_error("no memory"); };
  EXPECT_THROW(loop_->cancel(2), std::runtime_error);
  EXPECT_EQ(heard_[2].ends, 1u);
  EXPECT_EQ(heard_[2].last.finish, FinishReason::kAbort);
  EXPECT_EQ(heard_[2].last.status.code(), StatusCode::kInternal);
}

// Whatever the cache answers, every request ends once, with the tokens of an undisturbed run or with an error.
TEST_F(RequestLoopTest, RandomTroubleNeverChangesTokens) {
  std::uint64_t disturbed = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    make({.running = static_cast<std::uint32_t>(rng.between(1, 5)),
          .chunk_tokens = static_cast<std::uint32_t>(rng.between(1, 90))},
         seed);
    cache_->overload_chance = rng.below(60);
    cache_->prefetch_chance = rng.below(100);
    cache_->gate_failure_chance = rng.below(30);
    cache_->cached = rng.below(40);
    std::map<Scheduler::Ticket, std::vector<TokenId>> expected;
    for (std::uint64_t n = rng.between(1, 25); n > 0; --n) {
      const std::vector<TokenId> prompt = prompt_of(rng, rng.between(1, 120));
      const std::uint64_t count = rng.below(12);
      expected[add(prompt, count, static_cast<std::int32_t>(rng.below(3)))] = expected_output(prompt, count);
      for (std::uint64_t turns = rng.below(4); turns > 0; --turns) (void)loop_->turn();
    }
    run_until_over();
    for (const auto& [ticket, tokens] : expected) {
      if (heard_[ticket].last.status.is_ok()) {
        EXPECT_EQ(heard_[ticket].tokens, tokens) << "ticket " << ticket;
      } else {
        ++disturbed;
      }
    }
    EXPECT_TRUE(cache_->entries.empty());
    EXPECT_EQ(cache_->finished + cache_->aborted, expected.size());
    if (HasFailure()) return;
  }
  EXPECT_GT(disturbed, 0u);  // the trouble was trouble
}

}  // namespace
}  // namespace larder
