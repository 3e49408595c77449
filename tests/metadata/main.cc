// SPDX-License-Identifier: Apache-2.0
// The tests, or the child that one of them kills.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/metadata/crash_rounds.h"

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == larder::conformance::kCrashChild) {
    return larder::conformance::run_crash_child(argv[2], std::strtoull(argv[3], nullptr, 10));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
