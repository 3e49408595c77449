// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/ranks/rank_story.h"

namespace larder::ranks_test {
namespace {

// Each begins at another seed. A stopped rank takes its time, and each test has a limit.
class RankProcesses : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RankProcesses, TenPoints) { run_stories(GetParam(), 10); }

INSTANTIATE_TEST_SUITE_P(From, RankProcesses, testing::Values(4, 14, 24, 34, 44), testing::PrintToStringParamName());

}  // namespace
}  // namespace larder::ranks_test
