// SPDX-License-Identifier: Apache-2.0
// Recency, parents and children, and which page is given up for another key.
#include "base/probe.h"
#include "metadata/page_table.h"

namespace larder::metadata {

// Makes a stored page the most recent.
void PageTable::touch(PageNumber page) {
  PageEntry& entry = entries_[page];
  entry.tick = ++tick_;
  if (entry.count > 0) return;  // the place among inner pages says nothing
  take_out(page);
  lists_.push_back(PageList::kLeaves, page);
}

// Out of the list or heap that it is in, if any.
void PageTable::take_out(PageNumber page) {
  switch (entries_[page].place) {
    case PagePlace::kNowhere: return;
    case PagePlace::kLinked: return lists_.erase(page);
    case PagePlace::kLate: return late_.erase(page);
    case PagePlace::kTimed: return times_.erase(page);
  }
}

void PageTable::count_child(std::uint64_t parent_hash) {
  if (parent_hash == 0) return;
  const PageNumber parent = lookup_stored(parent_hash);
  if (parent == kNoPage) {
    ++waiting_children_[parent_hash];
    return;
  }
  if (entries_[parent].count++ > 0) return;
  ++inner_;
  take_out(parent);
  lists_.push_back(PageList::kInner, parent);
}

// Two keys with the same hash can make a count come out where it did not go in; then it stays at 0.
void PageTable::uncount_child(std::uint64_t parent_hash) {
  if (parent_hash == 0) return;
  const PageNumber parent = lookup_stored(parent_hash);
  if (parent == kNoPage) {
    const auto waiting = waiting_children_.find(parent_hash);
    if (waiting != waiting_children_.end() && --waiting->second == 0) waiting_children_.erase(waiting);
    return;
  }
  PageEntry& entry = entries_[parent];
  if (entry.count == 0 || --entry.count > 0) return;
  --inner_;
  take_out(parent);
  late_.push(parent, static_cast<std::int64_t>(entry.tick));
}

// A page that is in no state, for a new reservation. kNoPage: there is none now.
PageNumber PageTable::take_page() {
  if (free_head_ != kNoPage) {
    const PageNumber page = free_head_;
    free_head_ = entries_[page].next;
    entries_[page].next = kNoPage;
    --stats_.free;
    return page;
  }
  if (used_ < pages_) {
    entries_.grow(used_ + 1);
    --stats_.free;
    return static_cast<PageNumber>(used_++);
  }
  // More may be due than was settled beforehand: what becomes free goes before what would be evicted.
  while (settles_left_ > 0 && free_head_ == kNoPage && settle_one()) --settles_left_;
  if (free_head_ != kNoPage) return take_page();
  const PageNumber page = victim();
  if (page == kNoPage) return kNoPage;
  forget_stored(page);
  PageEntry& entry = entries_[page];
  leases_.remove(entry.lease_until);
  entry.lease_until = kNoLease;
  ++stats_.evicted;
  probe(Probe::kMetadataEvicted);
  return page;
}

PageNumber PageTable::oldest_leaf() {
  if (held_until_ <= now_) lists_.move_to_front(PageList::kHeld, PageList::kLeaves);
  const PageNumber listed = lists_.front(PageList::kLeaves);
  if (late_.empty()) return listed;
  const PageNumber late = late_.top().page;
  return listed == kNoPage || entries_[late].tick < entries_[listed].tick ? late : listed;
}

PageNumber PageTable::victim() {
  for (PageNumber page; (page = oldest_leaf()) != kNoPage;) {
    const PageEntry& entry = entries_[page];
    if (entry.tick >= protected_from_) return kNoPage;
    if (entry.lease_until <= now_) return page;
    if (parks_left_-- <= 0) return kNoPage;
    times_.make_room();
    take_out(page);
    times_.push(page, entry.lease_until);
  }
  // Keys that name each other as parents have no leaf. Nobody honest sends them, but they must not fill us for ever.
  const PageNumber inner = lists_.front(PageList::kInner);
  if (inner == kNoPage || inner_ < stats_.stored) return kNoPage;
  if (entries_[inner].tick < protected_from_ && entries_[inner].lease_until <= now_) return inner;
  lists_.erase(inner);
  lists_.push_back(PageList::kInner, inner);
  return kNoPage;
}

}  // namespace larder::metadata
