// SPDX-License-Identifier: Apache-2.0
// Quantiles of what was measured, by nearest rank: always one of the values, and of a few values the 99th percentile is
// the largest.
//
// Threads: pure.
#pragma once

#include <span>
#include <vector>

namespace larder {

// The smallest value that a part `q` of them does not exceed; 0 of none. q: 0 to 1. `sorted` ascends.
[[nodiscard]] double quantile_of_sorted(std::span<const double> sorted, double q);
// The same of values in any order.
[[nodiscard]] double quantile_of(std::vector<double> values, double q);

}  // namespace larder
