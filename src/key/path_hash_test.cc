// SPDX-License-Identifier: Apache-2.0
#include "key/path_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/rng.h"

namespace larder {
namespace {

std::vector<TokenId> random_tokens(Rng& rng, std::size_t count, std::uint32_t vocabulary) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(vocabulary));
  return tokens;
}

PathHash hash_of(std::span<const TokenId> tokens) {
  PathHash hash;
  hash.append(tokens);
  return hash;
}

TEST(PathHash, IsTheSameInWhateverPiecesThePathCame) {
  Rng rng(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<TokenId> tokens = random_tokens(rng, rng.below(300), 0xffffffffu);
    if (round % 4 == 0) std::fill(tokens.begin(), tokens.end(), 0xffffffffu);  // the largest products
    const std::size_t cut = rng.below(tokens.size() + 1);
    PathHash pieces;
    pieces.append(std::span(tokens).first(cut));
    pieces.append(std::span(tokens).subspan(cut));
    ASSERT_EQ(pieces, hash_of(tokens)) << "round " << round << ", cut at " << cut << " of " << tokens.size();
    PathHash one_by_one;
    for (const TokenId& token : tokens) one_by_one.append({&token, 1});
    ASSERT_EQ(one_by_one, hash_of(tokens)) << "round " << round << ", of " << tokens.size();
  }
}

TEST(PathHash, RemovingTheEndGivesTheHashOfWhatIsLeft) {
  Rng rng(12);
  for (int round = 0; round < 200; ++round) {
    const std::vector<TokenId> tokens = random_tokens(rng, rng.below(300), 0xffffffffu);
    const std::size_t keep = rng.below(tokens.size() + 1);
    PathHash hash = hash_of(tokens);
    hash.remove(std::span(tokens).subspan(keep));
    ASSERT_EQ(hash, hash_of(std::span(tokens).first(keep))) << "round " << round << ", kept " << keep;
  }
}

TEST(PathHash, TellsPathsApart) {
  std::set<std::uint64_t> seen;
  std::size_t paths = 0;
  const auto add = [&](std::span<const TokenId> tokens) {
    seen.insert(hash_of(tokens).spread());
    ++paths;
  };
  add({});
  for (TokenId a = 0; a < 40; ++a) {
    add(std::vector<TokenId>{a});
    add(std::vector<TokenId>{0xffffffffu - a});
    for (TokenId b = 0; b < 40; ++b) add(std::vector<TokenId>{a, b});
  }
  for (std::size_t zeros = 2; zeros < 100; ++zeros) add(std::vector<TokenId>(zeros + 1, 0));  // {0}, {0, 0} are there
  EXPECT_EQ(seen.size(), paths);
}

// As documents that stand in a prompt in another order do. Small numbers of a multiple of 1,024 are the hardest.
TEST(PathHash, TellsOrdersOfEqualPagesApart) {
  Rng rng(13);
  constexpr std::size_t kPage = 1024, kPages = 16;
  std::vector<std::vector<TokenId>> pages;
  for (std::size_t i = 0; i < kPages; ++i) {
    pages.push_back(random_tokens(rng, kPage, 64));
    for (TokenId& token : pages.back()) token *= 1024;
  }
  std::set<std::uint64_t> seen;
  constexpr std::size_t kRounds = 5000;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = kPages - 1; i > 0; --i) std::swap(pages[i], pages[rng.below(i + 1)]);
    PathHash hash;
    for (const auto& page : pages) hash.append(page);
    seen.insert(hash.spread());
  }
  EXPECT_EQ(seen.size(), kRounds);  // two of 16! orders would be one by chance once in a million runs
}

TEST(PathHash, AdaptersAndSaltsHavePathsOfTheirOwn) {
  const PathHash plain = PathHash::of_space("", ""), ab = PathHash::of_space("a", "b");
  EXPECT_EQ(PathHash::of_space("a", "b"), ab);
  for (const PathHash& other :
       {PathHash::of_space("b", "a"), PathHash::of_space("ab", ""), PathHash::of_space("", "ab"), plain, PathHash()}) {
    EXPECT_NE(other, ab);
  }
  EXPECT_NE(plain, PathHash::of_space("", "a"));
}

}  // namespace
}  // namespace larder
