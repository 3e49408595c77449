// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/model_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/llama/blob_test_util.h"

namespace larder::llama {
namespace {

ModelPlan plan_for(const BlobGeometry& geometry, std::uint32_t page_size) {
  const auto pools = model_pools(geometry, {.page_size = page_size});
  EXPECT_TRUE(pools) << pools.status().to_string();
  return plan_of(pools.value_or({}));
}

TEST(ModelPlan, AddsUpWhatThePoolsHave) {
  for (const auto& [name, geometry] : blob_test::all_geometries()) {
    SCOPED_TRACE(name);
    const ModelPlan plan = plan_for(geometry, 4);
    EXPECT_EQ(plan.page_bytes, geometry.full ? geometry.full->page_bytes(4) : 0);
    EXPECT_EQ(plan.window_bytes(), geometry.window ? geometry.window->page_bytes(geometry.window_tokens) : 0);
    EXPECT_EQ(plan.checkpoint_bytes, geometry.recurrent ? geometry.recurrent->checkpoint_bytes() : 0);
    EXPECT_EQ(plan.prefix_bytes(11, 1), 3 * plan.page_bytes + plan.restore_point_bytes()) << "a page is whole";
    // A window of 8 tokens is two pages, which points share; one of 6 is a page of each point alone.
    const std::uint64_t window_pages = geometry.window_tokens == 8 ? 3 : 2;
    EXPECT_EQ(plan.prefix_bytes(12, 2),
              3 * plan.page_bytes + window_pages * plan.window_page_bytes + 2 * plan.checkpoint_bytes);
  }
}

TEST(ModelPlan, TokensFitByPiecesBetweenRestorePoints) {
  const ModelPlan plan{
      .page_size = 64, .page_bytes = 1000, .window_page_bytes = 500, .window_pages = 1, .checkpoint_bytes = 2500};
  EXPECT_EQ(plan.restore_point_tokens(), 192u);
  EXPECT_EQ(plan.tokens_in(3999, 200), 0u);
  EXPECT_EQ(plan.tokens_in(4000, 200), 64u) << "a part of the last piece, and a restore point at its end";
  EXPECT_EQ(plan.tokens_in(5999, 200), 2 * 64u);
  EXPECT_EQ(plan.tokens_in(6000, 200), 3 * 64u);
  EXPECT_EQ(plan.tokens_in(12'000, 200), 6 * 64u);
  EXPECT_EQ(plan.tokens_in(8000, 1), 2 * 64u) << "a point in each page at most";
  const ModelPlan dense{.page_size = 64, .page_bytes = 1000};
  EXPECT_EQ(dense.tokens_in(2999, 64), 128u);
  const ModelPlan recurrent{.page_size = 64, .checkpoint_bytes = 1000};
  EXPECT_EQ(recurrent.restore_point_tokens(), 0u) << "there are no pages to compare it with";
  EXPECT_EQ(recurrent.tokens_in(3000, 640), 3 * 640u);
  EXPECT_EQ(ModelPlan{.page_size = 64}.tokens_in(1, 64), std::numeric_limits<std::uint64_t>::max());
}

// Mistral 7B v0.1: every layer has a window of 4,096 tokens.
TEST(ModelPlan, WindowsThatOverlapShareTheirPages) {
  constexpr std::uint64_t kMib = 1 << 20;
  const ModelPlan plan{.page_size = 64, .window_page_bytes = 8 * kMib, .window_pages = 64};
  EXPECT_EQ(plan.window_bytes(), 512 * kMib);
  EXPECT_EQ(plan.tokens_in(1024 * kMib, 512), 8192u);
  EXPECT_EQ(plan.tokens_in(1024 * kMib, 8192), 2 * 8192u) << "what no window needs is not kept";
  for (const std::uint64_t points : {8, 64, 512}) EXPECT_EQ(plan.prefix_bytes(32768, points), 4096 * kMib) << points;
  EXPECT_EQ(plan.prefix_bytes(32768, 4), 2048 * kMib);
  EXPECT_EQ(plan.prefix_bytes(32768, 0), 0u);
}

TEST(ModelPlan, MoreTokensFitWhereRestorePointsAreFurtherApart) {
  for (const ModelPlan& plan :
       {ModelPlan{.page_size = 64, .page_bytes = 1000, .window_page_bytes = 500, .window_pages = 16},
        ModelPlan{.page_size = 64, .page_bytes = 1000, .checkpoint_bytes = 77'777},
        ModelPlan{
            .page_size = 48, .page_bytes = 10, .window_page_bytes = 999, .window_pages = 5, .checkpoint_bytes = 9},
        ModelPlan{.page_size = 64, .window_page_bytes = 500, .window_pages = 16},
        ModelPlan{.page_size = 64, .checkpoint_bytes = 1000}, ModelPlan{.page_size = 64, .page_bytes = 1000}}) {
    for (const std::uint64_t bytes : {5'000, 100'000, 999'999, 12'345'678}) {
      for (std::uint64_t distance = 64; distance < 20'000; distance += 64) {
        const std::uint64_t tokens = plan.tokens_in(bytes, distance);
        ASSERT_GE(plan.tokens_in(bytes, distance + 64), tokens) << bytes << " bytes, every " << distance;
        const std::uint64_t used = plan.distance_of(distance), last = tokens % used;
        const std::uint64_t whole = tokens / used * plan.prefix_bytes(used, 1);
        ASSERT_LE(whole + (last > 0 ? plan.prefix_bytes(last, 1) : 0), bytes) << "every " << distance;
        ASSERT_GT(whole + plan.prefix_bytes(last + plan.page_size, 1), bytes) << "every " << distance;
      }
    }
  }
}

TEST(ModelPlan, APageHasOneRestorePointAtMost) {
  const ModelPlan plan{.page_size = 8192, .page_bytes = 1000, .checkpoint_bytes = 10};
  EXPECT_EQ(plan.distance_of(512), 8192u);
  EXPECT_EQ(plan.distance_of(20'000), 2 * 8192u);
  EXPECT_EQ(plan.prefix_bytes(1, 1), 1010u);
  EXPECT_EQ(plan.prefix_bytes(32768, 64), 4 * 1010u);
  EXPECT_EQ(plan.tokens_in(4 * 1010, 512), 32768u);
}

}  // namespace
}  // namespace larder::llama
