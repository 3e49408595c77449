// SPDX-License-Identifier: Apache-2.0
// The test program is its own rank: `--rank-process ...`.
// (It stands before gtest_main on the link line, and so is the one main().)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/ranks/rank_process.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.size() > 1 && arguments[1] == larder::ranks_test::kRankArgument) {
    return larder::ranks_test::run_rank_process(arguments);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
