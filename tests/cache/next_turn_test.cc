// SPDX-License-Identifier: Apache-2.0
// What the next turn of a conversation finds: all of the turn before it, up to its last whole page.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

// Runs one turn to its end. Its tokens: the prompt and all outputs.
std::vector<TokenId> turn(Harness& h, std::vector<TokenId> prompt, std::uint64_t new_tokens, std::uint64_t chunk,
                          CachedTokens* cached = nullptr) {
  Harness::Job job = h.begin(std::move(prompt), new_tokens);
  for (int i = 0; i < 10'000 && !h.done(job) && h.failure.empty(); ++i) {
    if (!h.advance(job, chunk)) h.run_background(100);
  }
  if (!h.done(job)) h.failure = "a turn never ends";
  h.finish(job);
  h.settle();
  if (cached != nullptr) *cached = job.cached;
  return job.tokens;
}

class NextTurn : public ::testing::TestWithParam<Shape> {};

// The defect: the state at the end of a prompt that ends on a page was taken only if a slot was free.
TEST_P(NextTurn, FindsAllWholePagesWhenTheStatesAreInUse) {
  for (const WritePolicy policy : {WritePolicy::kWriteThrough, WritePolicy::kWriteBack}) {
    for (const std::uint64_t chunk : {16u, 64u}) {
      for (std::size_t length = 29; length <= 37; ++length) {
        for (const std::uint64_t new_tokens : {1u, 3u, 6u}) {
          SCOPED_TRACE(std::string(write_policy_name(policy)) + ", chunk " + std::to_string(chunk) + ", prompt " +
                       std::to_string(length) + " + " + std::to_string(new_tokens));
          // No token waits for the copy that write_back owes the state that has to go.
          const bool is_tracked = (length + new_tokens - 1) / 4 > length / 4;
          if (policy == WritePolicy::kWriteBack && is_tracked) continue;
          HarnessOptions o = eager_options(GetParam());
          o.config.write_policy = policy;
          o.config.chunked_prefill_tokens = static_cast<std::uint32_t>(chunk);
          o.device = {64, 64, 6};
          o.host_slots = 400;
          Harness h(o);
          for (TokenId i = 1; i <= 4; ++i) (void)turn(h, prompt_of(33, i * 9 + 1), 2, chunk);
          std::vector<TokenId> next = turn(h, prompt_of(length), new_tokens, chunk);
          next.resize(next.size() + 20, 3);
          CachedTokens cached;
          (void)turn(h, next, 1, chunk, &cached);
          EXPECT_EQ(cached.cached(), (length + new_tokens - 1) / 4 * 4);
          EXPECT_EQ(h.check_clean(), "");
        }
      }
    }
  }
}

// Where it leaves the path of another request it takes a state, too: then a prompt that ends on a page takes three.
TEST_P(NextTurn, FindsAllWholePagesAfterAFork) {
  for (std::size_t length = 29; length <= 37; ++length) {
    SCOPED_TRACE("prompt " + std::to_string(length));
    HarnessOptions o = eager_options(GetParam());
    o.config.chunked_prefill_tokens = 64;
    o.device = {64, 64, 6};
    o.host_slots = 400;
    Harness h(o);
    for (TokenId i = 1; i <= 4; ++i) (void)turn(h, prompt_of(33, i * 9 + 1), 2, 64);
    (void)turn(h, prompt_of(50), 2, 64);
    std::vector<TokenId> forked = prompt_of(length);
    for (std::size_t i = 20; i < length; ++i) forked[i] = static_cast<TokenId>(63 - forked[i]);
    std::vector<TokenId> next = turn(h, forked, 3, 64);
    next.resize(next.size() + 20, 3);
    CachedTokens cached;
    (void)turn(h, next, 1, 64, &cached);
    EXPECT_EQ(cached.cached(), (length + 2) / 4 * 4);
    EXPECT_EQ(h.check_clean(), "");
  }
}

// Runs until `computed` tokens have been.
void advance_to(Harness& h, Harness::Job& job, std::uint64_t computed) {
  for (int i = 0; i < 10'000 && (!job.started || job.computed < computed) && h.failure.empty(); ++i) {
    if (!h.advance(job, 16)) h.run_background(100);
  }
  EXPECT_GE(job.computed, computed);
}

HarnessOptions roomy_options(Shape shape) {
  HarnessOptions o = eager_options(shape);  // chunks of four pages
  o.device = {128, 128, 16};
  o.host_slots = 1000;
  return o;
}

// The defect: what was decoded was the tree's only once the request had finished.
TEST_P(NextTurn, FindsWhatAnAbortedRequestDecoded) {
  for (std::uint64_t decoded = 1; decoded <= 40; ++decoded) {
    SCOPED_TRACE("decoded " + std::to_string(decoded));
    Harness h(roomy_options(GetParam()));
    Harness::Job job = h.begin(prompt_of(30), 100);
    advance_to(h, job, 30 + decoded);
    h.cache->abort(job.id);
    h.settle();
    std::vector<TokenId> next = job.tokens;
    next.resize(next.size() + 20, 3);
    CachedTokens cached;
    (void)turn(h, next, 1, 16, &cached);
    EXPECT_EQ(cached.cached(), (30 + decoded) / 4 * 4);
    EXPECT_EQ(h.check_clean(), "");
  }
}

TEST_P(NextTurn, OutputIsSharedWhileItIsDecoded) {
  const bool has_state = small_model(GetParam()).has(ComponentKind::kMamba);
  Harness h(roomy_options(GetParam()));
  Harness::Job job = h.begin(prompt_of(30), 100);
  advance_to(h, job, 100);
  std::vector<TokenId> same = job.tokens;
  same.resize(same.size() + 20, 3);
  CachedTokens cached;
  (void)turn(h, same, 1, 16, &cached);
  if (has_state) {
    EXPECT_EQ(cached.cached(), 28u) << "the state follows at the end";
  } else {
    EXPECT_GE(cached.cached() + 16, 100u);
  }
  advance_to(h, job, 129);
  h.finish(job);
  h.settle();
  std::vector<TokenId> next = job.tokens;
  next.resize(next.size() + 20, 3);
  (void)turn(h, next, 1, 16, &cached);
  EXPECT_EQ(cached.cached(), 128u);
  EXPECT_EQ(h.check_clean(), "");
}

// Chunk by chunk: no node, hence no copy and no write of one, is longer; and a state is kept at the two ends only.
TEST_P(NextTurn, LongOutputIsHandedOverInChunks) {
  Harness h(roomy_options(GetParam()));
  std::size_t longest = 0;
  h.backend->saw_write = [&](const WriteRequest& request) {
    for (const PageGroup& group : request.groups) longest = std::max(longest, group.items.size());
  };
  const std::vector<TokenId> tokens = turn(h, prompt_of(30), 300, 16);
  const MatchResult found = h.cache->tree().match(NamespaceId(0), tokens);
  ASSERT_EQ(found.device.at.pages, 82u);
  for (NodeView view = h.cache->tree().view(found.walked.node); view.end > 0;
       view = h.cache->tree().view(view.parent)) {
    EXPECT_LE(view.end - view.begin, 5u) << "ends at page " << view.end;
  }
  EXPECT_LE(longest, 6 * h.model.pools.size());
  if (h.model.has(ComponentKind::kMamba)) {
    EXPECT_EQ(h.device->slots(ComponentKind::kMamba).counts().live, 2u);
  }
  EXPECT_EQ(h.check_clean(), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, NextTurn,
                         ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
