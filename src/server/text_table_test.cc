// SPDX-License-Identifier: Apache-2.0
#include "server/text_table.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(TextTable, CountsInWords) {
  EXPECT_EQ(counted_text(0, "page"), "0 pages");
  EXPECT_EQ(counted_text(1, "damaged group"), "1 damaged group");
  EXPECT_EQ(counted_text(1234, "page"), "1,234 pages");
}

TEST(TextTable, NothingIsNotNegative) {
  EXPECT_EQ(signed_text(-0.001, 2), "+0.00");
  EXPECT_EQ(signed_text(-0.0, 0), "+0");
  EXPECT_EQ(signed_text(-0.005001, 2), "-0.01");
  EXPECT_EQ(signed_text(10, 1), "+10.0");
}

}  // namespace
}  // namespace larder
