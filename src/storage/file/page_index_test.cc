#include "storage/file/page_index.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "base/rng.h"

namespace larder::file_store {
namespace {

PageKey key_of(std::uint64_t number) {
  Rng rng(number);
  PageKey key;
  for (auto& b : key.bytes) b = static_cast<std::uint8_t>(rng.next_u64());
  return key;
}

PageIdentity identity_of(std::uint8_t name, PoolName pool) {
  PageIdentity identity;
  identity.namespace_digest.bytes[5] = name;
  identity.layout_fingerprint.bytes[9] = 1;
  identity.pool = pool;
  return identity;
}

TEST(PageIndex, NewerGenerationsWin) {
  PageIndex index;
  const PageIdentity identity = identity_of(1, PoolName::kKv);
  EXPECT_EQ(index.find_identity(identity), 0u);
  ASSERT_TRUE(index.insert(identity, key_of(1), {1, 64, 100, 5}).is_ok());
  const IdentityId id = index.find_identity(identity);
  ASSERT_TRUE(index.insert(identity, key_of(1), {2, 128, 200, 4}).is_ok()) << "older: no change";
  PageLocation at;
  ASSERT_TRUE(index.find(id, key_of(1), at));
  EXPECT_EQ(at.segment, 1u);
  ASSERT_TRUE(index.insert(identity, key_of(1), {3, 256, 300, 6}).is_ok());
  ASSERT_TRUE(index.find(id, key_of(1), at));
  EXPECT_EQ(std::tuple(at.segment, at.offset, at.payload_bytes, at.generation), std::tuple(3u, 256u, 300u, 6u));
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.payload_bytes(), 300u);
  EXPECT_EQ(index.drop_segment(1), 0u) << "it moved to segment 3";
  EXPECT_FALSE(index.erase(id, key_of(1), 5)) << "another generation";
  EXPECT_TRUE(index.erase(id, key_of(1), 6));
  EXPECT_EQ(index.identities(), 0u) << "identities without pages go";
  EXPECT_EQ(index.find_identity(identity), 0u);
}

// Random operations against a std::map; keys collide in their low bits to stress probing and gap closing.
TEST(PageIndex, AgreesWithAMap) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    PageIndex index;
    using Id = std::tuple<std::uint8_t, PoolName, std::uint64_t>;
    std::map<Id, PageLocation> model;
    std::uint64_t generation = 1;
    for (int step = 0; step < 5000; ++step) {
      const auto name = static_cast<std::uint8_t>(1 + rng.below(3));
      const PoolName pool = rng.chance(1, 2) ? PoolName::kKv : PoolName::kMamba;
      const std::uint64_t number = rng.below(700);
      const PageIdentity identity = identity_of(name, pool);
      const Id id{name, pool, number};
      const std::uint64_t action = rng.below(100);
      if (action < 60) {
        const PageLocation at{static_cast<SegmentId>(1 + rng.below(9)), 64 * rng.below(1000),
                              static_cast<std::uint32_t>(rng.below(5000)), generation++};
        ASSERT_TRUE(index.insert(identity, key_of(number), at).is_ok());
        model[id] = at;
      } else if (action < 95) {
        const auto at = model.find(id);
        const std::uint64_t expected = at == model.end() ? 0 : at->second.generation;
        EXPECT_EQ(index.erase(index.find_identity(identity), key_of(number), expected), at != model.end());
        if (at != model.end()) model.erase(at);
      } else if (action < 98) {
        const auto segment = static_cast<SegmentId>(1 + rng.below(9));
        const auto in_segment = [&](const auto& entry) { return entry.second.segment == segment; };
        EXPECT_EQ(index.drop_segment(segment), std::erase_if(model, in_segment));
      } else if (action < 99) {
        const auto of_name = [&](const auto& entry) { return std::get<0>(entry.first) == name; };
        EXPECT_EQ(index.drop_namespace(identity.namespace_digest), std::erase_if(model, of_name));
      }
    }
    std::uint64_t bytes = 0;
    for (const auto& [id, expected] : model) {
      PageLocation at;
      const auto [name, pool, number] = id;
      ASSERT_TRUE(index.find(index.find_identity(identity_of(name, pool)), key_of(number), at));
      EXPECT_EQ(at.generation, expected.generation);
      EXPECT_EQ(at.offset, expected.offset);
      bytes += at.payload_bytes;
    }
    EXPECT_EQ(index.size(), model.size());
    EXPECT_EQ(index.payload_bytes(), bytes);
  }
}

TEST(PageIndex, AMillionPagesCostLessThan100BytesEach) {
  PageIndex index;
  const PageIdentity identity = identity_of(1, PoolName::kKv);
  std::size_t most_per_page = 0;
  PageKey key;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    const std::uint64_t mixed = i * 0x9e3779b97f4a7c15ull;
    std::memcpy(key.bytes.data(), &mixed, sizeof mixed);
    ASSERT_TRUE(index.insert(identity, key, {1, 64 * i, 1, i + 1}).is_ok());
    if (i >= 100'000 && i % 1000 == 0) most_per_page = std::max(most_per_page, index.memory_bytes() / i);
  }
  EXPECT_EQ(index.size(), 1'000'000u);
  EXPECT_LT(most_per_page, 100u);
  EXPECT_EQ(index.drop_segment(1), 1'000'000u);
}

}  // namespace
}  // namespace larder::file_store
