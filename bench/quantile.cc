// SPDX-License-Identifier: Apache-2.0
#include "bench/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace larder {
namespace {

// From 0. A product that is whole but for its rounding is whole.
std::size_t rank_of(std::size_t count, double q) {
  const double rank = std::ceil(q * static_cast<double>(count) - 1e-6);
  return static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(count))) - 1;
}

}  // namespace

double quantile_of_sorted(std::span<const double> sorted, double q) {
  return sorted.empty() ? 0 : sorted[rank_of(sorted.size(), q)];
}

double quantile_of(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank_of(values.size(), q));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace larder
