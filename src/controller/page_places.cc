// SPDX-License-Identifier: Apache-2.0
#include "controller/page_places.h"

#include <algorithm>
#include <cassert>
#include <string>

namespace larder {

namespace {

std::string name_of(const PoolSpec& pool, std::uint64_t page) {
  return "page " + std::to_string(page) + " of pool " + std::string(pool.label());
}

Status check_size(const PoolSpec& pool, const PagePlace& place) {
  std::uint64_t left = pool.page_bytes();
  bool fits = true;
  for (const Segment& segment : place.segments) {
    if (segment.size > 0 && segment.data == nullptr) {
      return invalid_argument(name_of(pool, place.page) + " has a segment of " + std::to_string(segment.size) +
                              " bytes at null");
    }
    fits = fits && segment.size <= left;
    left -= std::min<std::uint64_t>(left, segment.size);
  }
  if (fits && left == 0) return Status::ok();
  return invalid_argument("the segments of " + name_of(pool, place.page) + " must add up to " +
                          std::to_string(pool.page_bytes()) + " bytes, and have " +
                          (fits ? std::to_string(left) + " less" : "more"));
}

}  // namespace

std::size_t PlaceTable::Row::index_of(std::uint64_t page) const {
  if (of.empty()) return page >= from && page - from < places.size() ? page - from : places.size();
  const auto it = std::lower_bound(of.begin(), of.end(), page);
  return it != of.end() && *it == page ? static_cast<std::size_t>(it - of.begin()) : places.size();
}

Result<PlaceTable> PlaceTable::create(const ModelSpec& model, const PageNeeds& needs,
                                      std::span<const PagePlace> places) {
  PlaceTable table;
  for (const PoolSpec& pool : model.pools) {
    Row& row = table.rows_[static_cast<std::size_t>(pool.name)];
    if (pool.page_bytes() == 0) continue;
    if (pool.component == ComponentKind::kMamba) {
      for (const std::uint64_t point : needs.states) row.of.push_back(point - 1);
      row.places.resize(row.of.size());
      continue;
    }
    row.from = pool.component == ComponentKind::kFull ? needs.full_from : needs.window_from;
    row.places.resize(needs.end - row.from);
  }
  for (const PagePlace& place : places) {
    const PoolSpec* const pool = model.find_pool(place.pool);
    if (pool == nullptr) return invalid_argument("the model has no pool " + std::string(pool_name(place.pool)));
    Row& row = table.rows_[static_cast<std::size_t>(place.pool)];
    const std::size_t i = row.index_of(place.page);
    if (i == row.places.size()) return invalid_argument(name_of(*pool, place.page) + " is not part of this copy");
    if (row.places[i] != nullptr) return invalid_argument(name_of(*pool, place.page) + " is given twice");
    LARDER_RETURN_IF_ERROR(check_size(*pool, place));
    row.places[i] = &place;
  }
  for (const PoolSpec& pool : model.pools) {
    const Row& row = table.rows_[static_cast<std::size_t>(pool.name)];
    const auto gap = std::find(row.places.begin(), row.places.end(), nullptr);
    if (gap == row.places.end()) continue;
    const auto i = static_cast<std::size_t>(gap - row.places.begin());
    return invalid_argument("no place is given for " + name_of(pool, row.of.empty() ? row.from + i : row.of[i]));
  }
  return table;
}

std::span<const Segment> PlaceTable::at(const PoolSpec& pool, std::uint64_t page) const {
  const Row& row = rows_[static_cast<std::size_t>(pool.name)];
  const std::size_t i = row.index_of(page);
  assert(i < row.places.size());
  return row.places[i]->segments;
}

}  // namespace larder
