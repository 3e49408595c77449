// SPDX-License-Identifier: Apache-2.0
// How many of the pages that the service names are not in the files, to be said when it is most of them: then another
// folder's processes use the same service, and drop this one's pages as this one drops theirs. A few pages are wrong
// where a process has died or a lease has ended; they are counted, and not said.
//
// Threads: confined.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace larder::hf3fs {

class WrongShare {
 public:
  static constexpr std::uint64_t kWindow = 64;  // pages that are judged together, at least
  static constexpr auto kSaidEvery = std::chrono::minutes(10);

  // Of one read. What is to be said now, if anything.
  [[nodiscard]] std::optional<std::string> add(std::uint64_t found, std::uint64_t wrong, TimePoint now) {
    found_ += found;
    wrong_ += wrong;
    if (found_ < kWindow) return std::nullopt;
    const bool is_said = 2 * wrong_ > found_ && now >= next_;
    std::string text = std::to_string(wrong_) + " of the last " + std::to_string(found_) + " pages";
    found_ = wrong_ = 0;
    if (!is_said) return std::nullopt;
    next_ = now + kSaidEvery;
    return text;
  }

 private:
  std::uint64_t found_ = 0, wrong_ = 0;
  TimePoint next_{};
};

}  // namespace larder::hf3fs
