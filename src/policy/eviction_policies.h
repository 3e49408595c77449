// SPDX-License-Identifier: Apache-2.0
// The eviction orders that have a name. Each is a file of this folder; a new one is a file, a line here and one in
// eviction_policies.cc.
//
// But for value they order full alone: windows and states leave least recently used first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "policy/eviction_order.h"

namespace larder {

enum class EvictionPolicy : std::uint8_t { kLru, kLfu, kSlru, kFifo, kMru, kFilo, kPriority, kValue };
inline constexpr std::size_t kEvictionPolicyCount = 8;
[[nodiscard]] std::string_view eviction_policy_name(EvictionPolicy p);  // "lru", ...; "?": no such policy
[[nodiscard]] std::optional<EvictionPolicy> parse_eviction_policy(std::string_view s);

using EvictionOrderPtr = std::shared_ptr<const EvictionOrder>;  // never null where one is returned
[[nodiscard]] EvictionOrderPtr eviction_order(EvictionPolicy p);

[[nodiscard]] EvictionOrderPtr lru_order();   // least recently used first
[[nodiscard]] EvictionOrderPtr lfu_order();   // least often used first, then the least recently used
[[nodiscard]] EvictionOrderPtr slru_order();  // what had fewer than 2 hits first; least recently used within each half
[[nodiscard]] EvictionOrderPtr fifo_order();  // made first, out first
[[nodiscard]] EvictionOrderPtr mru_order();   // most recently used first
[[nodiscard]] EvictionOrderPtr filo_order();  // made last, out first
[[nodiscard]] EvictionOrderPtr priority_order();  // lowest priority first, then the least recently used
// By what suits the requests of late: as lru, lfu or mru. For models without recurrent state.
[[nodiscard]] EvictionOrderPtr reuse_order();
// Least worth first, states included: likely uses x saved tokens / bytes / age. Without recurrent state it is
// reuse_order().
struct ValueParameters {
  CheckpointParameters checkpoints{};
  // Added to each age: tokens that are computed, all requests together, while half of the conversations go on that ever
  // will (CheckpointStats::reuse_age()); at most so many, and so many times what the tier holds.
  double patience_tokens = 1 << 21, patience_turnovers = 3;
  double more_uses = 0.25;  // likely uses of what was used, beyond those that it has had
};
[[nodiscard]] EvictionOrderPtr value_order(const ValueParameters& parameters = {});

}  // namespace larder
