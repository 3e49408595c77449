// SPDX-License-Identifier: Apache-2.0
// The kinds of operation that a pipeline keeps apart. Pure values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "storage/backend.h"

namespace larder {

// Each lane has queues and a limit of its own, so that a backlog in one cannot starve another.
enum class Lane : std::uint8_t { kExists, kRead, kWrite, kClear };
inline constexpr std::size_t kLaneCount = 4;
inline constexpr std::array<Lane, kLaneCount> kLanes{Lane::kExists, Lane::kRead, Lane::kWrite, Lane::kClear};

// Each direction has a circuit breaker of its own: a full or read-only disk does not stop reads.
enum class Direction : std::uint8_t { kRead, kWrite };
inline constexpr std::size_t kDirectionCount = 2;

[[nodiscard]] constexpr Direction direction_of(Lane lane) {
  return lane == Lane::kExists || lane == Lane::kRead ? Direction::kRead : Direction::kWrite;
}
[[nodiscard]] constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }
[[nodiscard]] constexpr std::size_t index_of(Direction direction) { return static_cast<std::size_t>(direction); }
[[nodiscard]] constexpr std::size_t index_of(Urgency urgency) { return static_cast<std::size_t>(urgency); }

[[nodiscard]] constexpr std::string_view lane_name(Lane lane) {
  constexpr std::array<std::string_view, kLaneCount> kNames{"exists", "read", "write", "clear"};
  return kNames[index_of(lane)];
}
[[nodiscard]] constexpr std::string_view direction_name(Direction direction) {
  return direction == Direction::kRead ? "read" : "write";
}
[[nodiscard]] constexpr std::string_view urgency_name(Urgency urgency) {
  constexpr std::array<std::string_view, kUrgencyCount> kNames{"waiting", "speculative", "background"};
  return kNames[index_of(urgency)];
}

}  // namespace larder
