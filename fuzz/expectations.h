// SPDX-License-Identifier: Apache-2.0
// For targets that use headers of tests: a failed EXPECT_ there ends the process, as fuzz_check() does.
#pragma once

#include <gtest/gtest.h>

namespace larder::fuzz {

inline void end_at_failed_expectations() { GTEST_FLAG_SET(break_on_failure, true); }

}  // namespace larder::fuzz
