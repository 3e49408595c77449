// SPDX-License-Identifier: Apache-2.0
// Three points; fifty are in tests/ranks_slow.
#include <gtest/gtest.h>

#include "tests/ranks/rank_story.h"

namespace larder::ranks_test {
namespace {

TEST(RankProcesses, ThreePoints) { run_stories(1, 3); }

}  // namespace
}  // namespace larder::ranks_test
