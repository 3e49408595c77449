// SPDX-License-Identifier: Apache-2.0
// The laws of tests/cache/hit_rate.h on a recorded trace, and on longer generated ones. A recorded one is not part of
// this tree: the environment's LARDER_TRACE names it (docs/testing.md).
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/cache/hit_rate.h"

namespace larder::test {
namespace {

constexpr std::size_t kRequests = 4000;
constexpr std::array<std::size_t, 8> kQuarters = {1, 2, 3, 4, 8, 12, 16, 32};

void expect_laws(Shape shape, const Trace& trace, ComponentCounts device, const std::string& name) {
  const std::vector<HostSizeRow> rows =
      replay_host_sizes(shape, {LoadKind::kTrace, 1, &trace}, device, trace.size(), kQuarters);
  std::printf("%s, %s, %zu requests, at most %.2f percent:\n%s", name.c_str(), shape_name(shape).c_str(), trace.size(),
              ceiling_of(trace), table_of(rows).c_str());
  // Under value, as in slack_of(): on the recorded trace a host of eight devices takes 1.0 of the 13.5 points that the
  // device has alone, and brings 17 of its own (exclusive).
  const double slack = shape == Shape::kFullMamba ? 1.1 : 0.2;
  EXPECT_EQ(broken_host_size_law(rows, slack), "") << name;
}

class TraceSlow : public ::testing::TestWithParam<Shape> {};

TEST_P(TraceSlow, ALargerHostNeverLowersTheHitRateOfARecordedTrace) {
  Result<Trace> trace = trace_of_environment();
  if (trace.status().code() == StatusCode::kNotFound) GTEST_SKIP() << trace.status().message();
  ASSERT_TRUE(trace.is_ok()) << trace.status().to_string();
  trace->resize(std::min(kRequests, trace->size()));
  expect_laws(GetParam(), *trace, {4096, 1024, 384}, "recorded");
}

TEST_P(TraceSlow, ALargerHostNeverLowersTheHitRateOfGeneratedOnes) {
  for (std::uint64_t seed = 101; seed <= 103; ++seed) {
    expect_laws(GetParam(), generate_trace(seed, 2000), {2048, 512, 192},
                "generated from seed " + std::to_string(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TraceSlow, ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
