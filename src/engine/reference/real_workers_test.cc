// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/real_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace larder::reference {
namespace {

constexpr double kLarge = 1e9;  // worth waking the others

// Tasks wait for each other until both workers have one: then the one of `thrower` throws.
class Meeting {
 public:
  explicit Meeting(std::size_t thrower) : thrower_(thrower) {}
  void attend(std::size_t worker) {
    came_[worker].store(true);
    came_[worker].notify_all();
    came_[1 - worker].wait(false);
    if (worker == thrower_) throw std::runtime_error("from worker " + std::to_string(worker));
  }

 private:
  const std::size_t thrower_;
  std::atomic<bool> came_[2] = {false, false};
};

TEST(Workers, WhatATaskThrowsComesOutOfRunOnce) {
  Workers workers(2);
  for (const std::size_t thrower : {1u, 0u, 1u}) {
    Meeting meeting(thrower);
    std::string thrown;
    try {
      workers.run(2, kLarge, [&](std::size_t, std::size_t worker) { meeting.attend(worker); });
    } catch (const std::runtime_error& e) {
      thrown = e.what();
    }
    EXPECT_EQ(thrown, "from worker " + std::to_string(thrower));
    std::atomic<std::size_t> done{0};
    workers.run(100, kLarge, [&](std::size_t, std::size_t) { ++done; });
    EXPECT_EQ(done.load(), 100u);
  }
}

TEST(Workers, AllMayThrow) {
  Workers workers(3);
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(workers.run(64, kLarge, [](std::size_t, std::size_t) { throw std::bad_alloc(); }), std::bad_alloc);
  }
  EXPECT_THROW(workers.run(64, 1, [](std::size_t, std::size_t) { throw std::bad_alloc(); }), std::bad_alloc);
  std::atomic<std::size_t> done{0};
  workers.run(64, kLarge, [&](std::size_t, std::size_t) { ++done; });
  EXPECT_EQ(done.load(), 64u);
}

}  // namespace
}  // namespace larder::reference
