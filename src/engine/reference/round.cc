// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/round.h"

#include <algorithm>

#include "engine/reference/math.h"

namespace larder::reference {
namespace {

constexpr double kRopeTheta = 10000.0;

}  // namespace

std::size_t Round::rope_index(std::size_t dim) {
  for (std::size_t i = 0; i < ropes.size(); ++i) {
    if (ropes[i].dim == dim) return i;
  }
  RopeTable table;
  table.dim = dim;
  for (std::size_t i = 0; i < dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
    table.frequencies.push_back(exp_exact(exponent * log_exact(kRopeTheta)));
  }
  table.cos.resize(kRoundRows * (dim / 2));
  table.sin.resize(kRoundRows * (dim / 2));
  ropes.push_back(std::move(table));
  return ropes.size() - 1;
}

void Round::compute_ropes() {
  for (RopeTable& table : ropes) {
    const std::size_t half = table.dim / 2;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto at = static_cast<double>(position(row));
      for (std::size_t i = 0; i < half; ++i) {
        const SinCos angle = sin_cos_exact(at * table.frequencies[i]);
        table.cos[row * half + i] = static_cast<float>(angle.cos);
        table.sin[row * half + i] = static_cast<float>(angle.sin);
      }
    }
  }
}

void Round::lay_out() {
  segment_of.clear();
  row_tiles.clear();
  query_tiles.clear();
  for (std::size_t s = 0; s < segments.size(); ++s) {
    segment_of.insert(segment_of.end(), segments[s].count, static_cast<std::uint32_t>(s));
    for (std::size_t first = 0; first < segments[s].count; first += kQueryTile) {
      query_tiles.push_back({s, first, std::min(kQueryTile, segments[s].count - first)});
    }
  }
  rows = segment_of.size();
  for (std::size_t first = 0; first < rows; first += kRowTile) {
    row_tiles.push_back({first, std::min(kRowTile, rows - first)});
  }
}

}  // namespace larder::reference
