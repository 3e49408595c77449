// SPDX-License-Identifier: Apache-2.0
// Golden values were computed with Python's hashlib over the message format of page_key.h.
#include "key/page_key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "key/sha256.h"

namespace larder {
namespace {

std::vector<TokenId> iota_tokens(TokenId first, TokenId last) {
  std::vector<TokenId> tokens(last - first + 1);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<std::string> hex_of(std::span<const PageKey> keys) {
  std::vector<std::string> out;
  for (const PageKey& key : keys) out.push_back(key.hex());
  return out;
}

const std::string kKeyA = "0c8f462927e331f28e3f1a6d342957cd27118febc309bd3b2f646e2dfbaeec32";

TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(sha256("").hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc").hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().update("a").update("").update("bc").finish(), sha256("abc"));
}

TEST(PageKeyTest, GoldenOnePage) {
  const PageKey a = page_key(iota_tokens(1, 64), std::nullopt);
  EXPECT_EQ(a.hex(), kKeyA);
  EXPECT_EQ(event_block_hash(a), 905019192701563378);
  const PageKey after_a = page_key(iota_tokens(1, 64), a);
  EXPECT_EQ(after_a.hex(), "f652d16a98586bbd75b4e8cd06f461fa42d9849fd94d47f0eb4655f45b9c130b");
  EXPECT_EQ(event_block_hash(after_a), -697264736536335427);
}

TEST(PageKeyTest, GoldenChain) {
  PageKeyChain chain(64, std::nullopt);
  chain.extend(iota_tokens(1, 128));
  EXPECT_EQ(hex_of(chain.keys()),
            (std::vector<std::string>{kKeyA, "e9c2a460fbc87d21beb32b8aba08b9a193d660e6706c659aa0d62b0af7ef6a56"}));
  EXPECT_EQ(event_block_hash(chain.keys()[1]), -1602537780942439135);

  PageKeyChain page4(4, std::nullopt);
  page4.extend(iota_tokens(1, 8));
  EXPECT_EQ(hex_of(page4.keys()),
            (std::vector<std::string>{"cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
                                      "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"}));

  PageKeyChain page1(1, std::nullopt);
  page1.extend(iota_tokens(1, 3));
  EXPECT_EQ(hex_of(page1.keys()),
            (std::vector<std::string>{"67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450",
                                      "e95092c4b38d42d1363b9e9b06bc5d6377af1cd06651a9fedac8b36dc9e56114",
                                      "65a83b157c6cfe60e7f2b2dbc81912f32c87b62f180abb0b8b40bf4b5259ae86"}));
}

TEST(PageKeyTest, GoldenPartialLastPageWaitsInAChainButHashesAlone) {
  const std::vector<TokenId> tokens = iota_tokens(1, 100);
  PageKeyChain chain(64, std::nullopt);
  chain.extend(tokens);
  ASSERT_EQ(chain.size(), 1u);
  EXPECT_EQ(page_key(std::span(tokens).subspan(64), chain.keys()[0]).hex(),
            "314398f3b20b36c350cbdc63119572c624f466e9aa08c6bbace6902cb6d18718");
}

TEST(PageKeyTest, GoldenWholeSequenceAndExtremes) {
  EXPECT_EQ(page_key(iota_tokens(1, 128), std::nullopt).hex(),
            "24f9ac547baae524ba0ea5220692d48f7526cdb1df5e99edcbb1f32239a8d5f5");
  EXPECT_EQ(page_key(std::vector<TokenId>{0}, std::nullopt).hex(),
            "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119");
  EXPECT_EQ(page_key(std::vector<TokenId>{std::numeric_limits<TokenId>::max()}, std::nullopt).hex(),
            "ad95131bc0b799c0b1af477fb14fcf26a6a9f76079e48bf090acb7e8367bfd0e");
  EXPECT_EQ(page_key({}, std::nullopt).hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(PageKeyTest, GoldenBigram) {
  PageKeyChain chain(4, std::nullopt, KeyUnit::kBigram);
  chain.extend(iota_tokens(1, 9));
  EXPECT_EQ(hex_of(chain.keys()),
            (std::vector<std::string>{"f721fe42aac11dcbfd1a17f24cc5765a0d5b6bc264d1c0b6581d775a7344c11f",
                                      "c35ad698917936a474f7e55f3a4855eaee20585cd0bf156b1ae3a62666ba7220"}));
  PageKeyChain short_by_one(4, std::nullopt, KeyUnit::kBigram);
  short_by_one.extend(iota_tokens(1, 8));  // the 8th unit needs token 9
  EXPECT_EQ(short_by_one.size(), 1u);
}

// A bigram message longer than the packing buffer, against the plain hash of the packed pairs.
TEST(PageKeyTest, LongBigramPageEqualsHashOfPairs) {
  for (const std::size_t units : {0, 1, 63, 64, 65, 128, 500}) {
    const std::vector<TokenId> raw = iota_tokens(7, static_cast<TokenId>(7 + units));
    std::vector<TokenId> pairs;
    for (std::size_t i = 0; i < units; ++i) pairs.insert(pairs.end(), {raw[i], raw[i + 1]});
    EXPECT_EQ(page_key(raw, std::nullopt, KeyUnit::kBigram), page_key(pairs, std::nullopt)) << units;
  }
  EXPECT_EQ(page_key({}, std::nullopt, KeyUnit::kBigram), page_key({}, std::nullopt));
}

TEST(PageKeyTest, SeedSeparatesChains) {
  const std::vector<TokenId> tokens = iota_tokens(1, 64);
  PageKeyChain plain(64, std::nullopt);
  PageKeyChain seeded(64, sha256("tenant a"));
  PageKeyChain other(64, sha256("tenant b"));
  for (PageKeyChain* chain : {&plain, &seeded, &other}) chain->extend(tokens);
  EXPECT_NE(plain.keys()[0], seeded.keys()[0]);
  EXPECT_NE(seeded.keys()[0], other.keys()[0]);
  EXPECT_EQ(seeded.keys()[0], page_key(tokens, sha256("tenant a")));
}

// Any way of feeding a sequence, by extend() with growing prefixes or append_pages() with the rest, gives the same
// keys.
TEST(PageKeyTest, IncrementalEqualsOneShot) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const KeyUnit unit = rng.chance(1, 2) ? KeyUnit::kToken : KeyUnit::kBigram;
    const auto page_size = static_cast<std::uint32_t>(rng.between(1, 70));
    std::vector<TokenId> tokens(rng.below(900));
    for (TokenId& token : tokens) token = static_cast<TokenId>(rng.next_u64());
    const std::optional<PageKey> chain_seed =
        rng.chance(1, 2) ? std::optional<PageKey>(sha256("namespace")) : std::nullopt;

    PageKeyChain one_shot(page_size, chain_seed, unit);
    one_shot.extend(tokens);
    const std::size_t units =
        unit == KeyUnit::kToken ? tokens.size() : tokens.size() - std::min<std::size_t>(tokens.size(), 1);
    EXPECT_EQ(one_shot.size(), units / page_size);

    PageKeyChain growing(page_size, chain_seed, unit);
    PageKeyChain appended(page_size, chain_seed, unit);
    for (std::size_t seen = 0; seen < tokens.size();) {
      seen = std::min(tokens.size(), seen + static_cast<std::size_t>(rng.below(200)));
      const auto prefix = std::span(tokens).first(seen);
      growing.extend(prefix);
      appended.append_pages(prefix.subspan(appended.size() * page_size));
    }
    EXPECT_EQ(hex_of(growing.keys()), hex_of(one_shot.keys()));
    EXPECT_EQ(hex_of(appended.keys()), hex_of(one_shot.keys()));
  }
}

TEST(PageKeyTest, ShorterSequenceChangesNothing) {
  PageKeyChain chain(4, std::nullopt);
  chain.extend(iota_tokens(1, 12));
  const auto before = hex_of(chain.keys());
  chain.extend(iota_tokens(1, 5));
  chain.extend({});
  EXPECT_EQ(hex_of(chain.keys()), before);
}

}  // namespace
}  // namespace larder
