// The laws of tests/cache/hit_rate.h on longer loads, more of them, and another size of device.
#include <gtest/gtest.h>

#include "tests/cache/hit_rate.h"

namespace larder::test {
namespace {

class HostSizesSlow : public ::testing::TestWithParam<Shape> {};

TEST_P(HostSizesSlow, NeverLowerTheHitRate) {
  for (const LoadKind kind : {LoadKind::kDocuments, LoadKind::kConversations}) {
    for (std::uint64_t seed = 101; seed <= 108; ++seed) {
      EXPECT_EQ(broken_host_size_law(GetParam(), {kind, seed}, {64, 64, 24}, 3000), "");
      EXPECT_EQ(broken_host_size_law(GetParam(), {kind, seed}, {120, 90, 30}, 3000), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostSizesSlow,
                         ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
