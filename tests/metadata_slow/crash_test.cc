// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/metadata/crash_rounds.h"
#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {
namespace {

TEST(MetadataCrashTest, TwoHundredKills) { run_crash_rounds(metadata_test_seed() + 1, 200); }

}  // namespace
}  // namespace larder::conformance
