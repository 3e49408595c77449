// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_index.h"
#include "storage/file/page_index_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace larder::file_store {
namespace {

constexpr PageKey kNoParent{};

PageKey key_of(std::uint64_t number) {
  Rng rng(number + 1);
  PageKey key;
  for (std::size_t i = 0; i < 4; ++i) store_le(key.bytes.data() + 8 * i, rng.next_u64());
  return key;
}

PageIdentity identity_of(std::uint8_t name, PoolName pool = PoolName::kKv, std::uint32_t layout = 1) {
  PageIdentity identity;
  identity.namespace_digest.bytes[5] = name;
  store_le(identity.layout_fingerprint.bytes.data(), layout);
  identity.pool = pool;
  return identity;
}

PageLocation at(SegmentId segment, std::uint64_t offset, std::uint32_t bytes, std::uint64_t generation) {
  return {segment, offset, bytes, generation, {generation * 3, generation * 5}};
}

// An index with one namespace and pool, for tests of the chain. Pages are numbers, and 64 bytes long.
struct Chains {
  PageIndex index;
  PageIdentity identity = identity_of(1);
  std::uint64_t generation = 0;

  void insert(std::uint64_t number, const PageKey& parent, SegmentId segment = 1) {
    ++generation;
    ASSERT_TRUE(index.insert(identity, key_of(number), parent, at(segment, 64 * generation, 64, generation)).is_ok());
  }
  // first <- ... <- last
  void insert_chain(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i <= last; ++i) insert(i, i == first ? kNoParent : key_of(i - 1));
  }
  [[nodiscard]] bool has(std::uint64_t number) const {
    return index.contains(index.find_identity(identity), key_of(number));
  }
  void touch(std::uint64_t number) { index.touch(index.find_identity(identity), key_of(number)); }
  bool erase(std::uint64_t number) {
    PageLocation location;
    const IdentityId id = index.find_identity(identity);
    return index.find(id, key_of(number), location) && index.erase(id, key_of(number), location.generation);
  }
  // The numbers in the order they go, until the index is empty.
  std::vector<std::uint64_t> evict_all(std::uint64_t numbers) {
    std::vector<std::uint64_t> order;
    while (index.size() > 0) {
      std::vector<bool> before(numbers);
      for (std::uint64_t i = 0; i < numbers; ++i) before[i] = has(i);
      const PageIndex::Evicted evicted = index.evict_coldest();
      EXPECT_EQ(evicted.pages, 1u);
      EXPECT_EQ(evicted.payload_bytes, 64u);
      EXPECT_TRUE(index.check_invariants().is_ok()) << index.check_invariants().message();
      for (std::uint64_t i = 0; i < numbers; ++i) {
        if (before[i] && !has(i)) order.push_back(i);
      }
      if (evicted.pages == 0) break;
    }
    return order;
  }
  // The parent that the cleaner would write down for this page.
  [[nodiscard]] PageKey parent_of(std::uint64_t number) const {
    std::vector<ListedPage> pages;
    for (SegmentId segment = 1; pages.size() < index.size() && segment < 10; ++segment) {
      index.list_segment(segment, ~std::size_t{0}, pages);
    }
    PageKey parent = key_of(999'999);
    for (const ListedPage& page : pages) {
      if (page.key == key_of(number)) parent = page.parent;
    }
    return parent;
  }
};

using Order = std::vector<std::uint64_t>;

// --- pages ---

TEST(PageIndex, NewerGenerationsWin) {
  PageIndex index;
  const PageIdentity identity = identity_of(1);
  EXPECT_EQ(index.find_identity(identity), 0u);
  ASSERT_TRUE(index.insert(identity, key_of(1), kNoParent, at(1, 64, 100, 5)).is_ok());
  const IdentityId id = index.find_identity(identity);
  EXPECT_EQ(index.live_bytes(1), 128u) << "rounded up";
  ASSERT_TRUE(index.insert(identity, key_of(1), kNoParent, at(2, 128, 200, 4)).is_ok()) << "older: no change";
  ASSERT_TRUE(index.insert(identity, key_of(1), kNoParent, at(2, 128, 200, 5)).is_ok()) << "the same: no change";
  PageLocation found;
  ASSERT_TRUE(index.find(id, key_of(1), found));
  EXPECT_EQ(found, at(1, 64, 100, 5));
  ASSERT_TRUE(index.insert(identity, key_of(1), kNoParent, at(3, 256, 300, 6)).is_ok());
  ASSERT_TRUE(index.find(id, key_of(1), found));
  EXPECT_EQ(found, at(3, 256, 300, 6));
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.payload_bytes(), 300u);
  EXPECT_EQ(index.live_bytes(1), 0u);
  EXPECT_EQ(index.live_pages(1), 0u);
  EXPECT_EQ(index.live_bytes(3), 320u);
  EXPECT_EQ(index.live_pages(3), 1u);
  EXPECT_EQ(index.drop_segment(1), 0u) << "it moved to segment 3";
  EXPECT_FALSE(index.erase(id, key_of(1), 5)) << "another generation";
  EXPECT_TRUE(index.erase(id, key_of(1), 6));
  EXPECT_FALSE(index.erase(id, key_of(1), 6));
  EXPECT_EQ(index.identities(), 0u) << "identities without pages go";
  EXPECT_EQ(index.find_identity(identity), 0u);
  EXPECT_TRUE(index.check_invariants().is_ok());
}

TEST(PageIndex, AnEmptyIndexHasNothing) {
  PageIndex index;
  PageLocation found;
  Presence present(3, true);
  const std::vector<PageKey> keys = {key_of(1), key_of(2)};
  index.contains(0, keys, present);
  EXPECT_EQ(present, (Presence{false, false, true})) << "what is beyond the keys stays";
  EXPECT_FALSE(index.contains(0, key_of(1)));
  EXPECT_FALSE(index.find(0, key_of(1), found));
  EXPECT_FALSE(index.erase(0, key_of(1), 0));
  index.touch(0, key_of(1));
  EXPECT_EQ(index.evict_coldest().pages, 0u);
  EXPECT_EQ(index.drop_segment(1), 0u);
  EXPECT_EQ(drop_namespace(index, identity_of(1).namespace_digest), 0u);
  EXPECT_TRUE(index.check_invariants().is_ok());
}

TEST(PageIndex, NamespacesPoolsAndLayoutsAreApart) {
  PageIndex index;
  const PageIdentity kv = identity_of(1), mamba = identity_of(1, PoolName::kMamba);
  const PageIdentity other_layout = identity_of(1, PoolName::kKv, 2), other_namespace = identity_of(2);
  ASSERT_TRUE(index.insert(kv, key_of(1), kNoParent, at(1, 0, 1, 1)).is_ok());
  ASSERT_TRUE(index.insert(mamba, key_of(2), kNoParent, at(1, 64, 1, 2)).is_ok());
  ASSERT_TRUE(index.insert(other_layout, key_of(3), kNoParent, at(1, 128, 1, 3)).is_ok());
  ASSERT_TRUE(index.insert(other_namespace, key_of(4), kNoParent, at(1, 192, 1, 4)).is_ok());
  const PageIdentity all[] = {kv, mamba, other_layout, other_namespace};
  for (std::uint64_t i = 0; i < 4; ++i) {
    for (std::uint64_t key = 1; key <= 4; ++key) {
      PageLocation found;
      const IdentityId id = index.find_identity(all[i]);
      EXPECT_EQ(index.contains(id, key_of(key)), key == i + 1);
      EXPECT_EQ(index.find(id, key_of(key), found), key == i + 1);
    }
  }
  EXPECT_EQ(index.identities(), 4u);
}

// A node tells up to 31 identities of a namespace apart by a bit each; the others share one.
TEST(PageIndex, FortyIdentitiesShareANode) {
  PageIndex index;
  const auto identity = [](std::uint32_t i) { return identity_of(1, PoolName::kKv, i); };
  const auto number = [&](std::uint32_t i) { return index.find_identity(identity(i)); };
  // Key 1 has the even ones, key 2 has all.
  for (std::uint32_t i = 0; i < 40; ++i) {
    if (i % 2 == 0) {
      ASSERT_TRUE(index.insert(identity(i), key_of(1), kNoParent, at(1, 0, 1, i + 1)).is_ok());
    }
    ASSERT_TRUE(index.insert(identity(i), key_of(2), key_of(1), at(1, 0, 1, i + 1)).is_ok());
  }
  ASSERT_TRUE(index.check_invariants().is_ok());
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(index.contains(number(i), key_of(1)), i % 2 == 0) << i;
    Presence present(2);
    index.contains(number(i), std::vector<PageKey>{key_of(1), key_of(2)}, present);
    EXPECT_EQ(present, (Presence{i % 2 == 0, true})) << i;
  }
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(index.erase(number(i), key_of(2), i + 1));
    ASSERT_TRUE(index.check_invariants().is_ok()) << i;
    EXPECT_EQ(number(i) != 0, i % 2 == 0);
  }
  EXPECT_EQ(index.size(), 20u);
  EXPECT_EQ(index.evict_coldest().pages, 20u) << "all of a key go together";
  EXPECT_EQ(index.identities(), 0u);
  EXPECT_TRUE(index.check_invariants().is_ok());
}

TEST(PageIndex, ABatchSaysWhatSingleLookupsSay) {
  PageIndex index;
  const PageIdentity kv = identity_of(1), mamba = identity_of(1, PoolName::kMamba);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(index.insert(i % 5 == 0 ? mamba : kv, key_of(i), kNoParent, at(1, 64 * i, 1, i + 1)).is_ok());
  }
  const IdentityId id = index.find_identity(kv);
  Rng rng(3);
  for (std::size_t count = 0; count <= 300; ++count) {
    std::vector<PageKey> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(key_of(rng.below(6000)));
    Presence present(count, rng.chance(1, 2));
    index.contains(id, keys, present);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(present[i], index.contains(id, keys[i])) << i << " of " << count;
  }
}

TEST(PageIndex, MovesWhatStillLiesWhereItWas) {
  PageIndex index;
  const PageIdentity identity = identity_of(1);
  ASSERT_TRUE(index.insert(identity, key_of(1), kNoParent, at(1, 64, 100, 5)).is_ok());
  EXPECT_FALSE(index.move(identity, key_of(2), at(1, 64, 100, 5), at(2, 0, 100, 5))) << "no such page";
  EXPECT_FALSE(index.move(identity_of(2), key_of(1), at(1, 64, 100, 5), at(2, 0, 100, 5))) << "no such identity";
  EXPECT_FALSE(index.move(identity, key_of(1), at(1, 128, 100, 5), at(2, 0, 100, 5))) << "lies elsewhere";
  EXPECT_FALSE(index.move(identity, key_of(1), at(2, 64, 100, 5), at(2, 0, 100, 5))) << "lies elsewhere";
  EXPECT_EQ(index.live_pages(2), 0u);
  EXPECT_TRUE(index.move(identity, key_of(1), at(1, 64, 100, 5), at(2, 192, 100, 5)));
  PageLocation found;
  ASSERT_TRUE(index.find(index.find_identity(identity), key_of(1), found));
  EXPECT_EQ(found, at(2, 192, 100, 5));
  EXPECT_EQ(index.live_bytes(1), 0u);
  EXPECT_EQ(index.live_bytes(2), 128u);
  EXPECT_EQ(index.payload_bytes(), 100u);
  EXPECT_TRUE(index.check_invariants().is_ok());
}

TEST(PageIndex, AMoveIsNotAUse) {
  Chains chains;
  chains.insert(0, kNoParent);
  chains.insert(1, kNoParent);
  EXPECT_TRUE(chains.index.move(chains.identity, key_of(0), at(1, 64, 64, 1), at(2, 0, 64, 1)));
  EXPECT_EQ(chains.evict_all(2), (Order{0, 1}));
}

TEST(PageIndex, ListsASegmentWithParents) {
  PageIndex index;
  const PageIdentity kv = identity_of(1), mamba = identity_of(2, PoolName::kMamba);
  ASSERT_TRUE(index.insert(kv, key_of(1), kNoParent, at(1, 64, 10, 1)).is_ok());
  ASSERT_TRUE(index.insert(kv, key_of(2), key_of(1), at(1, 128, 20, 2)).is_ok());
  ASSERT_TRUE(index.insert(mamba, key_of(2), key_of(7), at(1, 192, 30, 3)).is_ok());
  ASSERT_TRUE(index.insert(kv, key_of(3), key_of(2), at(2, 64, 40, 4)).is_ok());
  std::vector<ListedPage> listed;
  index.list_segment(1, 2, listed);
  EXPECT_EQ(listed.size(), 2u);
  listed.clear();
  index.list_segment(1, 100, listed);
  index.list_segment(9, 100, listed);
  ASSERT_EQ(listed.size(), 3u);
  std::sort(listed.begin(), listed.end(),
            [](const auto& a, const auto& b) { return a.location.generation < b.location.generation; });
  EXPECT_EQ(listed[0].identity, kv);
  EXPECT_EQ(listed[0].key, key_of(1));
  EXPECT_TRUE(listed[0].parent.is_zero());
  EXPECT_EQ(listed[0].location, at(1, 64, 10, 1));
  EXPECT_EQ(listed[1].parent, key_of(1));
  EXPECT_EQ(listed[2].identity, mamba);
  EXPECT_EQ(listed[2].parent, key_of(7)) << "not stored, and known all the same";
}

// What is unlinked is not found, and goes bit by bit; what comes meanwhile under its name is something else.
TEST(PageIndex, AnUnlinkedNamespaceGoesBitByBit) {
  PageIndex index;
  const PageIdentity gone = identity_of(1), stays = identity_of(2);
  for (std::uint64_t i = 0; i < 300; ++i) {
    const PageKey parent = i < 2 ? kNoParent : key_of(i - 2);
    const PageLocation where = at(static_cast<SegmentId>(1 + i / 100), 0, 10, 1);
    ASSERT_TRUE(index.insert(i % 2 == 0 ? gone : stays, key_of(i), parent, where).is_ok());
  }
  index.unlink_namespace(gone.namespace_digest);
  EXPECT_EQ(index.unlinked_pages(), 150u);
  EXPECT_EQ(index.find_identity(gone), 0u);
  EXPECT_EQ(index.identities(), 1u);
  ASSERT_TRUE(index.check_invariants().is_ok());
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(index.insert(gone, key_of(i * 2), kNoParent, at(4, 0, 10, 2)).is_ok());
  }
  ASSERT_TRUE(index.check_invariants().is_ok()) << "the same keys, old and new";
  index.drop_unlinked_of(2);
  EXPECT_EQ(index.unlinked_pages(), 100u);
  EXPECT_EQ(index.live_pages(2), 50u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(index.evict_coldest().pages, 1u) << "old ones may be evicted, too";
  ASSERT_TRUE(index.check_invariants().is_ok());
  int steps = 1;
  for (; index.drop_unlinked(16); ++steps) ASSERT_TRUE(index.check_invariants().is_ok()) << steps;
  EXPECT_GE(steps, 300 / 16) << "no step takes more than its share";
  EXPECT_EQ(index.unlinked_pages(), 0u);
  ASSERT_TRUE(index.check_invariants().is_ok());
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(index.contains(index.find_identity(gone), key_of(i * 2))) << i;
  EXPECT_EQ(drop_namespace(index, gone.namespace_digest), 20u);
  EXPECT_EQ(drop_namespace(index, gone.namespace_digest), 0u);
  EXPECT_FALSE(index.drop_unlinked(1)) << "there is nothing to do";
  EXPECT_TRUE(index.check_invariants().is_ok());
}

TEST(PageIndex, DropsSegmentsAndNamespaces) {
  PageIndex index;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const PageIdentity identity = identity_of(static_cast<std::uint8_t>(1 + i % 3));
    const PageKey parent = i < 3 ? kNoParent : key_of(i - 3);
    ASSERT_TRUE(index.insert(identity, key_of(i), parent, at(static_cast<SegmentId>(1 + i / 100), 0, 10, 1)).is_ok());
  }
  EXPECT_EQ(index.drop_segment(2), 100u);
  EXPECT_EQ(index.drop_segment(2), 0u);
  ASSERT_TRUE(index.check_invariants().is_ok());
  EXPECT_EQ(drop_namespace(index, identity_of(2).namespace_digest), 66u);
  EXPECT_EQ(drop_namespace(index, identity_of(2).namespace_digest), 0u);
  ASSERT_TRUE(index.check_invariants().is_ok());
  EXPECT_EQ(index.size(), 134u);
  EXPECT_EQ(index.payload_bytes(), 1340u);
  EXPECT_EQ(index.identities(), 2u);
  EXPECT_EQ(index.find_identity(identity_of(2)), 0u);
  index.clear();
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(index.payload_bytes(), 0u);
  EXPECT_EQ(index.identities(), 0u);
  EXPECT_EQ(index.memory_bytes(), 0u);
  ASSERT_TRUE(index.insert(identity_of(1), key_of(1), kNoParent, at(1, 0, 10, 1)).is_ok());
  EXPECT_EQ(index.size(), 1u);
}

// --- who goes first ---

TEST(PageIndex, TailsGoBeforeHeads) {
  Chains chains;
  chains.insert_chain(0, 4);
  EXPECT_EQ(chains.evict_all(5), (Order{4, 3, 2, 1, 0}));
}

//   0 <- 1 <- 2 <- 3
//          <- 4 <- 5      and alone: 6
TEST(PageIndex, BranchesGoByLastUseAndTheTrunkAfterThem) {
  const auto build = [](Chains& chains) {
    chains.insert_chain(0, 3);
    chains.insert(4, key_of(1));
    chains.insert(5, key_of(4));
    chains.insert(6, kNoParent);
  };
  Chains untouched;
  build(untouched);
  // The trunk counts as used when its last tail (5) was; 6 was used later.
  EXPECT_EQ(untouched.evict_all(7), (Order{3, 2, 5, 4, 1, 0, 6}));
  Chains touched;
  build(touched);
  touched.touch(3);
  // 2 and what is before it count as used when 3 was, after 6.
  EXPECT_EQ(touched.evict_all(7), (Order{5, 4, 6, 3, 2, 1, 0}));
  Chains trunk;
  build(trunk);
  trunk.touch(1);
  // The use of 1 is later than that of all tails, but does not help them.
  EXPECT_EQ(trunk.evict_all(7), (Order{3, 2, 5, 4, 6, 1, 0}));
}

TEST(PageIndex, AParentCountsAsUsedWhenItsErasedChildWas) {
  Chains chains;
  chains.insert_chain(0, 1);
  chains.insert(2, kNoParent);
  chains.touch(1);
  EXPECT_TRUE(chains.erase(1));
  EXPECT_EQ(chains.evict_all(3), (Order{2, 0}));
}

TEST(PageIndex, AReplacementIsAUseAndARefusedOneIsNot) {
  Chains chains;
  for (std::uint64_t i = 0; i < 3; ++i) chains.insert(i, kNoParent);
  chains.insert(0, kNoParent);
  ASSERT_TRUE(chains.index.insert(chains.identity, key_of(1), kNoParent, at(5, 64, 64, 1)).is_ok());
  chains.touch(77);
  EXPECT_EQ(chains.evict_all(3), (Order{1, 2, 0}));
}

TEST(PageIndex, AKeyGoesWithAllItsPools) {
  PageIndex index;
  const PageIdentity kv = identity_of(1), indexer = identity_of(1, PoolName::kIndexer);
  ASSERT_TRUE(index.insert(kv, key_of(1), kNoParent, at(1, 0, 100, 1)).is_ok());
  ASSERT_TRUE(index.insert(kv, key_of(2), kNoParent, at(1, 0, 100, 2)).is_ok());
  ASSERT_TRUE(index.insert(indexer, key_of(1), kNoParent, at(2, 0, 10, 3)).is_ok());
  EXPECT_EQ(index.evict_coldest().pages, 1u) << "a use of one pool is a use of the key";
  EXPECT_FALSE(index.contains(index.find_identity(kv), key_of(2)));
  const PageIndex::Evicted both = index.evict_coldest();
  EXPECT_EQ(both.pages, 2u);
  EXPECT_EQ(both.payload_bytes, 110u);
  EXPECT_EQ(index.evict_coldest().pages, 0u);
  EXPECT_TRUE(index.check_invariants().is_ok());
}

// --- ghosts ---

TEST(PageIndex, AGhostIsNoPageAndHoldsItsChildrenTogether) {
  Chains chains;
  chains.insert(2, key_of(1));  // 1 is a ghost
  chains.insert(3, key_of(2));
  EXPECT_EQ(chains.index.size(), 2u);
  EXPECT_FALSE(chains.has(1));
  EXPECT_EQ(chains.parent_of(2), key_of(1));
  chains.touch(1);
  EXPECT_FALSE(chains.erase(1));
  ASSERT_TRUE(chains.index.check_invariants().is_ok());
  chains.insert(1, key_of(0));  // and now it is not, but 0 is
  EXPECT_TRUE(chains.has(1));
  EXPECT_EQ(chains.parent_of(1), key_of(0));
  ASSERT_TRUE(chains.index.check_invariants().is_ok());
  EXPECT_EQ(chains.evict_all(4), (Order{3, 2, 1}));
}

TEST(PageIndex, AParentMayComeLater) {
  Chains chains;
  chains.insert(1, kNoParent);
  chains.insert(0, kNoParent);
  EXPECT_TRUE(chains.parent_of(1).is_zero());
  chains.insert(1, key_of(0));  // a new generation that knows
  EXPECT_EQ(chains.parent_of(1), key_of(0));
  chains.insert(1, key_of(9));  // another parent is not believed
  chains.insert(1, kNoParent);  // not knowing changes nothing
  EXPECT_EQ(chains.parent_of(1), key_of(0));
  chains.touch(0);
  EXPECT_EQ(chains.evict_all(2), (Order{1, 0}));
}

TEST(PageIndex, APageErasedInTheMiddleLeavesAGhost) {
  Chains chains;
  chains.insert_chain(0, 4);
  chains.insert(5, kNoParent);
  EXPECT_TRUE(chains.erase(2));
  EXPECT_FALSE(chains.has(2));
  EXPECT_EQ(chains.parent_of(3), key_of(2));
  ASSERT_TRUE(chains.index.check_invariants().is_ok());
  // 1 is a tail now; it counts as used when 2 was.
  chains.touch(0);
  EXPECT_EQ(chains.index.evict_coldest().pages, 1u);
  EXPECT_FALSE(chains.has(1));
  // 2 comes back, and with it the link to 1, a ghost in its turn.
  chains.insert(2, key_of(1));
  EXPECT_EQ(chains.parent_of(2), key_of(1));
  ASSERT_TRUE(chains.index.check_invariants().is_ok());
  EXPECT_EQ(chains.evict_all(6), (Order{4, 3, 5, 0, 2}));
}

// A chain that grows at its tail and loses its head for ever must not leave a ghost per lost page.
TEST(PageIndex, GhostsDoNotPileUp) {
  Chains chains;
  chains.insert(0, kNoParent);
  std::size_t memory = 0;
  for (std::uint64_t i = 1; i <= 100'000; ++i) {
    chains.insert(i, key_of(i - 1));
    ASSERT_TRUE(chains.erase(i - 1));
    if (i == 5000) memory = chains.index.memory_bytes();
  }
  EXPECT_EQ(chains.index.size(), 1u);
  EXPECT_EQ(chains.index.memory_bytes(), memory);
  EXPECT_TRUE(chains.index.check_invariants().is_ok());
}

// --- absurd links ---

TEST(PageIndex, AKeyIsNotItsOwnParent) {
  Chains chains;
  chains.insert(0, key_of(0));
  EXPECT_TRUE(chains.parent_of(0).is_zero());
  EXPECT_EQ(chains.evict_all(1), (Order{0}));
}

TEST(PageIndex, CyclesAreEvictedWhenNothingElseIsLeft) {
  for (const std::uint64_t length : {2u, 3u, 50u}) {
    SCOPED_TRACE(length);
    Chains chains;
    for (std::uint64_t i = 0; i < length; ++i) chains.insert(i, key_of((i + length - 1) % length));
    // Another cycle, with a tail, and a page alone that is younger than all.
    chains.insert(length, key_of(length + 1));
    chains.insert(length + 1, key_of(length));
    chains.insert(length + 2, key_of(length));
    chains.insert(length + 3, kNoParent);
    ASSERT_TRUE(chains.index.check_invariants().is_ok());
    Order order = chains.evict_all(length + 4);
    ASSERT_EQ(order.size(), length + 4);
    EXPECT_EQ(order[0], length + 2);
    EXPECT_EQ(order[1], length + 3);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
    EXPECT_EQ(chains.index.evict_coldest().pages, 0u);
    EXPECT_EQ(chains.index.identities(), 0u);
  }
}

TEST(PageIndex, PagesOfACycleCanBeErased) {
  Chains chains;
  for (std::uint64_t i = 0; i < 10; ++i) chains.insert(i, key_of((i + 9) % 10), static_cast<SegmentId>(1 + i % 2));
  EXPECT_TRUE(chains.erase(4));
  ASSERT_TRUE(chains.index.check_invariants().is_ok());
  EXPECT_EQ(chains.index.drop_segment(1), 4u);
  ASSERT_TRUE(chains.index.check_invariants().is_ok());
  EXPECT_EQ(drop_namespace(chains.index, chains.identity.namespace_digest), 5u);
  EXPECT_TRUE(chains.index.check_invariants().is_ok());
}

// --- large ---

PageKey quick_key(std::uint64_t number) {
  PageKey key;
  store_le(key.bytes.data(), (number + 1) * 0x9e3779b97f4a7c15ull);
  return key;
}

TEST(PageIndex, AMillionPagesOfOneChain) {
  constexpr std::uint64_t kPages = 1'000'000;
  const PageIdentity identity = identity_of(1);
  for (const bool tail_first : {false, true}) {
    SCOPED_TRACE(tail_first);
    PageIndex index;
    index.reserve(kPages);
    for (std::uint64_t i = 0; i < kPages; ++i) {
      const std::uint64_t number = tail_first ? kPages - 1 - i : i;
      const PageKey parent = number == 0 ? kNoParent : quick_key(number - 1);
      const PageLocation location{static_cast<SegmentId>(1 + number / 300'000), 64 * i, 1, i + 1, {}};
      ASSERT_TRUE(index.insert(identity, quick_key(number), parent, location).is_ok());
    }
    const IdentityId id = index.find_identity(identity);
    for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(index.evict_coldest().pages, 1u);
    EXPECT_TRUE(index.contains(id, quick_key(kPages - 1001)));
    EXPECT_FALSE(index.contains(id, quick_key(kPages - 1000))) << "the tail goes first, whatever came last";
    EXPECT_EQ(index.drop_segment(2), 300'000u) << "from the middle";
    ASSERT_TRUE(index.check_invariants().is_ok());
    while (index.evict_coldest().pages > 0) continue;
    EXPECT_EQ(index.size(), 0u);
    EXPECT_TRUE(index.check_invariants().is_ok());
  }
}

TEST(PageIndex, AMillionPagesCostAtMost150BytesEach) {
  const std::pair<std::uint64_t, std::size_t> lengths_and_bytes[] = {{1, 150}, {100, 140}};
  for (const auto& [length, bytes] : lengths_and_bytes) {
    SCOPED_TRACE(length);
    PageIndex index;
    const PageIdentity identity = identity_of(1);
    for (std::uint64_t i = 0; i < 1'000'000; ++i) {
      const PageKey parent = i % length == 0 ? kNoParent : quick_key(i - 1);
      ASSERT_TRUE(index.insert(identity, quick_key(i), parent, {1, 64 * i, 1, i + 1, {}}).is_ok());
    }
    EXPECT_EQ(index.size(), 1'000'000u);
    EXPECT_LE(index.memory_bytes(), bytes * 1'000'000) << "a tail costs a little more: its place in the heap";
    EXPECT_GE(index.memory_bytes(), 128'000'000u);
    EXPECT_EQ(index.drop_segment(1), 1'000'000u);
  }
}

// A full store that runs for ever: each page in is one out, and uses in between.
TEST(PageIndex, ASteadyStoreDoesNotGrow) {
  Chains chains;
  Rng rng(11);
  std::size_t memory = 0;
  for (std::uint64_t i = 0; i < 300'000; ++i) {
    chains.insert(i, i % 10 == 0 ? kNoParent : key_of(i - 1));
    chains.touch(i - std::min<std::uint64_t>(i, rng.below(3000)));
    if (chains.index.size() > 3000) {
      ASSERT_EQ(chains.index.evict_coldest().pages, 1u);
    }
    if (i == 20'000) memory = chains.index.memory_bytes();
  }
  EXPECT_EQ(chains.index.size(), 3000u);
  EXPECT_EQ(chains.index.memory_bytes(), memory);
  EXPECT_TRUE(chains.index.check_invariants().is_ok());
}

TEST(PageIndex, TooManyIdentitiesAreRefusedAndNothingChanges) {
  PageIndex index;
  std::uint32_t layout = 0;
  for (; layout < PageIndex::kMaxIdentities; ++layout) {
    const PageIdentity identity = identity_of(static_cast<std::uint8_t>(layout % 3), PoolName::kKv, layout);
    ASSERT_TRUE(index.insert(identity, quick_key(layout), kNoParent, at(1, 0, 1, 1)).is_ok());
  }
  const PageIdentity refused = identity_of(9, PoolName::kKv, layout);
  EXPECT_EQ(index.insert(refused, quick_key(1), quick_key(77), at(1, 0, 1, 1)).code(), StatusCode::kOverloaded);
  EXPECT_EQ(index.size(), PageIndex::kMaxIdentities);
  EXPECT_EQ(index.identities(), PageIndex::kMaxIdentities);
  EXPECT_EQ(index.find_identity(refused), 0u);
  const PageIdentity known = identity_of(0, PoolName::kKv, 0);
  EXPECT_TRUE(index.insert(known, quick_key(layout), kNoParent, at(1, 0, 1, 1)).is_ok()) << "known ones go on";
  EXPECT_EQ(index.evict_coldest().pages, 1u);
  EXPECT_EQ(index.evict_coldest().pages, 1u);
  EXPECT_TRUE(index.insert(refused, quick_key(1), kNoParent, at(1, 0, 1, 1)).is_ok()) << "now there is room";
}

}  // namespace
}  // namespace larder::file_store
