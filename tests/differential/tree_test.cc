// SPDX-License-Identifier: Apache-2.0
// The tree beside the reference's: seeded histories of lookups, insertions, copies, locks and evictions.
//
// LARDER_TEST_SEED: the first seed. A failure prints its seed and a shrunk history.
#include <gtest/gtest.h>

#include "tests/differential/tree_pair.h"
#include "tests/support/brief.h"

namespace larder::differential {
namespace {

constexpr std::uint64_t kSteps = 150, kTries = 60;

TEST(TreeBesideTheReference, DiffersOnlyWhereTheTableSaysSo) {
  DifferenceCounts counts;
  const std::string error = compare_histories({first_seed(1), support::is_brief() ? 20u : 40u, kSteps}, counts);
  ASSERT_TRUE(error.empty()) << error;
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
    for (std::uint64_t i = 0; i < kTries && found.empty(); ++i) {
      for (const PairConfig& config : pair_configs()) {
        DifferenceCounts unused;
        found = run_history(config, rules, random_history(1 + i, kSteps), unused);
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
