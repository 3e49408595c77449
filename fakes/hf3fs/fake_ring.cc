// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_ring.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

namespace larder::hf3fs {
namespace {

std::uint64_t this_thread_number() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

// CLOCK_REALTIME is system_clock's. Far deadlines are cut, so that arithmetic on them cannot overflow.
std::chrono::system_clock::time_point time_of(const struct timespec& when) {
  constexpr std::int64_t kFar = std::int64_t{1} << 33;
  const std::chrono::seconds seconds(std::clamp(static_cast<std::int64_t>(when.tv_sec), -kFar, kFar));
  return std::chrono::system_clock::time_point(seconds + std::chrono::nanoseconds(when.tv_nsec));
}

}  // namespace

RoleWatch::Verdict RoleWatch::enter() {
  Verdict verdict;
  const std::uint64_t self = this_thread_number();
  std::uint64_t first = 0;
  verdict.changed = !first_.compare_exchange_strong(first, self, std::memory_order_acq_rel) && first != self;
  verdict.overlapped = inside_.fetch_add(1, std::memory_order_acq_rel) != 0;
  return verdict;
}

FakeRing::FakeRing(RingSettings given)
    : settings(std::move(given)), ios_(static_cast<std::size_t>(settings.entries)), rng_(settings.seed) {
  const std::size_t entries = ios_.size();
  free_.assign((entries + 63) / 64, ~std::uint64_t{0});
  if (entries % 64 != 0) free_.back() = (std::uint64_t{1} << (entries % 64)) - 1;
}

int FakeRing::take_free_slot() {
  for (std::size_t word = 0; word < free_.size(); ++word) {
    if (free_[word] == 0) continue;
    const int bit = std::countr_zero(free_[word]);
    free_[word] &= free_[word] - 1;
    return static_cast<int>(word * 64) + bit;
  }
  return -1;
}

int FakeRing::prepare(FakeIo io, std::uint32_t start_permille, std::uint64_t now_ms, bool& start) {
  const FakeGuard guard(mutex_);
  const int slot = take_free_slot();
  if (slot < 0) return -EAGAIN;
  ios_[static_cast<std::size_t>(slot)] = std::move(io);
  if (prepared_.empty()) oldest_prepared_ms_ = now_ms;
  prepared_.push_back(slot);
  start = start_permille > 0 && rng_.chance(std::min(start_permille, 1000u), 1000);
  return slot;
}

bool FakeRing::full() const {
  const FakeGuard guard(mutex_);
  return std::all_of(free_.begin(), free_.end(), [](std::uint64_t word) { return word == 0; });
}

void FakeRing::mark_submitted() {
  const FakeGuard guard(mutex_);
  for (const int slot : prepared_) io(slot).submitted = true;
}

std::size_t FakeRing::next_job_size(std::uint64_t now_ms, bool d1) const {
  const std::size_t waiting = prepared_.size();
  if (waiting == 0 || settings.broken_semaphore) return 0;
  if (settings.io_depth == 0) return waiting;
  const std::size_t depth = static_cast<std::size_t>(std::abs(static_cast<std::int64_t>(settings.io_depth)));
  if (waiting >= depth) return depth;
  if (settings.io_depth > 0) return 0;  // an exact multiple, or it waits for ever
  if (settings.timeout_ms == 0) return waiting;
  if (d1) return 0;
  return now_ms >= oldest_prepared_ms_ + static_cast<std::uint64_t>(settings.timeout_ms) ? waiting : 0;
}

std::vector<std::vector<int>> FakeRing::take_jobs(std::uint64_t now_ms, bool d1, std::size_t limit) {
  const FakeGuard guard(mutex_);
  std::vector<std::vector<int>> jobs;
  while (jobs.size() < limit) {
    const std::size_t size = next_job_size(now_ms, d1);
    if (size == 0) break;
    const auto end = prepared_.begin() + static_cast<std::ptrdiff_t>(size);
    jobs.emplace_back(prepared_.begin(), end);
    prepared_.erase(prepared_.begin(), end);
    running_ += size;
    oldest_prepared_ms_ = now_ms;
  }
  return jobs;
}

bool FakeRing::has_jobs(std::uint64_t now_ms, bool d1) const {
  const FakeGuard guard(mutex_);
  return next_job_size(now_ms, d1) != 0;
}

std::optional<std::uint64_t> FakeRing::next_timeout_ms(bool d1) const {
  const FakeGuard guard(mutex_);
  if (prepared_.empty() || d1 || settings.io_depth >= 0 || settings.timeout_ms == 0) return std::nullopt;
  return oldest_prepared_ms_ + static_cast<std::uint64_t>(settings.timeout_ms);
}

void FakeRing::post(const std::vector<int>& slots) {
  {
    const FakeGuard guard(mutex_);
    running_ -= slots.size();
    done_.insert(done_.end(), slots.begin(), slots.end());
  }
  completed_.notify_all();
}

int FakeRing::fill(Hf3fsCqe* cqes, int capacity, int from) {
  while (from < capacity && !done_.empty()) {
    const int slot = done_.front();
    done_.pop_front();
    FakeIo& done = io(slot);
    cqes[from++] = Hf3fsCqe{slot, 0, done.result, done.userdata};
    done = FakeIo{};
    free_[static_cast<std::size_t>(slot) / 64] |= std::uint64_t{1} << (slot % 64);
  }
  return from;
}

int FakeRing::reap(Hf3fsCqe* cqes, int capacity, int least, const struct timespec* deadline) {
  const FakeGuard guard(mutex_);
  int filled = fill(cqes, capacity, 0);
  while (filled < std::min(least, capacity) && !closed_) {
    bool in_time = true;
    if (deadline == nullptr) {
      completed_.wait(mutex_);
    } else {
      in_time = completed_.wait_until(mutex_, time_of(*deadline));
    }
    filled = fill(cqes, capacity, filled);
    if (!in_time) break;
  }
  return filled;
}

void FakeRing::close() {
  const FakeGuard guard(mutex_);
  closed_ = true;
  completed_.notify_all();
}

bool FakeRing::closed() const {
  const FakeGuard guard(mutex_);
  return closed_;
}

std::size_t FakeRing::in_flight() const {
  const FakeGuard guard(mutex_);
  return prepared_.size() + running_;
}

std::uint64_t FakeRing::draw(std::uint64_t n) {
  const FakeGuard guard(mutex_);
  return rng_.below(n);
}

void FakeRing::shuffle(std::vector<int>& slots) {
  const FakeGuard guard(mutex_);
  rng_.shuffle(std::span<int>(slots));
}

}  // namespace larder::hf3fs
