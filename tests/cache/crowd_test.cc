// SPDX-License-Identifier: Apache-2.0
// Many requests on a small device, through the whole request loop: nobody reserves what it may never need, so many run
// at once, and when the device is full the least important make room. The engine only remembers what it was fed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/request_loop.h"
#include "engine/tokenizer.h"
#include "tests/cache/harness.h"

namespace larder::test {
namespace {

constexpr std::uint32_t kVocab = 64;

std::uint64_t mixed(std::uint64_t hash, TokenId token) { return (hash ^ (token + 1)) * 1099511628211ull; }

// The token that follows depends on all before it: the engine keeps, per page slot, the hash of the tokens up to each
// position, and reads the page before where it goes on. A wrong page gives other tokens.
class HashEngine final : public ReferenceEngine {
 public:
  HashEngine(std::uint32_t slots, std::uint32_t page) : page_(page), hashes_(std::size_t{slots} * page) {}
  std::vector<StepResult> step(std::span<const SequenceStep> steps) override {
    std::vector<StepResult> results(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const SequenceStep& s = steps[i];
      std::uint64_t hash = s.start > 0 ? at(*s.pages, s.start - 1) : 14695981039346656037ull;
      for (std::size_t k = 0; k < s.tokens.size(); ++k) {
        hash = mixed(hash, s.tokens[k]);
        at(*s.pages, s.start + k) = hash;
      }
      results[i].logits.assign(kVocab, 0.0F);
      results[i].logits[hash >> 40 & (kVocab - 1)] = 1.0F;
    }
    return results;
  }

 private:
  std::uint64_t& at(const PageTable& pages, std::uint64_t position) {
    return hashes_[std::size_t{pages.full.at(position / page_).v} * page_ + position % page_];
  }
  const std::uint32_t page_;
  std::vector<std::uint64_t> hashes_;
};

std::vector<TokenId> expected_output(const std::vector<TokenId>& prompt, std::uint64_t count) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const TokenId token : prompt) hash = mixed(hash, token);
  std::vector<TokenId> out;
  while (out.size() < count) {
    out.push_back(static_cast<TokenId>(hash >> 40 & (kVocab - 1)));
    hash = mixed(hash, out.back());
  }
  return out;
}

struct Crowd {
  Crowd(const HarnessOptions& options, const LoopLimits& limits)
      : harness(options),
        engine(options.device[0], harness.model.page_size),
        loop(limits, LoopParts{harness.cache.get(), &engine, &harness.model, &harness.clock, nullptr}) {}

  // The client wants `wants` of the tokens that it might get, and leaves.
  void add(std::vector<TokenId> prompt, std::uint64_t most, std::uint64_t wants, std::int32_t priority = 0) {
    auto s = std::make_unique<Sequence>();
    const Scheduler::Ticket ticket = s->ticket = expected.size() + 1;
    expected.push_back(expected_output(prompt, wants));
    heard.emplace_back();
    s->tokens = std::move(prompt);
    s->prompt = s->tokens.size();
    s->request.max_new_tokens = most;
    s->request.ignore_eos = true;
    s->request.priority = priority;
    s->update = [this, ticket, wants](const GenerateUpdate& u) {
      std::vector<TokenId>& tokens = heard[ticket - 1];
      if (u.finish != FinishReason::kRunning) ++ended;
      if (u.finish == FinishReason::kAbort && tokens.size() < wants) failure = u.status.to_string();
      if (tokens.size() < wants) tokens.insert(tokens.end(), u.new_tokens.begin(), u.new_tokens.end());
      if (tokens.size() == wants && u.finish == FinishReason::kRunning) leaving.push_back(ticket);
    };
    loop.add(std::move(s));
  }
  void run(std::uint64_t most_turns) {
    for (std::uint64_t turn = 0; ended < expected.size() && failure.empty(); ++turn) {
      if (turn == most_turns) failure = std::to_string(expected.size() - ended) + " requests never end";
      const bool moved = loop.turn();
      for (const Scheduler::Ticket ticket : std::exchange(leaving, {})) loop.cancel(ticket);
      (void)harness.executor.run_all();
      if (!moved) harness.clock.advance(std::chrono::milliseconds(1));
    }
  }

  Harness harness;
  HashEngine engine;
  RequestLoop loop;
  std::vector<std::vector<TokenId>> expected, heard;
  std::vector<Scheduler::Ticket> leaving;
  std::size_t ended = 0;
  std::string failure;
};

std::vector<TokenId> random_prompt(Rng& rng, std::size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(rng.below(kVocab));
  return prompt;
}

HarnessOptions device_only(std::uint32_t pages) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.device = {pages, 0, 0};
  o.host_slots = 0;
  o.storage = false;
  return o;
}

// Once it was prompt + max_new_tokens that each of them reserved: 50 ran at once.
TEST(Crowd, TwoHundredRunWhereFiftyDid) {
  HarnessOptions o = device_only(500'000 / 4);
  o.config.chunked_prefill_tokens = 8192;
  Crowd crowd(o, {.running = 1024, .chunk_tokens = 8192});
  Rng rng(7);
  for (int i = 0; i < 400; ++i) crowd.add(random_prompt(rng, 2000), 8000, 300);
  crowd.run(20'000);
  EXPECT_EQ(crowd.failure, "");
  EXPECT_EQ(crowd.heard, crowd.expected);
  EXPECT_GE(crowd.loop.totals().most_running, 200u);
  EXPECT_EQ(crowd.loop.totals().stalls, 0u);
  std::printf("at most %zu ran at once; %llu retractions, %llu steps\n", crowd.loop.totals().most_running,
              static_cast<unsigned long long>(crowd.loop.totals().retracts),
              static_cast<unsigned long long>(crowd.loop.totals().steps));
  EXPECT_EQ(crowd.harness.check_clean(), "");
}

// Outputs that are long after all: the device is full for most of the time, and everybody still ends.
TEST(Crowd, LongOutputsRetractAndEnd) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    HarnessOptions o = device_only(100);
    o.config.decode_headroom_tokens = static_cast<std::uint32_t>(rng.between(1, 20));
    Crowd crowd(o, {.running = 32, .chunk_tokens = 64});
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t most = rng.between(1, 300);
      crowd.add(random_prompt(rng, rng.between(1, 90)), most, rng.between(1, most),
                static_cast<std::int32_t>(rng.below(2)));
    }
    crowd.run(40'000);
    EXPECT_EQ(crowd.failure, "");
    EXPECT_EQ(crowd.heard, crowd.expected);
    EXPECT_GT(crowd.loop.totals().retracts, 0u);
    EXPECT_LT(crowd.loop.totals().retracts, 400u) << "it thrashes";
    EXPECT_EQ(crowd.loop.totals().stalls, 0u);
    EXPECT_EQ(crowd.harness.check_clean(), "");
  }
}

}  // namespace
}  // namespace larder::test
