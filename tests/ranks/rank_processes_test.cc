// SPDX-License-Identifier: Apache-2.0
// Six points; fifty are in tests/ranks_slow.
#include <gtest/gtest.h>

#include "tests/ranks/rank_story.h"

namespace larder::ranks_test {
namespace {

TEST(RankProcesses, SixPoints) { run_stories(1, 6); }

}  // namespace
}  // namespace larder::ranks_test
