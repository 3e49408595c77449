// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/ranks/rank_story.h"

namespace larder::ranks_test {
namespace {

TEST(RankProcesses, TwentyFivePoints) { run_stories(7, 25); }
TEST(RankProcesses, TwentyFiveOtherPoints) { run_stories(32, 25); }

}  // namespace
}  // namespace larder::ranks_test
