// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/object_names.h"

#include <gtest/gtest.h>

#include <regex>

#include "storage/conformance/harness.h"

namespace larder::mooncake {
namespace {

const PageKey kKey = conformance::check_key(0, 1);

TEST(MooncakeNames, OfOnePageAreAlwaysTheSame) {
  StoreScope scope;
  for (std::size_t i = 0; i < 32; ++i) scope.namespace_digest.bytes[i] = static_cast<std::uint8_t>(i);
  Digest256 layout;
  layout.bytes.fill(0xab);
  scope.set_pool(PoolName::kDeepseekV4C4, layout);
  PageKey key;
  key.bytes.fill(0x01);
  EXPECT_EQ(object_name(scope, PoolName::kDeepseekV4C4, key),
            "larder1-000102030405060708090a0b0c0d0e0f-deepseek_v4_c4.abababababababababababababababab-"
            "0101010101010101010101010101010101010101010101010101010101010101");
}

TEST(MooncakeNames, DifferInEveryPartOfTheIdentity) {
  const auto scope = conformance::check_scope(0, 1), other = conformance::check_scope(0, 2);
  StoreScope other_layout = *scope;
  other_layout.set_pool(PoolName::kKv, kKey);
  const std::string name = object_name(*scope, PoolName::kKv, kKey);
  EXPECT_EQ(object_name(*scope, PoolName::kKv, kKey), name);
  EXPECT_NE(object_name(*other, PoolName::kKv, kKey), name);
  EXPECT_NE(object_name(*scope, PoolName::kSwa, kKey), name);
  EXPECT_NE(object_name(other_layout, PoolName::kKv, kKey), name);
  EXPECT_NE(object_name(*scope, PoolName::kKv, conformance::check_key(0, 2)), name);
  for (std::size_t pool = 0; pool < kPoolNumberCount; ++pool) {
    EXPECT_LE(object_name(*scope, static_cast<PoolName>(pool), kKey).size(), kMaxNameBytes);
  }
}

TEST(MooncakeNames, PatternsFindTheirScopeAndNothingElse) {
  const auto scope = conformance::check_scope(0, 1), other = conformance::check_scope(0, 2);
  const std::regex one(pattern_of(scope.get())), all(pattern_of(nullptr));
  const std::string name = object_name(*scope, PoolName::kKv, kKey), others = object_name(*other, PoolName::kKv, kKey);
  EXPECT_TRUE(std::regex_match(name, one));
  EXPECT_FALSE(std::regex_match(others, one));
  EXPECT_TRUE(std::regex_match(name, all) && std::regex_match(others, all));
  // As SGLang spells its own: a hash, the rank, which half; a tag of the operator's choice may stand before it.
  for (const std::string& theirs : {kKey.hex() + "_0_k", kKey.hex() + "__k", "tag_" + kKey.hex() + "_3_1_v",
                                    "tag_" + kKey.hex() + "_0_temporal", kKey.hex() + "_0_conv_1", group_name(name)}) {
    EXPECT_FALSE(std::regex_search(theirs, all)) << theirs;
  }
}

// Whatever tag an operator gives to SGLang, say "larder1-...": behind the last "_" its names have no "-", ours two.
TEST(MooncakeNames, NoTagMakesANameOfSGLangOurs) {
  const std::string name = object_name(*conformance::check_scope(0, 1), PoolName::kKv, kKey);
  const std::size_t at = name.rfind('_');
  const std::string tail = name.substr(at == std::string::npos ? 0 : at + 1);
  EXPECT_GE(std::count(tail.begin(), tail.end(), '-'), 1);
}

}  // namespace
}  // namespace larder::mooncake
