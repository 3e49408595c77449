// SPDX-License-Identifier: Apache-2.0
// How much of its disk a volume may take, as far as it has had to find out.
//
// max_size may be more than the disk has, or nothing at all; then the disk says so, with ENOSPC. What the volume held
// when it did is the limit from then on, so that room is made by the store's ordinary eviction, before the disk says it
// again. When others leave the disk, the limit grows, in steps:
//
//    unknown --the disk is full: what is held, and what is free besides--> L --full again--> a lower L
//                                                                          L --free room, a while later--> L + a step
//
// Where the system says that there is free room all the same, that may be over (somebody's large file) or never true (a
// quota): the limit is what is held, and given up after a pause; in vain, the next pause is twice as long.
//
// Threads: confined (the store's mutex).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace larder::file_store {

class DiskLimit {
 public:
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_known() const { return bytes_ != kUnknown; }

  // There was no room for `asked` bytes beside the `held` ones; `free`: as the system says.
  void disk_was_full(std::uint64_t held, std::uint64_t asked, std::uint64_t free, TimePoint now) {
    is_explained_ = free < asked;
    bytes_ = std::min(bytes_, held + (is_explained_ ? free : 0));
    if (steps_ > 0 && steps_ < kStepsThatHold) pause_ = std::min(2 * pause_, kLongestPause);
    steps_ = 0;
    grows_at_ = now + pause_;
  }
  // Worth asking for the free bytes?
  [[nodiscard]] bool may_grow(TimePoint now) const { return is_known() && now >= grows_at_; }
  // Of a known limit: by at most `step`, and to what the disk has. The next time no sooner than after kBetweenSteps.
  void grow(std::uint64_t held, std::uint64_t free, std::uint64_t step, TimePoint now) {
    grows_at_ = now + kBetweenSteps;
    if (!is_explained_ && free > step) {
      bytes_ = kUnknown;
      steps_ = 1;
      return;
    }
    const std::uint64_t most = held + std::min(free, kUnknown - 1 - held);
    if (most <= bytes_) return;
    bytes_ += std::min(step, most - bytes_);
    if (++steps_ == kStepsThatHold) pause_ = kFirstPause;
  }
  void forget() { bytes_ = kUnknown; }

 private:
  static constexpr Nanos kFirstPause = std::chrono::seconds(10), kLongestPause = std::chrono::hours(1);
  static constexpr Nanos kBetweenSteps = std::chrono::seconds(10);
  static constexpr unsigned kStepsThatHold = 8;  // so many without a full disk: the free bytes were true

  std::uint64_t bytes_ = kUnknown;
  Nanos pause_ = kFirstPause;
  TimePoint grows_at_{};
  bool is_explained_ = true;  // by the free bytes
  unsigned steps_ = 0;        // since the disk was full
};

}  // namespace larder::file_store
