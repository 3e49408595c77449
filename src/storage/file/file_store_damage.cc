// SPDX-License-Identifier: Apache-2.0
// The file store's damaged pages: dropped, and left out of their segment's footer, so that they are not promised again
// by the next process.
//
//   in a segment that is written   it ends here: its footer, which lists what the index has, comes at once
//   in a sealed one                its footer is written anew without them, by one task at a time per segment
//   that fails                     said in the log, and tried again with the next page of the segment, and at the end
//
// What a footer is told here is a favour: the payloads' checksums are in it, and a page that is promised once more is
// found damaged once more. So no failure here costs a write or a page.
#include <utility>

#include "base/log.h"
#include "storage/file/file_store.h"

namespace larder::file_store {

void FileStore::drop_page(const PageIdentity& identity, const PageKey& key, const PageLocation& location) {
  std::shared_ptr<ActiveSegment> ended;
  unsigned volume = 0;
  {
    LockGuard guard(mutex_);
    const IdentityId id = index_.find_identity(identity);
    PageLocation now;
    if (!index_.find(id, key, now) || now != location) return;
    (void)index_.erase(id, key, location.generation);
    const auto found = segments_.find(location.segment);
    if (found == segments_.end()) return;
    SegmentInfo& segment = found->second;
    segment.damaged.push_back(place_of(location));
    volume = segment.volume;
    for (Volume::Log& log : volumes_[volume].logs) {
      if (!segment.active || log.active != segment.active) continue;
      ended = std::exchange(log.active, nullptr);
      ended->is_full = true;
    }
  }
  if (ended) return settle(ended, volume);
  leave_out_later(location.segment);
}

bool FileStore::has_damage_to_tell(const SegmentInfo& segment) const {
  return !segment.active && !segment.is_leaving && !segment.is_leaving_out && segment.left_out < segment.damaged.size();
}

void FileStore::leave_out_later(SegmentId id) {
  {
    LockGuard guard(mutex_);
    const auto segment = segments_.find(id);
    if (segment == segments_.end() || !has_damage_to_tell(segment->second)) return;
  }
  post([this, id] { leave_out_damaged(id); });
}

void FileStore::leave_out_damaged(SegmentId id) {
  for (bool again = true; again;) {
    std::vector<PagePlace> damaged;
    std::string path;
    unsigned volume = 0;
    bool is_synced = false;
    {
      LockGuard guard(mutex_);
      const auto segment = segments_.find(id);
      if (segment == segments_.end() || !has_damage_to_tell(segment->second)) return;
      segment->second.is_leaving_out = true;
      damaged = segment->second.damaged;
      is_synced = segment->second.is_synced;
      volume = segment->second.volume;
      path = join_path(volumes_[volume].directory, segment_name(id));
    }
    const Status here = check_here(volume);
    const Result<std::uint64_t> bytes =
        here.is_ok() ? leave_out_pages(files_, path, store_, id, damaged, is_synced) : Result<std::uint64_t>(here);
    if (!bytes.is_ok()) {
      log_warning("storage/file", "a damaged page was dropped, and comes back as damaged after a restart: " +
                                      bytes.status().to_string());
    }
    LockGuard guard(mutex_);
    const auto segment = segments_.find(id);
    if (segment == segments_.end()) return;
    segment->second.is_leaving_out = false;
    if (!bytes.is_ok()) return;
    set_size(segment->second, *bytes);
    segment->second.left_out = damaged.size();
    again = has_damage_to_tell(segment->second);
  }
}

}  // namespace larder::file_store
