// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse_duel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace larder {
namespace {

// The same, written down as it is meant.
struct NaiveCache {
  struct Entry {
    std::uint64_t name;
    ReuseMiniature::Moment last;
    std::uint32_t hits;
  };
  void let_go(std::size_t most) {
    while (entries.size() > most) {
      entries.erase(std::min_element(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
        if (way == ReuseWay::kLfu && a.hits != b.hits) return a.hits < b.hits;
        if (a.last.request == b.last.request) return a.last.place > b.last.place;
        return (a.last.request < b.last.request) != (way == ReuseWay::kMru);
      }));
    }
  }
  bool use(std::uint64_t name, const ReuseMiniature::Moment& now, std::size_t most) {
    let_go(most);
    for (Entry& entry : entries) {
      if (entry.name != name) continue;
      entry.last = now;
      ++entry.hits;
      return true;
    }
    let_go(most - 1);
    entries.push_back({name, now, 0});
    return false;
  }
  ReuseWay way;
  std::vector<Entry> entries{};
};

TEST(ReuseMiniature, HitsWhatANaiveCacheHits) {
  for (const ReuseWay way : {ReuseWay::kLru, ReuseWay::kLfu, ReuseWay::kMru}) {
    std::mt19937_64 rng(7);
    ReuseMiniature miniature(way);
    NaiveCache naive{way};
    int hits = 0;
    for (std::uint64_t time = 0; time < 6000; ++time) {
      const std::uint64_t name = std::min(rng() % 60, rng() % 60);
      const std::size_t most = time < 3000 ? 20 : 12;  // a smaller one lets more go
      if (time == 4000) {
        miniature.keep(3);
        std::erase_if(naive.entries, [](const NaiveCache::Entry& entry) { return (entry.name & 3) != 0; });
      }
      const ReuseMiniature::Moment now{1 + time / 4, time % 4};
      const bool hit = miniature.use(name, now, most);
      ASSERT_EQ(hit, naive.use(name, now, most)) << "way " << static_cast<int>(way) << ", use " << time;
      ASSERT_EQ(miniature.size(), naive.entries.size());
      hits += hit;
    }
    EXPECT_GT(hits, 500);
  }
}

constexpr std::uint32_t kPage = 64;

// Prompts of documents: page `i` of document `d` has tokens of its own.
std::vector<TokenId> document(std::uint64_t d, std::uint32_t pages, std::uint32_t page_tokens = kPage) {
  std::vector<TokenId> tokens;
  std::mt19937_64 rng(1000 + d);
  for (std::uint32_t i = 0; i < pages * page_tokens; ++i) tokens.push_back(static_cast<TokenId>(rng() % 150'000));
  return tokens;
}

class Load {
 public:
  explicit Load(std::uint64_t tier_pages, std::uint32_t page_tokens = kPage)
      : capacity_(tier_pages * page_tokens), page_tokens_(page_tokens) {}
  void use(std::uint64_t d, std::uint32_t pages = 8) {
    duel_.use(NamespaceId(d % 2), document(d, pages, page_tokens_), page_tokens_, capacity_);
  }
  void loop(int rounds, std::uint64_t documents) {
    for (int round = 0; round < rounds; ++round) {
      for (std::uint64_t d = 0; d < documents; ++d) use(d);
    }
  }
  // Some documents are asked about again and again, between many that never come back.
  void scan(int requests) {
    for (int i = 0; i < requests; ++i) use(i % 3 == 0 ? std::min(rng_() % 40, rng_() % 40) : 1000 + next_++);
  }
  // Talks that go on for a few turns, then end.
  void talks(int requests) {
    for (int i = 0; i < requests; ++i) {
      const std::uint64_t talk = 100'000 + next_ / 4 + rng_() % 12;
      use(talk, 4 + static_cast<std::uint32_t>(next_++ % 5));
    }
  }
  [[nodiscard]] ReuseWay ahead() const { return duel_.ahead(); }

 private:
  std::mt19937_64 rng_{3};
  std::uint64_t capacity_, next_ = 0;
  std::uint32_t page_tokens_;
  ReuseDuel duel_;
};

TEST(ReuseDuel, TheWayThatSuitsTheLoadComesAhead) {
  for (const std::uint64_t tier : {std::uint64_t{200}, std::uint64_t{1600}, std::uint64_t{6400}}) {
    SCOPED_TRACE(tier);
    Load rounds(tier);
    rounds.loop(6, tier / 8 + tier / 32);
    EXPECT_EQ(rounds.ahead(), ReuseWay::kMru);
    Load talks(tier);
    talks.talks(1500);
    EXPECT_EQ(talks.ahead(), ReuseWay::kLru);
  }
  Load scans(160);
  scans.scan(1500);
  EXPECT_EQ(scans.ahead(), ReuseWay::kLfu);
}

// A round of five percent more than there is room for: what is sampled of it is more or less than that by chance.
TEST(ReuseDuel, ARoundThatNearlyFitsIsNoticed) {
  for (std::uint64_t tier = 3000; tier < 3400; tier += 80) {
    SCOPED_TRACE(tier);
    Load rounds(tier);
    rounds.loop(12, tier / 8 + tier / 160);
    EXPECT_EQ(rounds.ahead(), ReuseWay::kMru);
  }
}

TEST(ReuseDuel, ItComesBackWhenTheLoadChanges) {
  Load load(200);
  load.loop(8, 40);
  EXPECT_EQ(load.ahead(), ReuseWay::kMru);
  load.talks(3000);
  EXPECT_EQ(load.ahead(), ReuseWay::kLru);
}

// A tier that has room for all gives no evidence, and neither has a load without any reuse.
TEST(ReuseDuel, WithoutADifferenceItStays) {
  Load fits(4000);
  fits.loop(20, 100);
  EXPECT_EQ(fits.ahead(), ReuseWay::kLru);
  Load fresh(100);
  for (std::uint64_t d = 0; d < 2000; ++d) fresh.use(d);
  EXPECT_EQ(fresh.ahead(), ReuseWay::kLru);
}

TEST(ReuseDuel, PagesOfAnySize) {
  for (const std::uint32_t page : {1u, 48u, 100u, 512u}) {
    SCOPED_TRACE(page);
    Load load(page == 1 ? 20'000 : 200, page);
    for (int round = 0; round < 6; ++round) {
      for (std::uint64_t d = 0; d < 30; ++d) load.use(d, page == 1 ? 1000 : 8);
    }
    EXPECT_EQ(load.ahead(), ReuseWay::kMru);
  }
}

TEST(ReuseDuel, NothingToLookAt) {
  ReuseDuel duel;
  duel.use(NamespaceId(0), {}, 64, 0);
  duel.use(NamespaceId(0), document(1, 2), 64, 0);
  duel.use(NamespaceId(0), document(1, 2), 64, ~std::uint64_t{0});
  EXPECT_EQ(duel.ahead(), ReuseWay::kLru);
}

}  // namespace
}  // namespace larder
