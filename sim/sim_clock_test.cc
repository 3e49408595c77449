// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace larder::sim {
namespace {

using namespace std::chrono_literals;

TEST(SimClock, RunsEventsInTimeOrder) {
  SimClock clock;
  std::vector<int> order;
  clock.after(2s, [&] { order.push_back(2); });
  clock.after(1s, [&] {
    order.push_back(1);
    clock.after(500ms, [&] { order.push_back(15); });
  });
  clock.after(1s, [&] { order.push_back(10); });
  clock.advance(1600ms);
  EXPECT_EQ(order, (std::vector<int>{1, 10, 15}));
  EXPECT_EQ(clock.now().time_since_epoch(), Nanos(1600ms));
  EXPECT_TRUE(clock.run_next());
  EXPECT_EQ(clock.now().time_since_epoch(), Nanos(2s));
  EXPECT_FALSE(clock.run_next());
}

std::vector<int> order_of(std::uint64_t seed) {
  SimClock clock;
  SimExecutor executor(clock, seed, 1us, 1ms);
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(executor.post([&order, i] { order.push_back(i); }).is_ok());
  clock.run_all();
  return order;
}

TEST(SimExecutor, ReplaysFromItsSeed) {
  EXPECT_EQ(order_of(1), order_of(1));
  EXPECT_NE(order_of(1), order_of(2));
}

TEST(SimExecutor, IsBounded) {
  SimClock clock;
  SimExecutor executor(clock, 1, 1us, 1us, 1);
  EXPECT_TRUE(executor.post([] {}).is_ok());
  EXPECT_EQ(executor.post([] {}).code(), StatusCode::kOverloaded);
  clock.run_all();
  EXPECT_TRUE(executor.post([] {}).is_ok());
}

TEST(SimExecutor, RefusesWhenTold) {
  SimClock clock;
  SimExecutor executor(clock, 1, 1us, 1us);
  executor.refuse_nth(2, 2);
  std::string taken;
  for (int i = 0; i < 5; ++i) taken += executor.post([] {}).is_ok() ? '+' : '-';
  EXPECT_EQ(taken, "+--++");
  EXPECT_EQ(executor.refused(), 2u);
  executor.refuse_nth(1);
  executor.refuse_nth(0);
  EXPECT_TRUE(executor.post([] {}).is_ok());
}

}  // namespace
}  // namespace larder::sim
