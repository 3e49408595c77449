// SPDX-License-Identifier: Apache-2.0
// The test program is its own victim: `--write-until-killed ...` is the process that gets killed.
// (It stands before gtest_main on the link line, and so is the one main().)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/crash/killed_writer.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.size() > 1 && arguments[1] == larder::crash::kWriterArgument) {
    return larder::crash::run_writer(arguments);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
