// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata_http/server_kills.h"

#include <gtest/gtest.h>

#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {
namespace {

TEST(ServerKillsTest, TwoHundredKillsUnderLoad) { run_server_kills(metadata_test_seed() + 3, 200); }

}  // namespace
}  // namespace larder::conformance
