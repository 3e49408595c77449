// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

namespace larder {
namespace {

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(sample_greedy(std::vector<float>{1.0f, 3.0f, 3.0f, 2.0f}), 1u);
  EXPECT_EQ(sample_token(std::vector<float>{1.0f, 3.0f, 3.0f}, {}, 7), 1u);
  EXPECT_EQ(sample_token(std::vector<float>{5.0f, 5.0f}, {.temperature = 1.0, .top_k = 1}, 7), 0u);
}

TEST(Sampler, DrawDependsOnSeedAndPositionOnly) {
  std::vector<float> logits(100);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const SamplingParams params = {.temperature = 1.0, .seed = 42};
  std::map<TokenId, int> seen;
  for (std::uint64_t position = 0; position < 200; ++position) {
    const TokenId token = sample_token(logits, params, position);
    EXPECT_EQ(token, sample_token(logits, params, position));
    ++seen[token];
  }
  EXPECT_GT(seen.size(), 20u);
  SamplingParams other = params;
  other.seed = 43;
  int equal = 0;
  for (std::uint64_t position = 0; position < 200; ++position) {
    if (sample_token(logits, params, position) == sample_token(logits, other, position)) ++equal;
  }
  EXPECT_LT(equal, 40);
}

TEST(Sampler, TopKAndTopPBoundTheChoice) {
  const std::vector<float> logits = {0.0f, 4.0f, 3.0f, 2.0f, -1.0f};
  for (std::uint64_t position = 0; position < 300; ++position) {
    const TokenId two = sample_token(logits, {.temperature = 5.0, .top_k = 2}, position);
    EXPECT_TRUE(two == 1 || two == 2);
    EXPECT_EQ(sample_token(logits, {.temperature = 1.0, .top_p = 0.3}, position), 1u);
    EXPECT_EQ(sample_token(logits, {.temperature = 1.0, .top_p = 0.0}, position), 1u);
  }
}

TEST(Sampler, FrequenciesFollowTheProbabilities) {
  const std::vector<float> logits = {0.0f, 1.0986123f, 0.0f};  // 1 : 3 : 1
  std::array<int, 3> counts{};
  for (std::uint64_t position = 0; position < 5000; ++position) {
    ++counts[sample_token(logits, {.temperature = 1.0, .seed = 1}, position)];
  }
  EXPECT_NEAR(counts[0], 1000, 120);
  EXPECT_NEAR(counts[1], 3000, 150);
  EXPECT_NEAR(counts[2], 1000, 120);
}

}  // namespace
}  // namespace larder
