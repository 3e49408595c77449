// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_copies.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"

namespace larder::file_store {

bool PageCopies::is_here(IdentityId identity, const PageKey& key, std::uint64_t bytes, bool is_durable,
                         PageLocation& at) {
  if (!index_.find(identity, key, at) || at.payload_bytes != bytes) return false;
  const bool could_be_read = !is_unread(at);
  if (!is_durable && could_be_read) return true;
  SegmentInfo& segment = segments_.at(at.segment);
  // An earlier durable write may count on what a footer is to list: that segment ends first (note_unread).
  const bool may_be_replaced = segment.is_listed || segment.is_doubtful || !segment.has_durable;
  if (!could_be_read && may_be_replaced) return false;
  if (!is_durable) return true;
  if (segment.is_doubtful) return false;
  if (segment.is_synced) return true;
  // With fsync = off, a segment is sealed unsynced if no durable write counts on it; then it is too late for one. Up to
  // then it never is: an earlier durable write may count on this copy, and the footer would not list it any more if
  // the index had another one, which is not synced yet.
  if (!segment.is_listed) segment.has_durable = true;
  return segment.has_durable || fsync_ != FsyncMode::kOff;
}

Status PageCopies::insert(const ListedPage& page, bool is_durable, const PageLocation& before) {
  const bool replaces = before.segment != 0 && (is_durable || is_unread(before));
  if (replaces && before.generation > page.location.generation) {
    (void)index_.erase(index_.find_identity(page.identity), page.key, before.generation);
  }
  LARDER_RETURN_IF_ERROR(index_.insert(page.identity, page.key, page.parent, page.location));
  if (replaces) {
    SegmentInfo& home = segments_.at(page.location.segment);
    home.has_durable = true;  // one may count on the old copy, and so on the new one
    SegmentInfo& old = segments_.at(before.segment);
    home.replaced.push_back({page, before, old.is_listed});
    ++old.holds;
  }
  return Status::ok();
}

void PageCopies::release(const Replaced& replaced) {
  SegmentInfo* const segment = segments_.find(replaced.before.segment);
  if (segment) --segment->holds;  // else its directory was deleted
}

void PageCopies::synced(SegmentInfo& segment) {
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
void PageCopies::settle(SegmentInfo& segment, bool is_lost) {
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
// durable write does not count on what it finds, or where the footer listed the old copy already: the footer of any
// other segment may not list it any more.
bool PageCopies::is_settled(const Replaced& replaced, bool is_lost) {
  const ListedPage& page = replaced.page;
  const PageLocation& before = replaced.before;
  const IdentityId identity = index_.find_identity(page.identity);
  PageLocation at;
  if (!index_.find(identity, page.key, at)) return true;  // cleared or evicted
  const SegmentInfo* const old = segments_.find(before.segment);
  if (!old) return true;  // its directory was deleted
  const bool may_return = old->is_doubtful || (!old->active && (!old->is_synced || replaced.was_listed));
  if (!is_lost || !may_return || at != page.location) return false;
  (void)index_.erase(identity, page.key, at.generation);
  (void)index_.insert(page.identity, page.key, page.parent, before);  // there is room: of the one that went
  ++returns_;
  return true;
}

void PageCopies::doubt(SegmentInfo& segment) {
  if (defect(Defect::kFailedSyncForgotten)) return;
  segment.is_doubtful = true;
  settle(segment, true);
  const RecordPtr moving = moving_.lock();
  if (moving && moving->segment->id == segment.id) take_back(*moving);
}

bool PageCopies::note_unread(const PageLocation& at) {
  const SegmentInfo* const segment = segments_.find(at.segment);
  if (!segment) return false;
  if (unread_.insert(place_in_store(at)).second) {
    unread_order_.push_back(place_in_store(at));
    if (unread_order_.size() > kMostUnread) {
      unread_.erase(unread_order_.front());
      unread_order_.pop_front();
    }
  }
  return segment->active && segment->has_durable;
}

void PageCopies::note_read(const PageLocation& at) { unread_.erase(place_in_store(at)); }

void PageCopies::end_move(const WriteRecord& record, bool is_ok) {
  if (!is_ok) take_back(record);
  moving_.reset();
}

void PageCopies::take_back(const WriteRecord& record) {
  for (std::size_t i = 0; i < record.moved_from.size(); ++i) {
    const ListedPage& page = record.pages[i];
    if (!segments_.contains(record.moved_from[i].segment)) continue;  // its directory was deleted
    if (index_.move(page.identity, page.key, page.location, record.moved_from[i])) ++returns_;
  }
}

void PageCopies::forget(SegmentId id, std::vector<FilePtr>& closed) {
  SegmentInfo* const segment = segments_.find(id);
  if (!segment) return;
  settle(*segment, true);
  for (const Replaced& replaced : segment->replaced) release(replaced);
  (void)index_.drop_segment(id);
  segments_.erase(id, closed);
}

}  // namespace larder::file_store
