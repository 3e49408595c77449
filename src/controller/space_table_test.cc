// SPDX-License-Identifier: Apache-2.0
#include "controller/space_table.h"

#include <gtest/gtest.h>

#include <list>
#include <string>
#include <vector>

namespace larder {
namespace {

SpaceTable::Name name_of(std::uint32_t i) { return {"adapter", std::to_string(i)}; }

std::vector<std::uint32_t> idle(const SpaceTable& table) {
  std::vector<std::uint32_t> ids;
  for (const NamespaceId id : table.idle()) ids.push_back(id.v);
  return ids;
}

using Ids = std::vector<std::uint32_t>;

TEST(SpaceTable, IdleOnesStandInTheOrderOfTheirLastUse) {
  SpaceTable table;
  for (std::uint32_t i = 0; i < 4; ++i) table.add(name_of(i), NamespaceId(i), nullptr);
  EXPECT_EQ(idle(table), (Ids{0, 1, 2, 3}));
  {
    SpaceTable::Use first = table.use(NamespaceId(1));
    const SpaceTable::Use second = table.use(NamespaceId(1)), other = table.use(NamespaceId(0));
    EXPECT_EQ(idle(table), (Ids{2, 3}));
    first = SpaceTable::Use();
    EXPECT_EQ(idle(table), (Ids{2, 3})) << "the second use goes on";
  }
  EXPECT_EQ(idle(table), (Ids{2, 3, 0, 1}));
  table.put_last(NamespaceId(2));
  EXPECT_EQ(idle(table), (Ids{3, 0, 1, 2}));
}

TEST(SpaceTable, UsesMove) {
  SpaceTable table;
  table.add(name_of(0), NamespaceId(0), nullptr);
  table.add(name_of(1), NamespaceId(1), nullptr);
  SpaceTable::Use a = table.use(NamespaceId(0));
  SpaceTable::Use b = std::move(a);
  EXPECT_EQ(idle(table), Ids{1});
  b = table.use(NamespaceId(1));
  EXPECT_EQ(idle(table), Ids{0});
  b = SpaceTable::Use();
  EXPECT_EQ(idle(table), (Ids{0, 1}));
}

TEST(SpaceTable, ErasedOneIsForgottenAndItsIdUsedAgain) {
  SpaceTable table;
  table.add(name_of(0), NamespaceId(0), nullptr);
  EXPECT_EQ(table.find(name_of(0)), NamespaceId(0));
  {
    const SpaceTable::Use use = table.use(NamespaceId(0));
    table.erase(NamespaceId(0));
    EXPECT_EQ(table.size(), 1u) << "it is in use";
  }
  table.erase(NamespaceId(0));
  EXPECT_EQ(table.find(name_of(0)), std::nullopt);
  EXPECT_EQ(table.size(), 0u);
  table.add(name_of(1), NamespaceId(0), nullptr);
  EXPECT_EQ(table.find(name_of(1)), NamespaceId(0));
  EXPECT_EQ(idle(table), Ids{0});
}

TEST(SpaceTable, ARetiredOneHasNoNameAndWaitsUntilNobodyUsesIt) {
  SpaceTable table;
  table.add(name_of(0), NamespaceId(0), nullptr);
  table.add(name_of(1), NamespaceId(1), nullptr);
  SpaceTable::Use use = table.use(NamespaceId(0));
  for (const std::uint32_t i : {0, 1}) table.retire(NamespaceId(i));
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(idle(table), Ids{});
  EXPECT_EQ(table.find(name_of(0)), std::nullopt);
  EXPECT_EQ(table.name(NamespaceId(0)), name_of(0));
  EXPECT_EQ(table.retired(), std::list{NamespaceId(1)});
  table.add(name_of(0), NamespaceId(2), nullptr);
  table.erase(NamespaceId(0));
  EXPECT_TRUE(table.is_used(NamespaceId(0)));
  use = SpaceTable::Use();
  EXPECT_EQ(table.retired(), (std::list{NamespaceId(1), NamespaceId(0)}));
  for (const std::uint32_t i : {1, 0}) table.erase(NamespaceId(i));
  EXPECT_TRUE(table.retired().empty());
  EXPECT_EQ(table.find(name_of(0)), NamespaceId(2)) << "it is another's now";
  EXPECT_EQ(idle(table), Ids{2});
}

TEST(SpaceTable, ALongNameTakesAPlaceForEachPieceOfIt) {
  constexpr std::size_t kPlace = SpaceTable::kPlaceBytes;
  EXPECT_EQ(SpaceTable::places_of({"", ""}), 1u);
  EXPECT_EQ(SpaceTable::places_of({"a", std::string(kPlace - 1, 's')}), 1u);
  EXPECT_EQ(SpaceTable::places_of({"a", std::string(kPlace, 's')}), 2u);
  SpaceTable table;
  table.add(name_of(0), NamespaceId(0), nullptr);
  for (std::uint32_t i = 1; i < 3; ++i)
    table.add({std::to_string(i), std::string(4 * kPlace, 's')}, NamespaceId(i), nullptr);
  EXPECT_EQ(table.places(), 11u);
  table.retire(NamespaceId(1));
  EXPECT_EQ(table.places(), 6u);
  EXPECT_EQ(table.name(NamespaceId(1)).first, "1");
  for (std::uint32_t i = 0; i < 3; ++i) table.erase(NamespaceId(i));
  EXPECT_EQ(table.places(), 0u);
}

}  // namespace
}  // namespace larder
