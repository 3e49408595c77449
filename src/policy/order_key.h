// SPDX-License-Identifier: Apache-2.0
// What cached data is ordered by.
#pragma once

#include <compare>
#include <cstdint>

namespace larder {

// Smaller ones leave first; of equal ones, any.
struct OrderKey {
  std::uint64_t major = 0, minor = 0;
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

}  // namespace larder
