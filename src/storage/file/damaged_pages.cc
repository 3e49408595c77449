// SPDX-License-Identifier: Apache-2.0
#include "storage/file/damaged_pages.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace larder::file_store {

void DamagedPages::drop(const PageIdentity& identity, const PageKey& key, const PageLocation& location) {
  EndedSegment ended;
  {
    LockGuard guard(state_.mutex);
    const IdentityId id = state_.index.find_identity(identity);
    PageLocation now;
    if (!state_.index.find(id, key, now) || now != location) return;
    (void)state_.index.erase(id, key, location.generation);
    SegmentInfo* const found = state_.segments.find(location.segment);
    if (!found) return;
    SegmentInfo& segment = *found;
    segment.damaged.push_back(place_of(location));
    ended = end(segment);
  }
  if (ended.segment) return log_.settle(ended.segment, ended.volume);
  tell(location.segment);
}

void DamagedPages::note_unread(const PageLocation& location) {
  EndedSegment ended;
  {
    LockGuard guard(state_.mutex);
    if (!state_.copies.note_unread(location)) return;
    ended = end(state_.segments.at(location.segment));
  }
  if (ended.segment) log_.settle(ended.segment, ended.volume);
}

void DamagedPages::note_read(const PageLocation& location) {
  LockGuard guard(state_.mutex);
  state_.copies.note_read(location);
}

// It takes no more appends, and the caller settles it. No segment: it takes none already.
EndedSegment DamagedPages::end(const SegmentInfo& segment) {
  EndedSegment ended;
  ended.volume = segment.volume;
  for (Volume::Log& log : state_.volumes[segment.volume].logs) {
    if (!segment.active || log.active != segment.active) continue;
    ended.segment = std::exchange(log.active, nullptr);
    ended.segment->is_full = true;
  }
  return ended;
}

void DamagedPages::tell(SegmentId id) {
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const segment = state_.segments.find(id);
    if (!segment || !segment->has_damage_to_tell()) return;
  }
  state_.post([this, id] { tell_here(id); });
}

void DamagedPages::tell_here(SegmentId id) {
  for (bool again = true; again;) {
    std::vector<PagePlace> damaged;
    std::string path;
    unsigned volume = 0;
    bool is_synced = false;
    {
      LockGuard guard(state_.mutex);
      SegmentInfo* const segment = state_.segments.find(id);
      if (!segment || !segment->has_damage_to_tell()) return;
      segment->is_leaving_out = true;
      damaged = segment->damaged;
      is_synced = segment->is_synced;
      volume = segment->volume;
      path = join_path(state_.volumes[volume].directory, segment_name(id));
    }
    const Status here = state_.check_here(volume);
    const Result<std::uint64_t> bytes = here.is_ok()
                                            ? leave_out_pages(state_.files, path, state_.store, id, damaged, is_synced)
                                            : Result<std::uint64_t>(here);
    if (!bytes.is_ok()) {
      log_warning("storage/file", "a damaged page was dropped, and comes back as damaged after a restart: " +
                                      bytes.status().to_string());
    }
    LockGuard guard(state_.mutex);
    SegmentInfo* const segment = state_.segments.find(id);
    if (!segment) return;
    segment->is_leaving_out = false;
    if (!bytes.is_ok()) return;
    state_.segments.set_size(*segment, *bytes);
    segment->left_out = damaged.size();
    again = segment->has_damage_to_tell();
  }
}

void DamagedPages::finish() {
  std::vector<SegmentId> left;
  {
    LockGuard guard(state_.mutex);
    for (const auto& [id, segment] : state_.segments) {
      if (segment.has_damage_to_tell()) left.push_back(id);
    }
  }
  for (const SegmentId id : left) tell_here(id);
}

}  // namespace larder::file_store
