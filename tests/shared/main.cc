// SPDX-License-Identifier: Apache-2.0
// The test program is its own victim: `--share ...` is a process that gets killed.
// (It stands before gtest_main on the link line, and so is the one main().)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/shared/killed_sharer.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.size() > 1 && arguments[1] == larder::shared_tests::kSharerArgument) {
    return larder::shared_tests::run_sharer(arguments);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
