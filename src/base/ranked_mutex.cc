// SPDX-License-Identifier: Apache-2.0
#include "base/ranked_mutex.h"

#include <cstdio>
#include <cstdlib>
#include <functional>

namespace larder {
namespace {

// The ranks this thread holds, in the order taken; hence ascending.
struct HeldRanks {
  LockRank ranks[kMaxHeldLocks];
  int count = 0;
};
thread_local HeldRanks held;

[[noreturn]] void fail(const char* what, int rank, int top) {
  std::fprintf(stderr, "larder: lock order: %s (rank %d, highest held %d)\n", what, rank, top);
  std::abort();
}

void check_before(LockRank rank) {
  if (held.count == 0) return;
  const LockRank top = held.ranks[held.count - 1];
  if (rank <= top) fail("a lock must rank above those held", static_cast<int>(rank), static_cast<int>(top));
  if (held.count == kMaxHeldLocks) fail("too many locks held", static_cast<int>(rank), static_cast<int>(top));
}

void forget(LockRank rank) {
  for (int i = held.count; i > 0; --i) {
    if (held.ranks[i - 1] != rank) continue;
    for (int j = i; j < held.count; ++j) held.ranks[j - 1] = held.ranks[j];
    --held.count;
    return;
  }
  fail("unlock of a lock this thread does not hold", static_cast<int>(rank), 0);
}

}  // namespace

void RankedMutex::lock() {
  check_before(rank_);
  mutex_.lock();
  held.ranks[held.count++] = rank_;
}

bool RankedMutex::try_lock() {
  check_before(rank_);
  if (!mutex_.try_lock()) return false;
  held.ranks[held.count++] = rank_;
  return true;
}

LockAll::LockAll(std::span<RankedMutex* const> mutexes) : mutexes_(mutexes) {
  if (mutexes_.empty()) return;
  const LockRank rank = mutexes_.front()->rank_;
  check_before(rank);
  for (std::size_t i = 1; i < mutexes_.size(); ++i) {
    const bool is_in_order =
        mutexes_[i]->rank_ == rank && std::less<const RankedMutex*>()(mutexes_[i - 1], mutexes_[i]);
    if (!is_in_order) fail("several locks must ascend, and be of one rank", static_cast<int>(rank), held.count);
  }
  for (RankedMutex* const mutex : mutexes_) mutex->mutex_.lock();
  held.ranks[held.count++] = rank;
}

LockAll::~LockAll() {
  if (mutexes_.empty()) return;
  forget(mutexes_.front()->rank_);
  for (RankedMutex* const mutex : mutexes_) mutex->mutex_.unlock();
}

void RankedMutex::check_last() const {
  const bool is_last = held.count > 0 && held.ranks[held.count - 1] == rank_;
  if (!is_last) fail("a wait on a lock that is not the last one taken", static_cast<int>(rank_), held.count);
}

void RankedMutex::unlock() {
  forget(rank_);
  mutex_.unlock();
}

}  // namespace larder
