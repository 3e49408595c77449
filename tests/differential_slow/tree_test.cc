// SPDX-License-Identifier: Apache-2.0
// The long run of tests/differential: more histories, and longer ones.
//
// LARDER_TEST_SEED: the first seed (default 100,000). LARDER_DIFFERENTIAL_HISTORIES: histories of each kind of tree
// (default 150). A failure prints its seed and a shrunk history.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/differential/tree_pair.h"

namespace larder::differential {
namespace {

TEST(TreeBesideTheReferenceLong, DiffersOnlyWhereTheTableSaysSo) {
  const char* const text = std::getenv("LARDER_DIFFERENTIAL_HISTORIES");
  const std::uint64_t histories = text == nullptr ? 150 : std::strtoull(text, nullptr, 10);
  DifferenceCounts counts;
  for (const HistoryRange& range :
       {HistoryRange{first_seed(100'000), histories, 150}, HistoryRange{first_seed(100'000), histories / 10, 1'000}}) {
    const std::string error = compare_histories(range, counts);
    ASSERT_TRUE(error.empty()) << error;
  }
  printf("%s", counts.to_string(DifferencePart::kTree).c_str());
}

}  // namespace
}  // namespace larder::differential
