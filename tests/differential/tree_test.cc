// The tree beside the reference's: seeded histories of lookups, insertions, copies, locks and evictions.
//
// LARDER_TEST_SEED: the first seed. A failure prints its seed and a shrunk history.
#include <gtest/gtest.h>

#include "tests/differential/tree_pair.h"

namespace larder::differential {
namespace {

constexpr std::uint64_t kSteps = 150, kHistories = 16;

std::vector<PairStep> history(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<PairStep> steps;
  while (steps.size() < kSteps) steps.push_back(random_step(rng));
  return steps;
}

TEST(TreeBesideTheReference, DiffersOnlyWhereTheTableSaysSo) {
  DifferenceCounts counts;
  const std::uint64_t seed = first_seed(1);
  for (const PairConfig& config : pair_configs()) {
    for (std::uint64_t i = 0; i < kHistories; ++i) {
      const std::vector<PairStep> steps = history(seed + i);
      const std::string error = run_history(config, all_rules(), steps, counts);
      if (error.empty()) continue;
      const std::vector<PairStep> fewer = shrink(config, all_rules(), steps);
      DifferenceCounts unused;
      FAIL() << config.name << ": " << error << "; replay: LARDER_TEST_SEED=" << seed + i << "\nshrunk to "
             << fewer.size() << " steps (" << run_history(config, all_rules(), fewer, unused) << "):\n"
             << describe(fewer);
    }
  }
  EXPECT_EQ(counts.dead_entries(DifferencePart::kTree), "") << counts.to_string(DifferencePart::kTree);
  printf("%s", counts.to_string(DifferencePart::kTree).c_str());
}

// An entry that could be struck out of the table, and nobody would see it, is none.
TEST(TreeBesideTheReference, EveryEntryIsNeeded) {
  for (const DifferenceEntry& entry : all_differences()) {
    if (entry.part != DifferencePart::kTree) continue;
    Rules rules = all_rules();
    rules.erase(entry.id);
    std::string found;
    for (std::uint64_t i = 0; i < kHistories && found.empty(); ++i) {
      for (const PairConfig& config : pair_configs()) {
        DifferenceCounts unused;
        found = run_history(config, rules, history(1 + i), unused);
        if (found.empty()) continue;
        printf("  %s: %s, seed %d: %s\n", std::string(entry.name).c_str(), config.name.c_str(), static_cast<int>(1 + i),
               found.c_str());
        break;
      }
    }
    EXPECT_NE(found, "") << entry.name << ": the reference's rule leads to the same";
  }
}

}  // namespace
}  // namespace larder::differential
