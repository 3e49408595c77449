// SPDX-License-Identifier: Apache-2.0
// docs/testing.md shows the table of differences as it stands in code: no row less, no row more, no other words.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/differential/differences.h"

namespace larder::differential {
namespace {

TEST(DifferencesTable, StandsInTheDocsAsInCode) {
  std::ifstream file(std::string(LARDER_SOURCE_DIR) + "/docs/testing.md");
  ASSERT_TRUE(file.is_open());
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## Differences from the reference system";
    if (inside && line.starts_with("| `")) rows.push_back(line);
  }
  std::ostringstream wanted;
  std::vector<std::string> expected;
  for (const DifferenceEntry& entry : all_differences()) {
    expected.push_back(table_row(entry));
    wanted << expected.back() << "\n";
  }
  EXPECT_EQ(rows, expected) << "the table that docs/testing.md should have:\n" << wanted.str();
}

TEST(DifferencesTable, IsInTheOrderOfItsNames) {
  for (std::size_t i = 0; i < all_differences().size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(all_differences()[i].id), i) << all_differences()[i].name;
  }
}

}  // namespace
}  // namespace larder::differential
