// SPDX-License-Identifier: Apache-2.0
#include "door/page_space.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace larder {
namespace {

SpaceDescription described() {
  SpaceDescription out;
  out.page_size = 64;
  out.identity = "model";
  out.tp_size = 2;
  out.pools = {{"kv", 4096, "bf16", HitPolicy::kAllPages, 0, false},
               {"indexer", 512, "u8", HitPolicy::kAllPages, 0, true},
               {"mamba", 900, "f32", HitPolicy::kTrailingPages, 1, false}};
  return out;
}

PageSpace space_of(const SpaceDescription& description) { return PageSpace::create(description).value(); }

// What the identity of pool i's pages consists of.
std::pair<Digest256, Digest256> identity(const SpaceDescription& description, std::size_t pool) {
  const PageSpace space = space_of(description);
  return {space.digest(), space.scope()->fingerprint(space.number_of(pool))};
}

TEST(PageSpaceTest, WhateverTellsPagesApartIsInTheirIdentity) {
  const std::vector<std::pair<const char*, std::function<void(SpaceDescription&)>>> changes = {
      {"identity", [](auto& s) { s.identity = "model2"; }},
      {"page_size", [](auto& s) { s.page_size = 32; }},
      {"adapter", [](auto& s) { s.adapter = "lora"; }},
      {"salt", [](auto& s) { s.salt = "tenant"; }},
      {"pp_rank",
       [](auto& s) {
         s.pp_size = 2;
         s.pp_rank = 1;
       }},
      {"cp_rank",
       [](auto& s) {
         s.cp_size = 2;
         s.cp_rank = 1;
       }},
      {"tp_rank", [](auto& s) { s.tp_rank = 1; }},
      {"tp_size", [](auto& s) { s.tp_size = 4; }},
      {"layout", [](auto& s) { s.pools[0].layout = "fp16"; }},
      {"bytes", [](auto& s) { s.pools[0].page_bytes = 8192; }},
      {"replicated", [](auto& s) { s.pools[0].is_replicated = true; }},
  };
  std::set<std::pair<Digest256, Digest256>> seen{identity(described(), 0)};
  for (const auto& [name, change] : changes) {
    SpaceDescription changed = described();
    change(changed);
    EXPECT_TRUE(seen.insert(identity(changed, 0)).second) << name;
  }
}

TEST(PageSpaceTest, ReplicatedPoolsAreSharedByRanksAndOthersAreNot) {
  SpaceDescription other = described();
  other.tp_rank = 1;
  EXPECT_NE(identity(described(), 0), identity(other, 0));
  EXPECT_EQ(identity(described(), 1), identity(other, 1));
  EXPECT_NE(identity(described(), 2), identity(other, 2));
}

// SGLang lets only one rank put what all have, others perhaps each: no rank leaves a page to another.
TEST(PageSpaceTest, WhoeverPutsAReplicatedPageWritesIt) {
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    SpaceDescription description = described();
    description.tp_rank = rank;
    description.tp_size = 4;
    const PageSpace space = space_of(description);
    for (std::uint8_t byte = 0; byte < 16; ++byte) {
      PageKey key{};
      key.bytes.fill(byte);
      EXPECT_TRUE(space.scope()->is_writer(space.number_of(1), key)) << "rank " << rank;
    }
  }
}

TEST(PageSpaceTest, APoolsPagesDependOnNoOtherPool) {
  SpaceDescription more = described();
  more.pools.push_back({"draft", 64, "bf16", HitPolicy::kAllPages, 0, false});
  more.pools.push_back({"an_engines_own.pool-7", 64, "bf16", HitPolicy::kAllPages, 0, false});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(identity(described(), i), identity(more, i));
  EXPECT_EQ(space_of(described()).number_of(2), space_of(more).number_of(2));
}

TEST(PageSpaceTest, KnownNamesKeepTheirNumbersAndOthersGetOnesOfTheirOwn) {
  SpaceDescription description = described();
  description.pools.resize(1);
  for (std::size_t i = 0; i < kPoolNumberCount - kFirstOpenPool; ++i) {
    description.pools.push_back({"own" + std::to_string(i), 8, "x", HitPolicy::kAllPages, 0, false});
  }
  const PageSpace space = space_of(description);
  EXPECT_EQ(space.number_of(0), PoolName::kKv);
  std::set<PoolName> numbers;
  for (std::size_t i = 1; i < description.pools.size(); ++i) {
    EXPECT_GE(static_cast<std::size_t>(space.number_of(i)), kFirstOpenPool);
    EXPECT_LT(static_cast<std::size_t>(space.number_of(i)), kPoolNumberCount);
    EXPECT_TRUE(numbers.insert(space.number_of(i)).second);
  }
  description.pools.push_back({"one_too_many", 8, "x", HitPolicy::kAllPages, 0, false});
  EXPECT_EQ(PageSpace::create(description).status().code(), StatusCode::kInvalidArgument);
}

TEST(PageSpaceTest, WrongDescriptionsAreRefusedInWords) {
  const std::vector<std::pair<const char*, std::function<void(SpaceDescription&)>>> wrong = {
      {"page_size is 0", [](auto& s) { s.page_size = 0; }},
      {"identity is empty", [](auto& s) { s.identity.clear(); }},
      {"longer than 1 MiB", [](auto& s) { s.salt.assign(kMaxSpaceTextBytes + 1, 'x'); }},
      {"tp_rank is 2 of 2", [](auto& s) { s.tp_rank = 2; }},
      {"1 to 55 pools, not 0", [](auto& s) { s.pools.clear(); }},
      {"a name has 1 to 63 characters", [](auto& s) { s.pools[1].name = "K V"; }},
      {"a name has 1 to 63 characters", [](auto& s) { s.pools[1].name.assign(64, 'a'); }},
      {"less than 4 GiB", [](auto& s) { s.pools[1].page_bytes = std::uint64_t{1} << 32; }},
      {"trailing_pages of 1 or more", [](auto& s) { s.pools[2].trailing_pages = 0; }},
      {"say TRAILING_PAGES, or 0", [](auto& s) { s.pools[2].policy = HitPolicy::kAllPages; }},
      {"two pools are called 'kv'", [](auto& s) { s.pools[2].name = "kv"; }},
      {"is the anchor", [](auto& s) { std::swap(s.pools[0], s.pools[2]); }},
  };
  for (const auto& [words, change] : wrong) {
    SpaceDescription description = described();
    change(description);
    const Result<PageSpace> made = PageSpace::create(description);
    ASSERT_FALSE(made.is_ok()) << words;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(made.status().message().find(words), std::string::npos) << made.status().message();
  }
}

}  // namespace
}  // namespace larder
