#include "storage/file/segment_table.h"

#include <utility>

namespace larder::file_store {

void SegmentTable::add(SegmentId id, Segment segment) {
  total_bytes_ += segment.end_bytes;
  if (segment.file) ++open_files_;
  segment.last_use = ++uses_;
  segments_.insert_or_assign(id, std::move(segment));
}

SegmentTable::Segment* SegmentTable::find(SegmentId id) {
  const auto at = segments_.find(id);
  return at == segments_.end() ? nullptr : &at->second;
}

void SegmentTable::touch(SegmentId id) {
  if (Segment* const segment = find(id)) segment->last_use = ++uses_;
}

void SegmentTable::set_end(SegmentId id, std::uint64_t end_bytes) {
  Segment* const segment = find(id);
  if (segment == nullptr) return;
  total_bytes_ += end_bytes - segment->end_bytes;
  segment->end_bytes = end_bytes;
}

void SegmentTable::keep_open(SegmentId id, FilePtr file, std::vector<FilePtr>& closed) {
  Segment* const segment = find(id);
  if (segment == nullptr || segment->file) return;  // gone, or another read was faster
  segment->file = std::move(file);
  ++open_files_;
  close_extra(id, closed);
}

void SegmentTable::close_extra(SegmentId keep, std::vector<FilePtr>& closed) {
  while (open_files_ > open_files_limit_) {
    Segment* oldest = nullptr;
    for (auto& [other_id, other] : segments_) {
      if (!other.file || other.is_active || other_id == keep) continue;
      if (oldest == nullptr || other.last_use < oldest->last_use) oldest = &other;
    }
    if (oldest == nullptr) return;
    closed.push_back(std::move(oldest->file));
    oldest->file = nullptr;
    --open_files_;
  }
}

SegmentId SegmentTable::victim() const {
  SegmentId best = 0;
  std::uint64_t oldest = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.is_active || (best != 0 && segment.last_use >= oldest)) continue;
    best = id;
    oldest = segment.last_use;
  }
  return best;
}

FilePtr SegmentTable::remove(SegmentId id) {
  const auto at = segments_.find(id);
  if (at == segments_.end()) return nullptr;
  total_bytes_ -= at->second.end_bytes;
  FilePtr file = std::move(at->second.file);
  if (file) --open_files_;
  segments_.erase(at);
  return file;
}

std::vector<SegmentId> SegmentTable::ids() const {
  std::vector<SegmentId> out;
  out.reserve(segments_.size());
  for (const auto& [id, segment] : segments_) out.push_back(id);
  return out;
}

}  // namespace larder::file_store
