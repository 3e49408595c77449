// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/model_pools.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "engine/llama/blob_test_util.h"

namespace larder::llama {
namespace {

using blob_test::all_geometries;

ModelPools pools_of(const BlobGeometry& geometry, const ModelSettings& settings = {}) {
  auto pools = model_pools(geometry, settings);
  EXPECT_TRUE(pools) << pools.status().to_string();
  return pools.value_or({});
}

PageSpace space_of(const ModelPools& pools) {
  auto space = PageSpace::create(pools.space);
  EXPECT_TRUE(space) << space.status().to_string();
  return std::move(space).value();
}

TEST(ModelPools, EveryPartIsAPoolAndEverySpaceIsTaken) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    const ModelPools pools = pools_of(geometry, {.page_size = 4});
    (void)space_of(pools);
    EXPECT_EQ(pools.space.pools[pools.kv].page_bytes, geometry.full ? geometry.full->page_bytes(4) : 0u);
    EXPECT_EQ(pools.space.pools[pools.kv].policy, HitPolicy::kAllPages);
    ASSERT_EQ(pools.swa.has_value(), geometry.window.has_value());
    ASSERT_EQ(pools.state.has_value(), geometry.recurrent.has_value());
    if (pools.state) {
      EXPECT_EQ(pools.space.pools[*pools.state].trailing_pages, 1u);
      EXPECT_EQ(pools.space.pools[*pools.state].page_bytes, geometry.recurrent->checkpoint_bytes());
    }
    if (pools.swa) {
      const PoolDescription& swa = pools.space.pools[*pools.swa];
      EXPECT_EQ(swa.trailing_pages * (swa.page_bytes / geometry.window->token_bytes()), geometry.window_tokens);
    }
  }
}

TEST(ModelPools, WhatIsComputedInAnotherWayNeverMeets) {
  const BlobGeometry geometry = all_geometries()[7].geometry;  // all parts
  std::set<std::pair<Digest256, Digest256>> pages;             // namespace, fingerprint of the state
  const auto add = [&](const BlobGeometry& g, const ModelSettings& settings) {
    const ModelPools pools = pools_of(g, settings);
    const PageSpace space = space_of(pools);
    EXPECT_TRUE(pages.emplace(space.digest(), space.scope()->fingerprint(space.number_of(*pools.state))).second);
  };
  add(geometry, {});
  add(geometry, {.page_size = 32});
  Digest256 other;
  other.bytes[3] = 1;
  add(geometry, {.model = other});
  add(geometry, {.data = other});
  add(geometry, {.overrides = "rope_freq_base=10000"});
  add(geometry, {.adapter = "a"});
  add(geometry, {.salt = "a"});
  BlobGeometry types = geometry;
  types.full->values[1].type = 2;
  add(types, {});
  BlobGeometry window = geometry;
  window.window_tokens = 12;
  add(window, {});
}

TEST(ModelPools, PagesThatAreTooLargeAreRefused) {
  BlobGeometry geometry = all_geometries()[0].geometry;
  geometry.full->keys[0].bytes = std::uint64_t{1} << 29;
  const auto pools = model_pools(geometry, {});
  EXPECT_EQ(pools.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(pools.status().message().find("page_size"), std::string::npos);
  EXPECT_FALSE(model_pools(geometry, {.page_size = 0}));
}

}  // namespace
}  // namespace larder::llama
