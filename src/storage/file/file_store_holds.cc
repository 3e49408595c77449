// SPDX-License-Identifier: Apache-2.0
// The file store's old copies that durable writes have replaced: each stays until the new one is known to be on disk.
//
//   the new copy is published                         its segment lists the old one, whose segment is held
//   a sync of its segment covers it                   the old copy may go
//   such a sync fails, or the segment's file is lost  the index goes back to the old copy, in the same step
//   the page is cleared, or evicted                   nobody counts on either copy
//   the segment is gone, and the page lies elsewhere  so does what was synced or held before that could be
//
// So an old copy holds its segment no longer than the segment of the new one is there and not synced; and syncs that
// fail again and again hold one segment, not one each.
#include <algorithm>
#include <utility>

#include "storage/file/file_store.h"

namespace larder::file_store {

void FileStore::hold(const ListedPage& page, const PageLocation& before) {
  ++segments_.at(before.segment).holds;
  segments_.at(page.location.segment).replaced.push_back({page, before});
}

void FileStore::release(const Replaced& replaced) {
  const auto segment = segments_.find(replaced.before.segment);
  if (segment != segments_.end()) --segment->second.holds;  // else its directory was deleted
}

// A sync of the segment has succeeded. One that takes appends may have got some since that began.
void FileStore::release_synced(SegmentInfo& segment) {
  std::vector<Replaced> left;
  for (const Replaced& replaced : segment.replaced) {
    if (segment.is_synced || replaced.is_syncing) {
      release(replaced);
    } else {
      left.push_back(replaced);
    }
  }
  segment.replaced = std::move(left);
}

// The newest first: it may have replaced another one of them.
void FileStore::settle_replaced(SegmentInfo& segment, bool is_lost) {
  std::vector<Replaced> left;
  for (auto replaced = segment.replaced.rbegin(); replaced != segment.replaced.rend(); ++replaced) {
    if (is_settled(*replaced, is_lost)) {
      release(*replaced);
    } else {
      left.push_back(*replaced);
    }
  }
  std::reverse(left.begin(), left.end());
  segment.replaced = std::move(left);
}

// False: the old copy is kept, and asked about again when the new one's segment goes. The index goes back only where a
// durable write does not count on what it finds: the footer of any other segment may not list the old copy any more.
bool FileStore::is_settled(const Replaced& replaced, bool is_lost) {
  const auto& [page, before, is_syncing] = replaced;
  const IdentityId identity = index_.find_identity(page.identity);
  PageLocation at;
  if (!index_.find(identity, page.key, at)) return true;  // cleared or evicted
  const auto old = segments_.find(before.segment);
  if (old == segments_.end()) return true;  // its directory was deleted
  const bool may_return = old->second.is_doubtful || (!old->second.active && !old->second.is_synced);
  if (!is_lost || !may_return || at != page.location) return false;
  (void)index_.erase(identity, page.key, at.generation);
  (void)index_.insert(page.identity, page.key, page.parent, before);  // there is room: of the one that went
  ++returns_;
  return true;
}

}  // namespace larder::file_store
