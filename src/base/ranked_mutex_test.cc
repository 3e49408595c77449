#include "base/ranked_mutex.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace larder
