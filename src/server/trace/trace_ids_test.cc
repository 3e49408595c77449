// SPDX-License-Identifier: Apache-2.0
#include "server/trace/trace_ids.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "key/page_key.h"

namespace larder {
namespace {

using Ids = std::vector<std::uint64_t>;

std::vector<TokenId> counted(std::size_t count, TokenId first = 1) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::size_t shared(const Ids& a, const Ids& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

TEST(TraceIds, OneForEachBlockTheLastPerhapsNotFull) {
  const TraceIds ids("secret", 16);
  EXPECT_EQ(ids.of(counted(1), {}).size(), 1u);
  EXPECT_EQ(ids.of(counted(16), {}).size(), 1u);
  EXPECT_EQ(ids.of(counted(17), {}).size(), 2u);
  EXPECT_EQ(ids.of(counted(160), {}).size(), 10u);
}

TEST(TraceIds, EqualIdsAreEqualPrefixes) {
  const TraceIds ids("secret", 16);
  std::vector<TokenId> other = counted(160);
  other[100] = 7;
  const Ids a = ids.of(counted(160), {}), b = ids.of(other, {});
  EXPECT_EQ(shared(a, b), 6u);
  for (std::size_t i = 6; i < 10; ++i) EXPECT_NE(a[i], b[i]) << i << ": the blocks are equal, what is before is not";
  EXPECT_EQ(shared(a, ids.of(counted(90), {})), 5u) << "a block that is not full is another";
  other.assign(32, 5);
  const Ids twice = ids.of(other, {});
  EXPECT_NE(twice[0], twice[1]);
}

TEST(TraceIds, AreChainedAsPageKeysAre) {
  const TraceIds ids("secret", 16);
  const std::vector<TokenId> tokens = counted(100);
  Ids grown;
  TraceChain chain = ids.chain({});
  for (std::size_t at = 0, step = 1; at < tokens.size(); at += step, ++step) {
    chain.append(std::span(tokens).subspan(at, std::min(step, tokens.size() - at)), grown);
  }
  EXPECT_EQ(grown.size(), 6u);
  const Ids whole = ids.of(tokens, {});
  EXPECT_EQ(shared(grown, whole), 6u);
  EXPECT_EQ(chain.rest(), whole.back());
  const Digest256 seed = sha256("a seed");
  PageKeyChain keys(16, seed);
  keys.extend(tokens);
  Ids of_seed;
  TraceChain(seed, 16).append(tokens, of_seed);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(of_seed[i], keys.keys()[i].prefix64() & ((1ull << 53) - 1)) << i;
}

TEST(TraceIds, OtherNamespacesShareNothing) {
  const TraceIds ids("secret", 16);
  const TraceSpace spaces[] = {
      {}, {"m", "", ""}, {"", "m", ""}, {"", "", "m"}, {"m", "m", ""}, {"mm", "", ""}, {"m", "", "m"}, {"", "m", "m"}};
  std::set<std::uint64_t> firsts;
  for (const TraceSpace& space : spaces) firsts.insert(ids.of(counted(16), space).front());
  EXPECT_EQ(firsts.size(), std::size(spaces));
}

TEST(TraceIds, WhoHasNotTheSecretCannotTryAPrompt) {
  const Ids ids = TraceIds("secret", 16).of(counted(48), {});
  EXPECT_EQ(ids, TraceIds("secret", 16).of(counted(48), {}));
  for (const std::uint64_t id : TraceIds("Secret", 16).of(counted(48), {})) {
    EXPECT_EQ(std::ranges::find(ids, id), ids.end());
  }
  EXPECT_NE(ids.front(), TraceIds("secret", 48).of(counted(16), {}).front());
}

TEST(TraceIds, FitJson) {
  const TraceIds ids("secret", 1);
  std::uint64_t all = 0;
  for (const std::uint64_t id : ids.of(counted(1000), {})) {
    EXPECT_LT(id, std::uint64_t{1} << 53);
    EXPECT_EQ(static_cast<std::uint64_t>(static_cast<double>(id)), id);
    all |= id;
  }
  EXPECT_EQ(all, (std::uint64_t{1} << 53) - 1) << "all bits are in use";
}

}  // namespace
}  // namespace larder
