// SPDX-License-Identifier: Apache-2.0
// For tests of the request loop: a cache and an engine that follow a script or a seed, and a loop between them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/request_loop.h"

namespace larder::loop_test {

inline constexpr std::uint32_t kVocab = 400;

// The token that the fake model says after `tokens`: any other prefix gives another one, most likely.
inline TokenId next_token(std::span<const TokenId> tokens) {
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
  std::function<bool(const Entry&)> on_load;                 // of a start: does it fail?
  std::function<bool(const BeginRequest&)> on_would_fetch;   // the answer; null: yes
  std::function<bool(const Entry&)> waits_for_place;         // of storage, at each start
  std::uint64_t cached = 0;                                  // tokens that a start finds, at most prompt - 1
  MissReason miss = MissReason::kNone;                       // of a start
  bool storage_hangs = false;                                // who waits for it goes on waiting
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
  bool would_fetch(const BeginRequest& request) const override { return !on_would_fetch || on_would_fetch(request); }
  RequestPhase phase(RequestId id) const override { return entries.at(id.v).phase; }
  bool waits_for_storage(RequestId id) const override {
    return entries.at(id.v).phase == RequestPhase::kPrefetching ||
           (waits_for_place && waits_for_place(entries.at(id.v)));
  }
  Result<CachedTokens> start(RequestId id) override {
    Entry& e = entries.at(id.v);
    EXPECT_EQ(e.phase, RequestPhase::kReady);
    if (on_start) LARDER_RETURN_IF_ERROR(on_start(e));
    if (waits_for_place && waits_for_place(e)) return overloaded("start: no place to read");
    if (roll(overload_chance)) return overloaded("start: by chance");
    if (!take(e, e.prompt.size())) return overloaded("start: no page is free");
    e.phase = RequestPhase::kRunning;
    CachedTokens out;
    out.prompt = e.prompt.size();
    out.miss.reason = miss;
    out.host = e.computed = std::min<std::uint64_t>(cached, e.prompt.size() - 1);
    memory_[id.v].assign(e.prompt.begin(), e.prompt.begin() + static_cast<std::ptrdiff_t>(e.computed));
    if (roll(gate_failure_chance) || (on_load && on_load(e))) {
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
      if (e.phase != RequestPhase::kPrefetching || storage_hangs || roll(70)) continue;
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

inline std::vector<TokenId> prompt_of(Rng& rng, std::size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (TokenId& t : prompt) t = static_cast<TokenId>(rng.below(kVocab));
  return prompt;
}

inline std::vector<TokenId> expected_output(std::vector<TokenId> tokens, std::uint64_t count) {
  std::vector<TokenId> out;
  for (; count > 0; --count) {
    out.push_back(next_token(tokens));
    tokens.push_back(out.back());
  }
  return out;
}

}  // namespace larder::loop_test
