// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/negative_cache.h"

#include <gtest/gtest.h>

#include "storage/pipeline/pipeline_test_util.h"

namespace larder {
namespace {

using pipeline_test::make_key;
using pipeline_test::make_scope;
using std::chrono::seconds;

constexpr TimePoint kCacheStart{seconds(50)};
constexpr bool kFailed = true, kToldSo = false;  // the backend's answer

// "101": which of the keys 0, 1, 2 survive the mask in a pool.
std::string survivors(NegativeCache& cache, const StoreScope& scope, TimePoint now, PoolName pool = PoolName::kKv) {
  const std::vector<PageKey> keys{make_key(0), make_key(1), make_key(2)};
  std::vector<PoolPresence> presence{{pool, {true, true, true}}};
  (void)cache.mask(scope, keys, presence, now);
  std::string out;
  for (const bool is_present : presence[0].present) out += is_present ? '1' : '0';
  return out;
}

TEST(NegativeCacheTest, MasksUntilTheTtlIsOver) {
  NegativeCache cache(seconds(30), 10);
  const auto scope = make_scope();
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart, kFailed);
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "101");
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart + seconds(20), kFailed);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(survivors(cache, *scope, kCacheStart + seconds(29)), "101");
  EXPECT_EQ(survivors(cache, *scope, kCacheStart + seconds(30)), "111") << "from the first failure on";
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.hits(), 2u);
}

TEST(NegativeCacheTest, IdentityIsComplete) {
  NegativeCache cache(seconds(30), 10);
  const auto scope = make_scope(1), other = make_scope(2);
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart, kFailed);
  EXPECT_EQ(survivors(cache, *other, kCacheStart), "111") << "another namespace";
  EXPECT_EQ(survivors(cache, *scope, kCacheStart, PoolName::kSwa), "111") << "another pool";
  StoreScope other_layout = *scope;
  other_layout.set_pool(PoolName::kKv, Digest256{{0, 9}});
  EXPECT_EQ(survivors(cache, other_layout, kCacheStart), "111") << "another layout";
}

TEST(NegativeCacheTest, AWriteForgetsAndOutweighsAReadThatBeganBefore) {
  NegativeCache cache(seconds(30), 10);
  const auto scope = make_scope();
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart, kFailed);
  const std::uint64_t before = cache.stamp();
  cache.remove(*scope, PoolName::kKv, make_key(1), kCacheStart);
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "111");
  cache.add(*scope, PoolName::kKv, make_key(1), before, kCacheStart, kFailed);
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "111") << "the read saw what was there before the write";
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart, kFailed);
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "101");
}

// A backend that cannot read a page may take a write of it for one of what it has.
TEST(NegativeCacheTest, AWriteThatDidNotHelpIsNotBelievedAgain) {
  NegativeCache cache(seconds(30), 10);
  const auto scope = make_scope();
  const auto add = [&](bool is_failure, TimePoint now) {
    cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), now, is_failure);
  };
  const auto remove = [&](TimePoint now) { cache.remove(*scope, PoolName::kKv, make_key(1), now); };
  TimePoint now = kCacheStart;
  for (int round = 0; round < 3; ++round) {
    add(kFailed, now);
    EXPECT_EQ(survivors(cache, *scope, now), "101");
    remove(now += seconds(20));
    EXPECT_EQ(survivors(cache, *scope, now), "111") << "one try";
    EXPECT_EQ(cache.size(), 0u);
    add(kFailed, now += seconds(20));
    EXPECT_EQ(cache.size(), 1u);
    for (int write = 0; write < 3; ++write) {
      remove(now += seconds(9));
      EXPECT_EQ(survivors(cache, *scope, now), "101");
    }
    EXPECT_EQ(survivors(cache, *scope, now += seconds(3)), "111") << "not for ever";
  }
  for (int round = 0; round < 3; ++round) {
    add(kToldSo, now);
    EXPECT_EQ(survivors(cache, *scope, now), "101");
    remove(now);
    EXPECT_EQ(survivors(cache, *scope, now), "111") << "it knows what it has";
  }
  add(kFailed, now);
  remove(now);
  cache.clear(scope.get());
  cache.expire(now);
  EXPECT_EQ(cache.size(), 0u);
}

TEST(NegativeCacheTest, BoundedOldestLeaves) {
  NegativeCache cache(seconds(30), 3);
  const auto scope = make_scope();
  for (int tag = 0; tag < 200; ++tag) {
    cache.add(*scope, PoolName::kKv, make_key(static_cast<std::uint8_t>(tag)), cache.stamp(), kCacheStart, kFailed);
    EXPECT_LE(cache.size(), 3u);
  }
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "111");
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart, kFailed);
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "101");
}

TEST(NegativeCacheTest, ClearByNamespace) {
  NegativeCache cache(seconds(30), 10);
  const auto scope = make_scope(1), other = make_scope(2);
  cache.add(*scope, PoolName::kKv, make_key(1), cache.stamp(), kCacheStart, kFailed);
  cache.add(*other, PoolName::kKv, make_key(2), cache.stamp(), kCacheStart, kFailed);
  cache.clear(scope.get());
  EXPECT_EQ(survivors(cache, *scope, kCacheStart), "111");
  EXPECT_EQ(survivors(cache, *other, kCacheStart), "110");
  cache.clear(nullptr);
  EXPECT_EQ(cache.size(), 0u);
}

TEST(NegativeCacheTest, ZeroTurnsItOff) {
  NegativeCache no_ttl(Nanos(0), 10), no_room(seconds(30), 0);
  const auto scope = make_scope();
  for (NegativeCache* cache : {&no_ttl, &no_room}) {
    cache->add(*scope, PoolName::kKv, make_key(1), cache->stamp(), kCacheStart, kFailed);
    EXPECT_FALSE(cache->is_enabled());
    EXPECT_EQ(survivors(*cache, *scope, kCacheStart), "111");
  }
}

TEST(NegativeCacheTest, AShortAnswerIsNotReadBeyondItsEnd) {
  NegativeCache cache(seconds(30), 10);
  const auto scope = make_scope();
  cache.add(*scope, PoolName::kKv, make_key(0), cache.stamp(), kCacheStart, kFailed);
  const std::vector<PageKey> keys{make_key(0), make_key(1)};
  std::vector<PoolPresence> presence{{PoolName::kKv, {true}}, {PoolName::kSwa, {}}};
  EXPECT_EQ(cache.mask(*scope, keys, presence, kCacheStart), 1u);
  EXPECT_EQ(presence[0].present, Presence{false});
}

}  // namespace
}  // namespace larder
