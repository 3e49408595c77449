// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/ranks/rank_story.h"

namespace larder::ranks_test {
namespace {

TEST(RankProcesses, FiftyPoints) { run_stories(7, 50); }

}  // namespace
}  // namespace larder::ranks_test
