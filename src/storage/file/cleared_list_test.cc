// SPDX-License-Identifier: Apache-2.0
#include "storage/file/cleared_list.h"

#include <gtest/gtest.h>

namespace larder::file_store {
namespace {

Digest256 digest_of(std::uint16_t name) {
  Digest256 digest;
  digest.bytes[0] = static_cast<std::uint8_t>(name);
  digest.bytes[1] = static_cast<std::uint8_t>(name >> 8);
  return digest;
}

bool covers(const ClearedList& list, std::uint16_t name, std::uint64_t generation) {
  ListedPage page;
  page.identity.namespace_digest = digest_of(name);
  page.location.generation = generation;
  return list.covers(page);
}

TEST(ClearedList, CoversWhatWasWrittenBefore) {
  ClearedList list({{digest_of(1), 10}});
  EXPECT_TRUE(covers(list, 1, 9));
  EXPECT_FALSE(covers(list, 1, 10));
  EXPECT_FALSE(covers(list, 2, 9));
  ASSERT_TRUE(list.add(digest_of(2), 20));
  EXPECT_TRUE(covers(list, 2, 19));
  EXPECT_FALSE(covers(list, 1, 19));
  ASSERT_TRUE(list.add(digest_of(1), 30));
  EXPECT_TRUE(covers(list, 1, 29));
  EXPECT_EQ(list.entries().size(), 2u) << "one per namespace";
}

TEST(ClearedList, AClearOfAllStandsForThoseBefore) {
  ClearedList list({{digest_of(1), 10}});
  ASSERT_TRUE(list.add({}, 20));
  EXPECT_EQ(list.entries().size(), 1u);
  EXPECT_TRUE(covers(list, 7, 19));
  EXPECT_FALSE(covers(list, 1, 20));
  list.forget_settled(19);
  EXPECT_TRUE(covers(list, 7, 19));
  list.forget_settled(20);
  EXPECT_TRUE(list.entries().empty());
}

TEST(ClearedList, KnowsWhatASegmentKeeps) {
  ClearedList list({{digest_of(1), 10}, {digest_of(2), 30}, {{}, 20}});
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list.kept_by(0), 3u);
  EXPECT_EQ(list.kept_by(10), 2u);
  EXPECT_EQ(list.kept_by(20), 1u);
  EXPECT_EQ(list.kept_by(30), 0u);
  std::vector<std::uint64_t> generations;
  for (const Cleared& entry : list.entries()) generations.push_back(entry.generation);
  EXPECT_EQ(generations, (std::vector<std::uint64_t>{10, 20, 30})) << "a file of the same bytes each time";
  EXPECT_TRUE(covers(list, 1, 19)) << "by the clear of all";
  list.forget_settled(20);
  EXPECT_EQ(list.size(), 1u);
  EXPECT_FALSE(covers(list, 1, 5));
  EXPECT_TRUE(covers(list, 2, 29));
}

TEST(ClearedList, HoldsNoMoreThanTheFileDoes) {
  ClearedList list;
  std::uint64_t generation = 0;
  for (std::uint16_t name = 1; name <= kMaxCleared; ++name) ASSERT_TRUE(list.add(digest_of(name), ++generation));
  EXPECT_FALSE(list.add(digest_of(kMaxCleared + 1), ++generation));
  EXPECT_EQ(list.entries().size(), kMaxCleared);
  EXPECT_TRUE(list.add(digest_of(kMaxCleared), ++generation)) << "that one is in it";
  EXPECT_TRUE(list.add({}, ++generation));
}

}  // namespace
}  // namespace larder::file_store
