// SPDX-License-Identifier: Apache-2.0
// The laws of tests/cache/hit_rate.h on longer loads, more of them, and another size of device.
//
// LARDER_HOST_SIZE_SEEDS: loads of each kind (default 2, and 4 where one state more or less
// moves much: slack_of(); tools/nightly.sh: 8).
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/cache/hit_rate.h"

namespace larder::test {
namespace {

class HostSizesSlow : public ::testing::TestWithParam<Shape> {};

TEST_P(HostSizesSlow, NeverLowerTheHitRate) {
  const char* const given = std::getenv("LARDER_HOST_SIZE_SEEDS");
  const std::uint64_t usual = GetParam() == Shape::kFullMamba ? 4 : 2;
  const std::uint64_t seeds = given == nullptr ? usual : std::strtoull(given, nullptr, 10);
  ASSERT_GT(seeds, 0u) << "LARDER_HOST_SIZE_SEEDS is no number above 0: " << given;
  for (const LoadKind kind : {LoadKind::kDocuments, LoadKind::kConversations}) {
    for (const ComponentCounts device : {ComponentCounts{64, 64, 24}, ComponentCounts{120, 90, 30}}) {
      std::vector<HostSizeRow> all;
      for (std::uint64_t seed = 101; seed <= 100 + seeds; ++seed) {
        add_rows(all, replay_host_sizes(GetParam(), {kind, seed}, device, 3000));
      }
      EXPECT_EQ(broken_host_size_law(all, slack_of(GetParam())), "") << table_of(all);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostSizesSlow,
                         ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
