// SPDX-License-Identifier: Apache-2.0
// How many operations are open, by kind, and whether one more may begin.
//
// max_operations in all; reads (queries included) and writes of storage a quarter each, so that copies always find some
// whatever hangs. What storages that were detached still read or write (abandoned) has as much again beside these, for
// each of the two: the next storage finds its own free. Timers take none. Explanations have max_explains of their own,
// and those of storages that were detached as many again.
//
// Threads: the cache thread. Cost: O(1).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "controller/operation.h"

namespace larder {

class OpPlaces {
 public:
  OpPlaces(std::size_t max_operations, std::size_t max_explains)
      : most_(max_operations), most_explains_(max_explains) {}

  void take(OpKind kind) { ++open_[index(kind)]; }
  void give_back(OpKind kind) { --open_[index(kind)]; }
  // It stays open, and nobody waits for it.
  void abandon(OpKind kind) { ++abandoned_[index(kind)]; }
  void give_back_abandoned(OpKind kind) {
    --abandoned_[index(kind)];
    give_back(kind);
  }

  [[nodiscard]] std::size_t open(OpKind kind) const { return open_[index(kind)]; }
  [[nodiscard]] std::size_t abandoned(OpKind kind) const { return abandoned_[index(kind)]; }
  [[nodiscard]] std::size_t live(OpKind kind) const { return open(kind) - abandoned(kind); }
  [[nodiscard]] std::size_t live() const;  // of all kinds but timers
  [[nodiscard]] bool has_room(OpKind kind, std::size_t count = 1) const;
  // Places for reads that who has some already leaves to others.
  [[nodiscard]] std::size_t spare_reads() const { return storage_share() / 8; }
  // As many as may be open at once, timers apart.
  [[nodiscard]] std::size_t most() const { return most_ + 2 * storage_share() + 2 * most_explains_; }

 private:
  [[nodiscard]] static std::size_t index(OpKind kind) { return static_cast<std::size_t>(kind); }
  [[nodiscard]] std::size_t storage_share() const { return std::max<std::size_t>(1, most_ / 4); }
  [[nodiscard]] std::size_t stores_aside() const { return std::min(abandoned(OpKind::kStore), storage_share()); }
  [[nodiscard]] std::size_t reads_aside() const {
    return std::min(abandoned(OpKind::kExists) + abandoned(OpKind::kRead), storage_share());
  }
  [[nodiscard]] std::size_t explains_aside() const { return std::min(abandoned(OpKind::kExplain), most_explains_); }

  const std::size_t most_, most_explains_;
  std::array<std::size_t, kOpKindCount> open_{}, abandoned_{};
};

}  // namespace larder
