// SPDX-License-Identifier: Apache-2.0
#include "controller/space_opener.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "model/presets.h"
#include "tree/tree_test_support.h"

namespace larder {
namespace {

// The opener of one rank, with its tree.
struct Rank {
  explicit Rank(std::uint32_t rank) : scope{.tp_rank = rank, .tp_size = 2} {}

  const ModelSpec model = preset_model("gdn-tiny").value();
  const NamespaceScope scope;
  tree_test::Ledger ledger;
  ManualClock clock;
  RadixTree tree{tree_config_for(model, EvictionPolicy::kValue, false), ledger};
  SpaceTable table;
  CacheCounters counters;
  Tenants tenants{{}, {model, nullptr, nullptr, tree, clock, nullptr}};
  SpaceOpener opener{8, {model, scope, tree, table, tenants, counters}};
};

// Nobody else writes what one without a group would leave to others.
TEST(SpaceOpener, OneWithoutAGroupWritesAllOfReplicatedPools) {
  for (const bool has_group : {false, true}) {
    Rank rank(1);
    SpaceOpener opener(8, {rank.model, rank.scope, rank.tree, rank.table, rank.tenants, rank.counters, has_group});
    const NamespaceId id = opener.open("", "").value();
    EXPECT_EQ(rank.table.scope(id)->ranks, has_group ? 2u : 1u);
  }
}

// The keys of ranks differ, since their bytes do; what they evict may not, so tables of hashes have to be alike.
TEST(SpaceOpener, PathsHaveTheSameHashOnAllRanks) {
  Rank first(0), second(1);
  std::vector<PathHash> seen;
  for (const auto& [adapter, salt] : {std::pair{"", ""}, {"a", ""}, {"", "a"}, {"a", "b"}}) {
    const NamespaceId a = first.opener.open(adapter, salt).value(), b = second.opener.open(adapter, salt).value();
    EXPECT_EQ(a, b);
    const NodeId root_a = first.tree.spaces().root(a), root_b = second.tree.spaces().root(b);
    EXPECT_NE(first.tree.keys().last(root_a), second.tree.keys().last(root_b));
    const PathHash hash = first.tree.keys().path_hash({root_a, 0});
    EXPECT_EQ(second.tree.keys().path_hash({root_b, 0}), hash);
    for (const PathHash& other : seen) EXPECT_NE(hash, other);
    seen.push_back(hash);
  }
}

std::size_t bytes_of_names(const SpaceTable& table) {
  std::size_t bytes = 0;
  for (const auto& [name, id] : table.names()) bytes += name.first.size() + name.second.size();
  return bytes;
}

// Whoever chooses long salts, and a new one for each request, takes no more memory than the limit says.
TEST(SpaceOpener, LongNamesAreBoundedByTheirBytes) {
  constexpr std::uint32_t kMost = 64;
  Rank rank(0);
  SpaceOpener opener(kMost, {rank.model, rank.scope, rank.tree, rank.table, rank.tenants, rank.counters});
  const std::string adapter(4000, 'a');
  std::size_t most = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string salt = std::to_string(i) + (i % 3 == 0 ? "" : std::string(4000, 's'));
    ASSERT_TRUE(opener.open(i % 3 == 1 ? adapter : "", salt).is_ok()) << i;
    most = std::max(most, bytes_of_names(rank.table));
  }
  EXPECT_LE(most, kMost * SpaceTable::kPlaceBytes);
  EXPECT_GT(most, kMost * SpaceTable::kPlaceBytes / 2);
  EXPECT_EQ(rank.counters.internal_errors, 0u);
}

TEST(SpaceOpener, OnlyWhatIdlesMakesWayForALongName) {
  Rank rank(0);  // has eight places
  std::vector<SpaceTable::Use> uses;
  for (int i = 0; i < 8; ++i) {
    const NamespaceId id = rank.opener.open("", std::to_string(i)).value();
    if (i > 0) uses.push_back(rank.table.use(id));
  }
  const std::string salt(2000, 's');
  EXPECT_EQ(rank.opener.open("", salt).status().code(), StatusCode::kOverloaded);
  uses.pop_back();
  EXPECT_TRUE(rank.opener.open("", salt).is_ok());
  uses.clear();
  EXPECT_TRUE(rank.opener.open(std::string(4096, 'a'), std::string(4096, 's')).is_ok()) << "the longest of all";
  EXPECT_EQ(rank.table.size(), 1u);
}

}  // namespace
}  // namespace larder
