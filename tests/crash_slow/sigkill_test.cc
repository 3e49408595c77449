// SPDX-License-Identifier: Apache-2.0
// What tests/crash does forty times.
#include <gtest/gtest.h>

#include "tests/crash/kill_chain.h"

namespace larder::crash {
namespace {

// The first four chains are those of the fast test.
TEST(Sigkill, FiveHundredKills) { run_chains(4, 50); }

}  // namespace
}  // namespace larder::crash
