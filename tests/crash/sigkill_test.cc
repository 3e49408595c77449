// SPDX-License-Identifier: Apache-2.0
// Forty kills; five hundred are in tests/crash_slow.
#include <gtest/gtest.h>

#include "tests/crash/kill_chain.h"

namespace larder::crash {
namespace {

TEST(Sigkill, FortyKills) { run_chains(0, 4); }

}  // namespace
}  // namespace larder::crash
