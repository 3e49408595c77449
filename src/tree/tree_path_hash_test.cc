// SPDX-License-Identifier: Apache-2.0
// Who observes the tree is told the hash of the path before what is lost, however edges were split and joined on the
// way.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "tree/tree_observer.h"
#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

PathHash hash_of(std::span<const TokenId> tokens) {
  PathHash hash;
  hash.append(tokens);
  return hash;
}

// Knows all paths that were ever there, by their hash.
class Witness final : public TreeObserver {
 public:
  explicit Witness(std::uint32_t page_size) : page_size_(page_size) {}
  void add(const Tokens& prompt) {
    for (std::size_t pages = 0; pages <= prompt.size() / page_size_; ++pages) {
      const Tokens path(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(pages * page_size_));
      paths_[hash_of(path).spread()] = path;
      known_.insert(path);
    }
  }
  void lost(const TreeChange& change, PathHash before) override {
    ++told;
    const auto at = paths_.find(before.spread());
    if (at == paths_.end() || at->second.size() != change.begin * page_size_) {
      ++wrong;
      return;
    }
    Tokens whole = at->second;
    whole.insert(whole.end(), change.tokens.begin(), change.tokens.end());
    if (!known_.contains(whole)) ++wrong;
  }
  std::size_t told = 0, wrong = 0;

 private:
  const std::uint32_t page_size_;
  std::map<std::uint64_t, Tokens> paths_;
  std::set<Tokens> known_;
};

TEST(TreePathHash, IsThatOfTheTokensBeforeWhatIsLost) {
  constexpr std::uint32_t kPage = 4;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    Fixture f(config_of(kPage, 0, false));
    Witness witness(kPage);
    f.tree.observers().set_losses(&witness);
    std::vector<Tokens> prompts;
    for (int step = 0; step < 300; ++step) {
      Tokens prompt;
      if (!prompts.empty() && rng.below(3) != 0) {  // a head of one that was there
        prompt = prompts[rng.below(prompts.size())];
        prompt.resize(rng.below(prompt.size() / kPage + 1) * kPage);
      }
      for (std::uint64_t more = 1 + rng.below(12); more > 0; --more) {
        for (std::uint32_t i = 0; i < kPage; ++i) prompt.push_back(static_cast<TokenId>(rng.below(3)));
      }
      witness.add(prompt);
      f.insert(prompt);
      prompts.push_back(prompt);
      if (rng.below(2) == 0) (void)f.tree.evict_device(kFull, 1 + rng.below(20), VictimRule::kDrop);
      const TreePosition at = f.match(prompt).walked;
      const std::span<const TokenId> walked = std::span<const TokenId>(prompt).first(at.pages * kPage);
      ASSERT_EQ(f.tree.keys().path_hash(at), hash_of(walked)) << "seed " << seed << ", step " << step;
    }
    (void)f.tree.flush();
    EXPECT_GT(witness.told, 100u) << "seed " << seed;
    ASSERT_EQ(witness.wrong, 0u) << "seed " << seed;
    f.tree.observers().set_losses(nullptr);
  }
}

TEST(TreePathHash, TellsOnlyOfLastCopies) {
  Fixture f(config_of(2, 0, false));
  Witness witness(2);
  f.tree.observers().set_losses(&witness);
  const Tokens tokens = iota_tokens(8);
  witness.add(tokens);
  f.insert(tokens);
  const NodeId node = f.match(tokens).walked.node;
  ASSERT_TRUE(f.tree.attach_host(OpId(1), node, kFull, f.ledger.host(kFull, 4)).is_ok());
  (void)f.tree.finish_op(OpId(1), true);
  (void)f.tree.evict_device(kFull, 4, VictimRule::kDrop);
  EXPECT_EQ(witness.told, 0u);
  (void)f.tree.evict_host(kFull, 4);
  EXPECT_EQ(witness.told, 1u);
  EXPECT_EQ(witness.wrong, 0u);
  f.tree.observers().set_losses(nullptr);
}

TEST(TreePathHash, WaysOn) {
  Fixture f(config_of(4, 0, false));
  f.insert(Tokens{1, 2, 3, 4, 5, 6, 7, 8});
  f.insert(Tokens{1, 2, 3, 4, 5, 9, 9, 9});
  const auto ways = [&](const Tokens& prompt) {
    const TreePosition at = f.match(prompt).walked;
    return f.tree.ways_on(at, std::span<const TokenId>(prompt).subspan(at.pages * 4));
  };
  EXPECT_EQ(ways({1, 2, 3, 4, 5, 6, 7, 9}).equal, 3u);
  EXPECT_EQ(ways({1, 2, 3, 4, 5, 9, 1, 1}).equal, 2u);
  EXPECT_EQ(ways({1, 2, 9, 9}).equal, 2u);
  EXPECT_TRUE(ways({7, 7, 7, 7}).any);
  EXPECT_FALSE(ways({1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9}).any);
}

}  // namespace
}  // namespace larder::tree_test
