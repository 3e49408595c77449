// SPDX-License-Identifier: Apache-2.0
#include "base/ranked_mutex.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace larder {
namespace {

TEST(RankedMutex, UpwardIsFine) {
  RankedMutex storage(LockRank::kStorage);
  RankedMutex inbox(LockRank::kInbox);
  {
    LockGuard outer(storage);
    LockGuard inner(inbox);
  }
  LockGuard again(storage);
  if (inbox.try_lock()) {
    inbox.unlock();
  } else {
    FAIL();
  }
}

void lock_both(RankedMutex& first, RankedMutex& second) {
  LockGuard outer(first);
  LockGuard inner(second);
}

TEST(RankedMutexDeathTest, DownwardAndEqualAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RankedMutex inbox(LockRank::kInbox);
  RankedMutex storage(LockRank::kStorage);
  RankedMutex other_storage(LockRank::kStorage);
  EXPECT_DEATH(lock_both(inbox, storage), "lock order");
  EXPECT_DEATH(lock_both(storage, other_storage), "lock order");
}

TEST(LockAll, HoldsAllAsOneLock) {
  std::array<RankedMutex, 3> all{RankedMutex(LockRank::kStorage), RankedMutex(LockRank::kStorage),
                                 RankedMutex(LockRank::kStorage)};
  const std::vector<RankedMutex*> ascending{&all[0], &all[1], &all[2]};
  std::uint64_t counted = 0;
  const auto count = [&] {
    for (int i = 0; i < 10'000; ++i) {
      LockAll guard(ascending);
      RankedMutex inbox(LockRank::kInbox);
      LockGuard later(inbox);
      ++counted;
    }
  };
  std::thread other(count);
  count();
  other.join();
  EXPECT_EQ(counted, 20'000U);
  LockAll nothing({});
  LockGuard one(all[1]);  // all of them were let go
}

void lock_all(const std::vector<RankedMutex*>& mutexes) { LockAll guard(mutexes); }

void lock_all_under(RankedMutex& first, const std::vector<RankedMutex*>& mutexes) {
  LockGuard guard(first);
  lock_all(mutexes);
}

TEST(LockAllDeathTest, AnotherOrderAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::array<RankedMutex, 2> all{RankedMutex(LockRank::kStorage), RankedMutex(LockRank::kStorage)};
  RankedMutex inbox(LockRank::kInbox);
  EXPECT_DEATH(lock_all({&all[1], &all[0]}), "must ascend");
  EXPECT_DEATH(lock_all({&all[0], &all[0]}), "must ascend");
  EXPECT_DEATH(lock_all_under(all[0], {&all[1]}), "lock order");
  EXPECT_DEATH(lock_all_under(inbox, {&all[0], &all[1]}), "lock order");
}

TEST(RankedCondition, WaitsUntilItIsTold) {
  RankedMutex mutex(LockRank::kInbox);
  RankedCondition changed;
  int turn = 0;  // of the threads, by turns
  const auto play = [&](int me) {
    for (int round = 0; round < 1000; ++round) {
      LockGuard guard(mutex);
      while (turn % 2 != me) changed.wait(mutex);
      ++turn;
      changed.notify_one();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(turn, 2000);
  LockGuard guard(mutex);
  EXPECT_FALSE(changed.wait_for(mutex, std::chrono::milliseconds(1))) << "nobody told";
}

void wait_with_another(RankedMutex& waited, RankedMutex& taken_later) {
  RankedCondition never;
  LockGuard outer(waited);
  LockGuard inner(taken_later);
  never.wait(waited);
}

TEST(RankedConditionDeathTest, AWaitThatKeepsALaterLockAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RankedMutex storage(LockRank::kStorage);
  RankedMutex inbox(LockRank::kInbox);
  EXPECT_DEATH(wait_with_another(storage, inbox), "lock order");
}

}  // namespace
}  // namespace larder
