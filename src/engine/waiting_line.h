// SPDX-License-Identifier: Apache-2.0
// Who starts next (internal to engine/).
//
// Purpose: first come, first served among equal priorities, without letting one that cannot start now hold up those
// that can. Rules:
//  - Higher priority first, then arrival.
//  - A request that still waits for storage is passed over, however many there are: the wait is bounded by its prefetch
//    policy, and holding the others up would not make storage faster.
//  - A request for which the device has no room is passed over at most kMaxOvertakes times; then nobody behind it
//  starts
//    before it does. Running requests end, so it starts in the end: no starvation among equals.
//  - One turn tries to start kLookAhead requests, and meets at most kMaxRefusals refusals. Those that wait for storage
//    cost a look each, and there are at most as many as the line has (--max-queued-requests bounds it).
//
// Threads: confined to the loop thread. Cost: O(n) looks and kLookAhead tries per turn, O(n) to add or take.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/sequence.h"

namespace larder {

enum class StartAnswer : std::uint8_t {
  kStarted,
  kWaitsForStorage,  // found by a look
  kAsksStorage,      // found by a try: it has just begun to wait
  kNoRoom,
  kFailed
};

class WaitingLine {
 public:
  static constexpr std::size_t kLookAhead = 16;
  static constexpr std::size_t kMaxRefusals = 4;
  static constexpr std::uint32_t kMaxOvertakes = 8;

  struct Outcome {
    std::vector<std::unique_ptr<Sequence>> started, failed;
    Sequence* refused = nullptr;  // the first for which there was no room
    bool any_waits_for_storage = false;
  };

  void add(std::unique_ptr<Sequence> sequence);
  // Before its equals: it had its turn already.
  void add_first(std::unique_ptr<Sequence> sequence);
  // nullptr: not here.
  [[nodiscard]] std::unique_ptr<Sequence> take(Scheduler::Ticket ticket);
  [[nodiscard]] std::vector<std::unique_ptr<Sequence>> take_all();

  // Asks try_start of requests in order until `places` have started. try_start must not touch the line.
  [[nodiscard]] Outcome admit(std::size_t places, const std::function<StartAnswer(Sequence&)>& try_start);

  [[nodiscard]] std::size_t size() const { return line_.size(); }
  [[nodiscard]] const std::deque<std::unique_ptr<Sequence>>& sequences() const { return line_; }

 private:
  std::deque<std::unique_ptr<Sequence>> line_;
};

}  // namespace larder
