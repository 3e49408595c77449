// SPDX-License-Identifier: Apache-2.0
// The tiers of memory: what a slot is of. Storage is the third one, and has pages, but no slots.
#pragma once

#include <cstddef>
#include <cstdint>

namespace larder {

enum class Tier : std::uint8_t { kDevice = 0, kHost = 1 };
inline constexpr std::size_t kTierCount = 2;

}  // namespace larder
