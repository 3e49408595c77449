// SPDX-License-Identifier: Apache-2.0
// The model that a list of pools becomes, and the bytes of its identity.
#include "door/engine_connector.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

SpaceDescription hybrid() {
  SpaceDescription d;
  d.page_size = 16;
  d.identity = "hybrid revision 1";
  d.pools = {
      {.name = "k and v", .page_bytes = 100, .layout = "f16"},
      {.name = "index", .page_bytes = 10, .layout = "u8"},
      {.name = "near", .page_bytes = 50, .layout = "f16", .policy = HitPolicy::kTrailingPages, .trailing_pages = 3},
      {.name = "ssm", .page_bytes = 7, .layout = "f32", .policy = HitPolicy::kTrailingPages, .trailing_pages = 1},
      {.name = "conv", .page_bytes = 0, .layout = "", .policy = HitPolicy::kTrailingPages, .trailing_pages = 1}};
  for (PoolDescription& pool : d.pools) std::replace(pool.name.begin(), pool.name.end(), ' ', '-');
  return d;
}

TEST(EngineModel, PoolsBecomeComponents) {
  const EngineModel model = EngineModel::create(hybrid()).value();
  EXPECT_EQ(model.numbers, (std::vector<PoolName>{PoolName::kKv, PoolName::kIndexer, PoolName::kSwa, PoolName::kMamba,
                                                  PoolName::kDeepseekV4C4}));
  for (std::size_t i = 0; i < model.numbers.size(); ++i) EXPECT_EQ(model.index_of(model.numbers[i]), i);
  EXPECT_EQ(model.spec.anchor(ComponentKind::kFull).name, PoolName::kKv);
  EXPECT_EQ(model.spec.pools_of(ComponentKind::kFull).size(), 2u);
  EXPECT_EQ(model.spec.pools_of(ComponentKind::kFull).back()->name, PoolName::kKv) << "the anchor comes last";
  EXPECT_EQ(model.spec.anchor(ComponentKind::kSwa).page_bytes(), 50u);
  EXPECT_EQ(model.spec.anchor(ComponentKind::kMamba).page_bytes(), 7u);
  EXPECT_EQ(model.spec.find_pool(PoolName::kDeepseekV4C4)->page_bytes(), 0u);
  EXPECT_EQ(model.spec.window_pages(), 3u);
  EXPECT_EQ(model.spec.window_pages_at(2), 2u);
}

// Rule 4: whatever gives bytes their meaning is in the identity. (docs/formats.md 3.2; a new value is a new version.)
TEST(EngineModel, IdentityIsGolden) {
  const auto digest = [](const SpaceDescription& d) {
    return namespace_digest(EngineModel::create(d).value().spec, NamespaceScope{}).hex();
  };
  const std::string golden = digest(hybrid());
  EXPECT_EQ(golden, "f9bc0bfbc6c1a85486db7bee06b51319dbc86970451fcf0698835a7789aadf44");
  std::vector<SpaceDescription> others(7, hybrid());
  others[0].identity += " ";
  others[1].page_size = 32;
  others[2].pools[1].name = "indices";
  others[3].pools[1].layout = "i8";
  others[4].pools[2].trailing_pages = 4;
  others[5].pools.pop_back();
  others[6].pools[0].is_replicated = true;
  for (const SpaceDescription& other : others) EXPECT_NE(digest(other), golden);
}

TEST(EngineModel, AsManyPoolsAsThereAreNumbers) {
  SpaceDescription d = hybrid();
  for (int i = 0; d.pools.size() < kPoolNameCount; ++i) {
    d.pools.push_back({.name = "more" + std::to_string(i), .page_bytes = 1, .layout = "u8"});
  }
  const Result<EngineModel> most = EngineModel::create(d);
  ASSERT_TRUE(most.is_ok()) << most.status().to_string();
  std::vector<PoolName> numbers = most->numbers;
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
  d.pools.push_back({.name = "one-too-many", .page_bytes = 1, .layout = "u8"});
  EXPECT_EQ(EngineModel::create(d).status().code(), StatusCode::kUnsupported);
  // Without windows and states, their numbers stay free.
  SpaceDescription plain = hybrid();
  plain.pools.resize(1);
  for (int i = 0; i < 21; ++i) plain.pools.push_back({.name = "p" + std::to_string(i), .page_bytes = 1, .layout = ""});
  EXPECT_EQ(EngineModel::create(plain).status().code(), StatusCode::kUnsupported);
  plain.pools.pop_back();
  EXPECT_TRUE(EngineModel::create(plain).is_ok());
}

}  // namespace
}  // namespace larder
