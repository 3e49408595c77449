// SPDX-License-Identifier: Apache-2.0
#include "controller/request_table.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "base/rng.h"

namespace larder {
namespace {

// What a std::map would say, for ids that count up with gaps and values that stay where they are.
TEST(RequestTableTest, FindsWhatAMapFinds) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    RequestTable<std::shared_ptr<std::uint64_t>> table;
    std::map<std::uint64_t, std::shared_ptr<std::uint64_t>*> expected;
    std::uint64_t next = 1 + rng.below(1000);
    const auto alive = std::make_shared<std::uint64_t>(seed);
    for (int step = 0; step < 2000; ++step) {
      if (expected.empty() || rng.below(100) < 40 + seed % 20) {
        next += rng.below(3) == 0 ? rng.below(40) : 1;
        expected[next] = &table.add(next, alive);
        ++next;
      } else {
        // Mostly old ones, as requests end.
        auto at = expected.begin();
        std::advance(at, rng.below(3) == 0 ? rng.below(expected.size()) : 0);
        table.erase(at->first);
        expected.erase(at);
      }
      ASSERT_EQ(table.size(), expected.size()) << "seed " << seed;
      ASSERT_EQ(static_cast<std::size_t>(alive.use_count()), 1 + expected.size()) << "seed " << seed;
      const std::uint64_t id = rng.below(next + 2);
      const auto at = expected.find(id);
      ASSERT_EQ(table.find(id), at == expected.end() ? nullptr : at->second) << "seed " << seed << ", id " << id;
    }
    for (const auto& [id, value] : expected) ASSERT_EQ(table.find(id), value) << "seed " << seed;
    std::size_t seen = 0;
    table.for_each([&](const auto&) { ++seen; });
    EXPECT_EQ(seen, expected.size());
    table.clear();
    EXPECT_TRUE(table.empty());
    EXPECT_EQ(alive.use_count(), 1);
  }
}

TEST(RequestTableTest, WhatIsNotThereIsNotErased) {
  RequestTable<int> table;
  table.add(5, 1);
  table.erase(21);
  table.erase(7);
  ASSERT_NE(table.find(5), nullptr);
  EXPECT_EQ(*table.find(5), 1);
  EXPECT_EQ(table.find(21), nullptr);
  EXPECT_EQ(table.find(0), nullptr);
}

}  // namespace
}  // namespace larder
