// SPDX-License-Identifier: Apache-2.0
// Traces of serving systems, and the laws of hit_rate.h over generated ones. tests/cache_slow replays a recorded one.
#include "tests/cache/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cache/hit_rate.h"
#include "tests/support/brief.h"

namespace larder::test {
namespace {

TEST(Trace, LinesAreRead) {
  const Result<Trace> trace = parse_trace(
      "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 520, \"hash_ids\": [0, 64, 2]}\n"
      "\n{\"hash_ids\":[5],\"input_length\":512,\"output_length\":0}\n");
  ASSERT_TRUE(trace.is_ok()) << trace.status().to_string();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ(scaled_prompt((*trace)[0]), (std::vector<TokenId>{0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0}));
  EXPECT_EQ(scaled_output((*trace)[0]), 5u);
  EXPECT_EQ(scaled_prompt((*trace)[1]), (std::vector<TokenId>{5, 0, 0, 0}));
  EXPECT_EQ(scaled_output((*trace)[1]), 1u) << "a request has an answer";
}

TEST(Trace, WhatDoesNotFitIsRefusedByItsLine) {
  const struct {
    const char *line, *says;
  } kBad[] = {
      {"{\"output_length\": 5, \"hash_ids\": [0]}", "line 2: input_length and output_length"},
      {"{\"input_length\": 5, \"output_length\": 5}", "line 2: hash_ids are expected"},
      {"{\"input_length\": 5, \"output_length\": 5, \"hash_ids\": [0, 1]}", "line 2: 2 hash_ids do not fit 5 tokens"},
      {"{\"input_length\": 5, \"output_length\": 5, \"hash_ids\": [0", "line 2: hash_ids do not end"},
      {"{\"input_length\": 5, \"output_length\": 5, \"hash_ids\": [16777216]}", "line 2: hash 16777216 is too large"},
      {"{\"input_length\": 0, \"output_length\": 5, \"hash_ids\": []}", "line 2: a length is out of its range"},
  };
  for (const auto& bad : kBad) {
    const Result<Trace> trace =
        parse_trace("{\"input_length\": 5, \"output_length\": 5, \"hash_ids\": [0]}\n" + std::string(bad.line));
    ASSERT_FALSE(trace.is_ok()) << bad.line;
    EXPECT_NE(trace.status().message().find(bad.says), std::string::npos) << trace.status().message();
  }
}

// Lengths, shares and reuse lie where those of the recorded conversations do (docs/testing.md).
TEST(Trace, GeneratedOnesHaveTheShapeOfTheRecordedOne) {
  const Trace trace = generate_trace(1, 4000);
  std::vector<std::uint64_t> lengths;
  std::size_t turns = 0;
  std::uint64_t newest = 0;
  for (const TraceRequest& request : trace) {
    lengths.push_back(request.input_length);
    ASSERT_LE(request.hash_ids.size(), 240u);
    turns += request.hash_ids[1] <= newest ? 1 : 0;
    newest = std::max(newest, request.hash_ids.back());
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_NEAR(static_cast<double>(lengths[lengths.size() / 2]), 7900, 2500);
  EXPECT_NEAR(static_cast<double>(lengths[lengths.size() * 9 / 10]), 29000, 9000);
  EXPECT_NEAR(static_cast<double>(turns) / 4000, 0.33, 0.08);
  EXPECT_NEAR(ceiling_of(trace), 32.6, 7);
  EXPECT_EQ(generate_trace(1, 50).back().hash_ids, trace[49].hash_ids) << "a shorter one is its beginning";
}

class GeneratedTrace : public ::testing::TestWithParam<Shape> {};

TEST_P(GeneratedTrace, ALargerHostNeverLowersTheHitRate) {
  const bool is_brief = support::is_brief();
  const std::size_t requests = is_brief ? 200 : 700;
  constexpr std::array<std::size_t, 5> kQuarters = {1, 2, 4, 8, 32};
  // Of a model with states, one short trace moves by more than the slack: five of its requests are 2.6 points.
  const std::uint64_t traces = is_brief && GetParam() == Shape::kFullMamba ? 4 : 1;
  std::vector<HostSizeRow> rows;
  for (std::uint64_t seed = 1; seed <= traces; ++seed) {
    const Trace trace = generate_trace(seed, requests);
    add_rows(rows,
             replay_host_sizes(GetParam(), {LoadKind::kTrace, seed, &trace}, {768, 256, 96}, requests, kQuarters));
  }
  // Under value, as in slack_of(). One of 200 requests is up to a point.
  const double of_states = is_brief ? 1.2 : 0.5;
  const double slack = GetParam() == Shape::kFullMamba ? of_states : 0.2;
  EXPECT_EQ(broken_host_size_law(rows, slack), "") << table_of(rows);
  EXPECT_GT(rows.back().rate.total(), rows[kQuarters.size() + 1].rate.total()) << table_of(rows);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GeneratedTrace, ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
