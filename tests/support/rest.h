// SPDX-License-Identifier: Apache-2.0
// For tests that look again and again at what other threads do, where nothing tells them of it.
#pragma once

#include "base/lock_rank.h"
#include "base/ranked_mutex.h"

namespace larder {

// A millisecond for those others: who looks without it takes a core, and often the lock that they need, from them.
inline void rest() {
  RankedMutex mutex(LockRank::kServer);
  RankedCondition nobody;
  LockGuard guard(mutex);
  (void)nobody.wait_for(mutex, std::chrono::milliseconds(1));
}

}  // namespace larder
