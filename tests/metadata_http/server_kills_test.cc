// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata_http/server_kills.h"

#include <gtest/gtest.h>

#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {
namespace {

TEST(ServerKillsTest, TwentyKillsUnderLoad) { run_server_kills(metadata_test_seed() + 2, 20); }

}  // namespace
}  // namespace larder::conformance
