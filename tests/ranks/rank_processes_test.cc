// SPDX-License-Identifier: Apache-2.0
// Six points; fifty are in tests/ranks_slow.
#include <gtest/gtest.h>

#include "tests/ranks/rank_story.h"

namespace larder::ranks_test {
namespace {

// Two tests, as a stopped rank takes its time and each test has a limit.
TEST(RankProcesses, ThreePoints) { run_stories(1, 3); }
TEST(RankProcesses, ThreeOtherPoints) { run_stories(4, 3); }

}  // namespace
}  // namespace larder::ranks_test
