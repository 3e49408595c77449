// SPDX-License-Identifier: Apache-2.0
// The production tree and the reference's, side by side: one history drives both, and after each step all that a caller
// sees of them is compared.
//
// A history is a list of operations; an operation is a kind and four random numbers, whose meaning depends on the state
// when it runs. So any part of a history is one, too, which is what shrinking needs.
// Threads: confined.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/differential/reference_tree.h"
#include "tree/tree_test_support.h"

namespace larder::differential {

enum class StepKind : std::uint8_t {
  kLookup,
  kInsert,
  kAdopt,
  kBackUp,
  kLoadBack,
  kLock,
  kUnlock,
  kRelease,
  kEvictDevice,
  kEvictHost,
};
struct PairStep {
  StepKind kind{};
  std::array<std::uint64_t, 4> r{};
};
[[nodiscard]] PairStep random_step(Rng& rng);
// One line a step, as a C++ initializer.
[[nodiscard]] std::string describe(const std::vector<PairStep>& steps);

struct PairConfig {
  std::string name;
  TreeConfig tree;
  std::uint64_t pages_max = 9;  // of a path
};
// Page sizes, windows below, at and above a page and of several, with and without state; every policy.
[[nodiscard]] std::vector<PairConfig> pair_configs();

class TreePair {
 public:
  TreePair(const PairConfig& config, const Rules& rules, DifferenceCounts& counts);

  // Empty: they agree. Else what differs.
  [[nodiscard]] std::string step(const PairStep& step);

 private:
  struct Path {
    std::size_t space = 0;
    std::vector<TokenId> tokens;  // may end inside a page

    [[nodiscard]] std::vector<TokenId> first(std::uint64_t pages, std::uint64_t page_size) const {
      return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(pages * page_size)};
    }
  };
  struct Held {
    LockHandle full, rest;
    std::size_t reference = 0;
  };

  [[nodiscard]] Path path_of(std::uint64_t r) const;
  void remember(const Path& path);
  [[nodiscard]] std::string extra_of(const Path& path) const { return path.space == 0 ? "" : "tenant"; }
  [[nodiscard]] MatchResult match(const Path& path) const { return tree_.match(spaces_[path.space], path.tokens); }
  [[nodiscard]] NodeId node_at(const Path& path, std::uint64_t pages);

  std::string apply(const PairStep& step, const Path& path);
  std::string use(const Path& path);  // a lookup whose result is used
  std::string insert(const Path& path, const PairStep& step);
  std::string adopt(const Path& path, const PairStep& step);
  [[nodiscard]] std::uint64_t adoptable_window(const Path& path, std::uint64_t from, std::uint64_t pages) const;
  std::string back_up(const Path& path, const PairStep& step);
  std::string load_back(const Path& path, const PairStep& step);
  std::string attach(OpId op, const Path& path, std::uint64_t end, const ReferenceTree::LoadPlan& plan,
                     const std::array<Slots, 3>& slots);
  std::string insert_under_way(const Path& path, const ReferenceTree::LoadPlan& plan);
  std::string lock(const Path& path, const PairStep& step);
  std::string unlock(const PairStep& step);
  std::string release(const PairStep& step);
  std::string evict(const PairStep& step, Tier tier);
  std::string evict_once(ComponentKind c, Tier tier, std::uint64_t& count, bool& has_named);
  std::string back_up_named(const std::vector<NodeId>& have, const std::vector<ReferenceNode*>& want);

  std::string compare_answer(const Path& path, const ReferenceAnswer& want) const;
  std::string compare_keys(const Path& path);
  void collect_freed();
  std::string compare_freed();
  std::string compare_contents();
  std::string compare_path(ReferenceNode& leaf);

  PairConfig config_;
  tree_test::Ledger ledger_;
  RadixTree tree_;
  Rules rules_;
  DifferenceCounts& counts_;
  ReferenceTree reference_;
  std::array<NamespaceId, 2> spaces_;
  PageKey seed_;  // of the second
  std::vector<Path> recent_;
  std::vector<Held> held_;
  std::array<std::array<Slots, 2>, 3> freed_;  // by production, in order, since the last comparison
  std::uint64_t next_op_ = 1;
};

// Runs a history on fresh trees. Empty: they agreed. Else the step and what differed.
[[nodiscard]] std::string run_history(const PairConfig& config, const Rules& rules, const std::vector<PairStep>& steps,
                                      DifferenceCounts& counts);
[[nodiscard]] std::vector<PairStep> random_history(std::uint64_t seed, std::uint64_t steps);

struct HistoryRange {
  std::uint64_t first_seed = 1, count = 0;  // of histories, for each of pair_configs()
  std::uint64_t steps = 0;                  // of each
};
// With all rules of ours. Empty: production and reference agreed. Else what failed, its seed, and a shrunk history.
[[nodiscard]] std::string compare_histories(const HistoryRange& range, DifferenceCounts& counts);
// Leaves out what is not needed for some disagreement.
[[nodiscard]] std::vector<PairStep> shrink(const PairConfig& config, const Rules& rules, std::vector<PairStep> steps);

}  // namespace larder::differential
