// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_table.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {

SegmentTable::SegmentTable(std::map<SegmentId, SegmentInfo> segments, SegmentId next, std::size_t volumes,
                           std::size_t most_open)
    : segments_(std::move(segments)), next_(next), held_bytes_(volumes, 0), most_open_(most_open) {
  for (const auto& [id, segment] : segments_) {
    physical_bytes_ += segment.physical_bytes;
    held_bytes_[segment.volume] += segment.physical_bytes;
  }
}

SegmentInfo& SegmentTable::add(SegmentId id, unsigned volume, std::uint64_t first_generation) {
  SegmentInfo& segment = segments_[id];
  segment.id = id;
  segment.volume = volume;
  segment.first_generation = first_generation;
  return segment;
}

void SegmentTable::erase(SegmentId id, std::vector<FilePtr>& closed) {
  SegmentInfo& segment = segments_.at(id);
  set_size(segment, 0);
  if (segment.file) closed.push_back(close(segment));
  segments_.erase(id);
}

SegmentInfo* SegmentTable::find(SegmentId id) {
  const auto found = segments_.find(id);
  return found == segments_.end() ? nullptr : &found->second;
}

void SegmentTable::set_size(SegmentInfo& segment, std::uint64_t bytes) {
  std::uint64_t& held = held_bytes_[segment.volume];
  physical_bytes_ = physical_bytes_ - segment.physical_bytes + bytes;
  held = held - segment.physical_bytes + bytes;
  segment.physical_bytes = bytes;
}

std::uint64_t SegmentTable::bytes_on_disk(unsigned volume) const {
  std::uint64_t bytes = held_bytes_[volume];
  for (const auto& [id, segment] : segments_) {
    if (segment.volume != volume || !segment.active || segment.active->is_reserved) continue;
    bytes -= segment.physical_bytes - std::min(segment.physical_bytes, segment.active->end_bytes);
  }
  return bytes;
}

void SegmentTable::open(SegmentInfo& segment, FilePtr file, std::vector<FilePtr>& closed) {
  segment.file = std::move(file);
  segment.in_use_order = use_order_.insert(use_order_.end(), &segment);
  for (auto next = use_order_.begin(); use_order_.size() > most_open_ && next != use_order_.end();) {
    SegmentInfo& oldest = **next++;
    ++looked_at_;
    if (!oldest.active) closed.push_back(close(oldest));
  }
}

FilePtr SegmentTable::close(SegmentInfo& segment) {
  use_order_.erase(segment.in_use_order);
  return std::exchange(segment.file, nullptr);
}

}  // namespace larder::file_store
