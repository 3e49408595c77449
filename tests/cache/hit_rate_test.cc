// SPDX-License-Identifier: Apache-2.0
// What the host tier is worth: see hit_rate.h. tests/cache_slow has longer loads.
#include <gtest/gtest.h>

#include "tests/cache/hit_rate.h"
#include "tests/support/brief.h"

namespace larder::test {
namespace {

// Four pages of device, two of host, prompts of one page that are not asked for again. The defect: victims were taken
// among those with a host copy only, which are the newest, so the oldest pages never left.
TEST(HitRate, OldPagesLeaveTheDeviceAlsoWithoutAHostCopy) {
  for (const WritePolicy policy : kAllWritePolicies) {
    Harness h(hit_rate_options(Shape::kFull, policy, {4, 0, 0}, 2));
    const auto prompt = [](TokenId i) { return std::vector<TokenId>(5, i); };
    const auto on_device = [&](TokenId i) {
      return h.cache->tree().match(NamespaceId(0), prompt(i)).full_device_pages;
    };
    for (TokenId i = 0; i < 12; ++i) {
      (void)h.run(prompt(i), 1);
      h.settle();
    }
    // A request takes two pages and leaves one.
    for (const TokenId newest : {11, 10, 9}) EXPECT_EQ(on_device(newest), 1u) << write_policy_name(policy) << newest;
    for (const TokenId oldest : {0, 1, 2}) EXPECT_EQ(on_device(oldest), 0u) << write_policy_name(policy) << oldest;
    EXPECT_EQ(h.check_clean(), "");
  }
}

class HostSizes : public ::testing::TestWithParam<Shape> {};

// A page of few requests is a tenth of a point: too coarse for the law.
TEST_P(HostSizes, NeverLowerTheHitRate) {
  const bool is_brief = support::is_brief();
  const std::size_t requests = is_brief ? 200 : 800;
  for (const LoadKind kind : {LoadKind::kDocuments, LoadKind::kConversations}) {
    std::vector<HostSizeRow> all;
    for (std::uint64_t seed = 1; seed <= (is_brief ? 1 : 3); ++seed) {
      add_rows(all, replay_host_sizes(GetParam(), {kind, seed}, {64, 64, 24}, requests));
    }
    const double slack = is_brief ? 100.0 : slack_of(GetParam());
    EXPECT_EQ(broken_host_size_law(all, slack), "") << table_of(all);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostSizes,
                         ::testing::Values(Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll),
                         [](const auto& param_info) { return shape_name(param_info.param); });

}  // namespace
}  // namespace larder::test
