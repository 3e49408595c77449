// SPDX-License-Identifier: Apache-2.0
// The arithmetic and the client of `larder bench multiturn`.
#include "bench/bench_multiturn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "server/api_server.h"
#include "tests/server/fake_scheduler.h"

namespace larder {
namespace {

MultiturnResult ideal_run(const MultiturnOptions& options, std::uint32_t page_size) {
  MultiturnResult result;
  result.page_size = page_size;
  for (std::uint32_t round = 0; round < options.num_rounds; ++round) {
    for (std::uint32_t client = 0; client < options.num_clients; ++client) {
      TurnRecord turn;
      turn.client = client;
      turn.round = round;
      turn.prompt_tokens = prompt_tokens_of(options, round);
      turn.ideal_cached = turn.cached = ideal_cached_tokens(options, page_size, round);
      turn.ttft = 0.001 * (client + 1);
      turn.output = {client, round};
      result.turns.push_back(turn);
    }
  }
  return result;
}

TEST(BenchMultiturn, TheIdealOfPageGranularity) {
  MultiturnOptions options;
  const MultiturnResult small = ideal_run(options, 64);
  for (int r = 0; r < 12; ++r) {
    const RoundSummary s = summarize(small, r);
    EXPECT_DOUBLE_EQ(s.ideal_rate(), r == 0 ? 0.0 : (8.0 * r - 1) / (8.0 * r + 4)) << r;
  }
  EXPECT_NE(multiturn_total_line(small).find("hit rate 0.897569, ideal 0.897569 (517/576)"), std::string::npos);
  options.request_length = options.output_length = 1024;
  EXPECT_NE(multiturn_total_line(ideal_run(options, 64)).find("0.911892"), std::string::npos);
  options.request_length = options.output_length = 1;  // shorter than a page: nothing to reuse for long
  EXPECT_EQ(ideal_cached_tokens(options, 64, 1), 0u);
  EXPECT_EQ(ideal_cached_tokens(options, 64, 40), 64u);
}

TEST(BenchMultiturn, SummariesAndDifferences) {
  MultiturnOptions options;
  const MultiturnResult a = ideal_run(options, 64);
  const RoundSummary s = summarize(a, 3);
  EXPECT_EQ(s.turns, 10u);
  EXPECT_EQ(s.most_short, 0u);
  EXPECT_DOUBLE_EQ(s.ttft_p50, 0.005);
  EXPECT_DOUBLE_EQ(s.ttft_p99, 0.010);
  EXPECT_NEAR(s.ttft_mean, 0.0055, 1e-12);
  MultiturnResult b = a;
  EXPECT_EQ(first_difference(a, b), "");
  EXPECT_EQ(first_difference(a, nlohmann::json::parse(outputs_json(b).dump())), "");
  b.turns[15].output[1] = 99;
  b.turns[15].cached -= 64;
  EXPECT_EQ(summarize(b, -1).most_short, 64u);
  EXPECT_NE(multiturn_total_line(b).find("no turn more than 64 tokens short"), std::string::npos);
  EXPECT_EQ(first_difference(a, b), "client 5, round 1: output token 1 is 1, and 99 in the other run");
  b.turns.pop_back();
  EXPECT_EQ(first_difference(a, b), "120 turns here, 119 in the other run");
  EXPECT_NE(first_difference(a, nlohmann::json::object()), "");
  EXPECT_NE(multiturn_table(a).find("round"), std::string::npos);
}

TEST(BenchMultiturn, ConversationsGrowByAnswersAndFreshTokens) {
  Options server_options;
  server_options.port = 0;
  FakeScheduler scheduler(server_options);
  MetricsRegistry metrics;
  auto api = ApiServer::create({&scheduler, &real_clock(), &metrics, {}});
  ASSERT_TRUE(api.is_ok());
  MultiturnOptions options;
  options.url = (*api)->url();
  options.num_clients = 3;
  options.num_rounds = 4;
  options.request_length = 5;
  options.output_length = 7;
  options.show_progress = false;
  const auto first = run_multiturn(options);
  ASSERT_TRUE(first.is_ok()) << first.status().to_string();
  ASSERT_EQ(first->turns.size(), 12u);
  for (const TurnRecord& turn : first->turns) {
    EXPECT_EQ(turn.prompt_tokens, prompt_tokens_of(options, turn.round));
    EXPECT_EQ(turn.output.size(), 7u);
    EXPECT_EQ(turn.cached, 6u);
  }
  ASSERT_EQ(first->last_prompts.size(), 3u);
  for (std::uint32_t c = 0; c < 3; ++c) {
    const std::vector<TokenId>& prompt = first->last_prompts[c];
    ASSERT_EQ(prompt.size(), prompt_tokens_of(options, 3));
    EXPECT_TRUE(std::equal(first->turns[c].output.begin(), first->turns[c].output.end(), prompt.begin() + 5));
    // The fake's answer is a function of the prompt's sum: the last turn was sent exactly this.
    EXPECT_EQ(first->turns[9 + c].output[0], std::accumulate(prompt.begin(), prompt.end(), 0u) % 256);
  }
  const auto second = run_multiturn(options);
  ASSERT_TRUE(second.is_ok());
  EXPECT_EQ(first_difference(*first, *second), "");
  const auto again = run_prompts(options, first->last_prompts, 3);
  ASSERT_TRUE(again.is_ok());
  for (std::uint32_t c = 0; c < 3; ++c) EXPECT_EQ(again->turns[c].output, first->turns[9 + c].output);
}

TEST(BenchMultiturn, TheOrderIsByRoundsOrDrawnByTheSeed) {
  Options server_options;
  server_options.port = 0;
  FakeScheduler scheduler(server_options);
  MetricsRegistry metrics;
  auto api = ApiServer::create({&scheduler, &real_clock(), &metrics, {}});
  ASSERT_TRUE(api.is_ok());
  MultiturnOptions options;
  options.url = (*api)->url();
  options.num_clients = 5;
  options.num_rounds = 4;
  options.request_length = options.output_length = 3;
  options.max_parallel = 1;
  options.show_progress = false;
  const auto order = [&] {
    const auto result = run_multiturn(options);
    EXPECT_TRUE(result.is_ok()) << result.status().to_string();
    std::vector<std::uint32_t> sent;  // by round, then client
    if (!result.is_ok()) return sent;
    for (const TurnRecord& turn : result->turns) sent.push_back(turn.sent);
    return sent;
  };
  std::vector<std::uint32_t> by_rounds(20);
  std::iota(by_rounds.begin(), by_rounds.end(), 0u);
  EXPECT_EQ(order(), by_rounds);
  options.order = TurnOrder::kRandom;
  const std::vector<std::uint32_t> drawn = order();
  EXPECT_NE(drawn, by_rounds);
  EXPECT_TRUE(std::is_permutation(drawn.begin(), drawn.end(), by_rounds.begin()));
  EXPECT_EQ(order(), drawn);
  options.seed = 2;
  EXPECT_NE(order(), drawn);
}

TEST(BenchMultiturn, AFailureNamesClientAndRound) {
  Options server_options;
  server_options.port = 0;
  FakeScheduler scheduler(server_options);
  MetricsRegistry metrics;
  auto api = ApiServer::create({&scheduler, &real_clock(), &metrics, {}});
  ASSERT_TRUE(api.is_ok());
  MultiturnOptions options;
  options.url = (*api)->url();
  options.num_clients = 1;
  options.show_progress = false;
  scheduler.fail_next_submit(overloaded("the line is full"));
  const auto failed = run_multiturn(options);
  ASSERT_FALSE(failed.is_ok());
  EXPECT_NE(failed.status().message().find("client 0, round 0: HTTP 503"), std::string::npos)
      << failed.status().message();
  options.num_clients = 0;
  EXPECT_EQ(run_multiturn(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace larder
