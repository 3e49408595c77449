// SPDX-License-Identifier: Apache-2.0
// What one poll may do, counted in units of work and not in time, so that the ranks of a model cut alike.
//
// A unit is a page that is hashed, asked for, given to storage or given to the tree: a quarter of a microsecond or so.
// What only looks at a page counts less. Work that does not fit stays where it queues, and the next poll goes on.
//
//   begin_poll() ── events: a half ── begin_share(kFetches): a quarter ── begin_share(kWrites): a quarter ── end_poll()
//
// What a share leaves is the next one's, and none can take another's: so each of them gets on in every poll. A piece of
// work that has begun is never broken off: a share is overspent by less than one piece, and pieces are a quarter of the
// budget at most (piece()); what is let go of goes at once, for a sixteenth of a unit for each page. Only what all
// ranks do alike is spent: nothing that depends on clocks or on completions that have yet to be agreed on.
//
// Threads: the cache thread. Calls outside of a poll spend nothing and are not cut: each does at most one piece.
#pragma once

#include <algorithm>
#include <cstdint>

namespace larder {

class WorkBudget {
 public:
  enum class Share : std::uint8_t { kFetches, kWrites };

  explicit WorkBudget(std::uint64_t units) : units_(std::max<std::uint64_t>(1, units)) {}

  void begin_poll() {
    is_polling_ = true;
    is_short_ = false;
    spent_ = 0;
    limit_ = units_ - units_ / 2;
  }
  void begin_share(Share share) { limit_ = share == Share::kFetches ? units_ - units_ / 4 : units_; }
  void end_poll() { is_polling_ = false; }

  [[nodiscard]] bool has_left() const { return !is_polling_ || spent_ < limit_; }
  void spend(std::uint64_t units) {
    if (!is_polling_) return;
    spent_ += units;
    most_ = std::max(most_, spent_);
  }
  // Something was left for the next poll: whoever polls should do so again at once.
  void fall_short() { is_short_ = true; }
  [[nodiscard]] bool is_short() const { return is_short_; }

  // Pages that are hashed, asked for, taken or adopted in one piece.
  [[nodiscard]] std::uint64_t piece() const { return std::max<std::uint64_t>(1, units_ / 4); }
  [[nodiscard]] std::uint64_t units() const { return units_; }
  [[nodiscard]] std::uint64_t most() const { return most_; }  // that a poll ever spent

 private:
  const std::uint64_t units_;
  std::uint64_t limit_ = 0, spent_ = 0, most_ = 0;
  bool is_polling_ = false, is_short_ = false;
};

}  // namespace larder
