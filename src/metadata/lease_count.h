// SPDX-License-Identifier: Apache-2.0
// How many pages are leased now, without looking at them: ends of leases are counted in steps of 1/128 of the longest.
//
// A lease counts until the end of its step, so the number may lag by one. Only a statistic: what may be evicted is
// decided by the exact end. Threads: confined. Cost: O(1).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"
#include "metadata/page_entry.h"

namespace larder::metadata {

class LeaseCount {
 public:
  explicit LeaseCount(Nanos longest) : step_(std::max<std::int64_t>(1, longest.count() / 128)) {}

  void advance(std::int64_t now) {
    const std::int64_t step = now / step_;
    if (step - now_ >= kSteps) {
      ends_.fill(0);
      total_ = 0;
    } else {
      for (std::int64_t at = now_ + 1; at <= step; ++at) {
        total_ -= end_at(at);
        end_at(at) = 0;
      }
    }
    now_ = std::max(now_, step);
  }
  // `until` is at most the longest lease from now.
  void add(std::int64_t until) { change(until, 1); }
  void remove(std::int64_t until) { change(until, -1); }
  [[nodiscard]] std::uint64_t total() const { return static_cast<std::uint64_t>(total_); }
  // Is a lease with this end in total()?
  [[nodiscard]] bool counts(std::int64_t until) const { return until != kNoLease && step_of(until) > now_; }

 private:
  static constexpr std::int64_t kSteps = 256;
  [[nodiscard]] std::int64_t step_of(std::int64_t until) const { return (until + step_ - 1) / step_; }
  std::int64_t& end_at(std::int64_t step) { return ends_[static_cast<std::size_t>(step % kSteps)]; }
  void change(std::int64_t until, std::int64_t by) {
    if (!counts(until)) return;
    end_at(step_of(until)) += by;
    total_ += by;
  }

  const std::int64_t step_;
  std::int64_t now_ = 0;
  std::int64_t total_ = 0;
  std::array<std::int64_t, kSteps> ends_{};
};

}  // namespace larder::metadata
