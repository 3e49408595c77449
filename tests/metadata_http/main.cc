// SPDX-License-Identifier: Apache-2.0
// The tests, or the server that one of them kills. (It stands before that of tests/metadata on the link line.)
#include <gtest/gtest.h>

#include <string_view>

#include "tests/metadata_http/server_kills.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == larder::conformance::kServerChild) {
    return larder::conformance::run_server_child(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
