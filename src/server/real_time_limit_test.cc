// SPDX-License-Identifier: Apache-2.0
#include "server/real_time_limit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace larder {
namespace {

TEST(TimeLimit, WhatIsNotOverInTimeIsTold) {
  std::promise<void> over;
  const TimeLimit limit(Nanos{0}, [&over] { over.set_value(); });
  over.get_future().wait();
}

TEST(TimeLimit, WhatIsOverInTimeIsNotToldAndWaitsForNothing) {
  std::atomic<bool> is_over{false};
  {
    const TimeLimit limit(std::chrono::hours(1), [&is_over] { is_over = true; });
  }
  EXPECT_FALSE(is_over);
}

}  // namespace
}  // namespace larder
