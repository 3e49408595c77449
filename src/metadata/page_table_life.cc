// SPDX-License-Identifier: Apache-2.0
// How a page goes from one state to the next.
#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/probe.h"
#include "metadata/page_table.h"

namespace larder::metadata {

ReserveAnswer PageTable::reserve_one(const MetadataSession& session, const ReserveWish& wish, std::int64_t deadline) {
  PageNumber page = lookup(wish.key);
  if (page != kNoPage && entries_[page].state == PageState::kReserved && times_.is_due(entries_[page], now_)) {
    const std::int64_t end = times_.order_of(entries_[page]);
    times_.erase(page);
    expire(page, end);
    page = kNoPage;
  }
  if (page == kNoPage) {
    slots_.make_room();
    times_.make_room();
    make_room_in(reservations_);
    PageEntry::LongKey room = PageEntry::room_for(wish.key.bytes);
    page = take_page();
    if (page == kNoPage) {
      ++stats_.refused;
      return {{ReserveOutcome::kFull, {}}, false};
    }
    PageEntry& entry = entries_[page];
    entry.generation = next_generation_++;
    entry.hash = wish.key.hash;
    entry.parent_hash = wish.parent_hash == wish.key.hash ? 0 : wish.parent_hash;
    entry.count = take_reservation(session);
    entry.state = PageState::kReserved;
    entry.set_key(wish.key.bytes, std::move(room));
    slots_.insert(entry.hash, page);
    times_.push(page, deadline);
    ++stats_.reserved;
    return {{ReserveOutcome::kReserved, {page, entry.generation}}, true};
  }
  const PageEntry& entry = entries_[page];
  const PageRef ref{page, entry.generation};
  if (entry.state == PageState::kStored) return {{ReserveOutcome::kStored, ref}, false};
  const Reservation& reservation = reservations_[entry.count];
  if (!(reservation.session == session)) {
    probe(Probe::kMetadataBusy);
    return {{ReserveOutcome::kBusy, {}}, false};
  }
  if (reservation.marks == 0) {
    const std::int64_t later = std::max(deadline, times_.order_of(entry));
    times_.erase(page);
    times_.push(page, later);
  }
  return {{ReserveOutcome::kReserved, ref}, false};
}

// Precondition: there is room for one.
std::uint32_t PageTable::take_reservation(const MetadataSession& session) {
  std::uint32_t number = free_reservation_;
  if (number == kNoPage) {
    number = static_cast<std::uint32_t>(reservations_.size());
    reservations_.emplace_back();
  } else {
    free_reservation_ = reservations_[number].next;
  }
  reservations_[number] = {session, 0, false, kNoPage};
  return number;
}

// Afterwards the page is nobody's.
void PageTable::drop_reservation(PageEntry& entry) {
  reservations_[entry.count].next = free_reservation_;
  free_reservation_ = entry.count;
  entry.count = 0;
  --stats_.reserved;
}

Marked PageTable::mark(const MetadataSession& session, std::string_view key, PageRef& ref) {
  if (ref.page >= used_) return Marked::kRefused;
  const PageEntry& there = entries_[static_cast<PageNumber>(ref.page)];
  if (ref.generation != 0 && ref.generation != there.generation) return Marked::kRefused;
  if (there.state == PageState::kStored && there.key() == key) {
    ref.generation = there.generation;
    return Marked::kStored;
  }
  const PageNumber page = reserved_page(session, key, ref);
  if (page == kNoPage) return Marked::kRefused;
  Reservation& reservation = reservations_[there.count];
  if (reservation.is_cleared) return Marked::kRefused;
  if (reservation.marks++ == 0) times_.erase(page);
  ref.generation = there.generation;
  return Marked::kMarked;
}

void PageTable::publish(const MetadataSession& session, std::string_view key, const PageRef& ref) {
  const PageNumber page = reserved_page(session, key, ref);
  if (page == kNoPage) return;  // the same request, sent twice, has published it
  PageEntry& entry = entries_[page];
  if (reservations_[entry.count].is_cleared) return free_reserved(page, kNoLease);
  try {
    count_child(entry.parent_hash);
  } catch (const std::bad_alloc&) {
    entry.parent_hash = 0;  // it may outlive its parent: that is all that a parent is for
  }
  drop_reservation(entry);
  store(page, PageList::kLeaves);
}

void PageTable::give_up(const MetadataSession& session, std::string_view key, const PageRef& ref) {
  const PageNumber page = reserved_page(session, key, ref);
  if (page == kNoPage) return;
  assert(reservations_[entries_[page].count].marks > 0);
  if (--reservations_[entries_[page].count].marks == 0) free_reserved(page, kNoLease);
}

void PageTable::release(const MetadataSession& session, std::string_view key, const PageRef& ref, bool rests) {
  const PageNumber page = reserved_page(session, key, ref);
  if (page == kNoPage || reservations_[entries_[page].count].marks > 0) return;
  times_.erase(page);
  free_reserved(page, rests ? now_ + limits_.max_io_lifetime.count() : kNoLease);
}

// Of a page that nobody waits for any more: not in times_. Until `rests_until` somebody may still write to it.
void PageTable::free_reserved(PageNumber page, std::int64_t rests_until) {
  PageEntry& entry = entries_[page];
  if (!reservations_[entry.count].is_cleared) slots_.erase(entry.hash, page);
  drop_reservation(entry);
  rest(page, rests_until);
}

void PageTable::expire(PageNumber page, std::int64_t deadline) {
  ++stats_.expired;
  free_reserved(page, deadline + limits_.max_io_lifetime.count());
}

// The page has its key, and its slot in the table of keys, and its parent counts it; from now on it is found.
void PageTable::store(PageNumber page, PageList leaves) {
  PageEntry& entry = entries_[page];
  entry.state = PageState::kStored;
  entry.tick = ++tick_;
  ++stats_.stored;
  entry.count = 0;
  if (!waiting_children_.empty()) {
    const auto waiting = waiting_children_.find(entry.hash);
    if (waiting != waiting_children_.end()) {
      entry.count = waiting->second;
      waiting_children_.erase(waiting);
      ++inner_;
    }
  }
  lists_.push_back(entry.count > 0 ? PageList::kInner : leaves, page);
}

// The key is gone; what becomes of the page is the caller's business.
void PageTable::forget_stored(PageNumber page) {
  PageEntry& entry = entries_[page];
  late_.make_room();   // for its parent
  times_.make_room();  // for rest()
  if (entry.count > 0) {
    waiting_children_[entry.hash] += entry.count;
    --inner_;
  }
  slots_.erase(entry.hash, page);
  take_out(page);
  entry.count = 0;
  entry.state = PageState::kFree;
  --stats_.stored;
  uncount_child(entry.parent_hash);
}

// Of a page that is nobody's now: free when no reader and no writer has it any more.
void PageTable::rest(PageNumber page, std::int64_t until) {
  PageEntry& entry = entries_[page];
  entry.drop_key();
  if (until > now_) {
    entry.state = PageState::kQuarantined;
    ++stats_.quarantined;
    probe(Probe::kMetadataQuarantined);
    times_.push(page, until);
    return;
  }
  leases_.remove(entry.lease_until);
  entry.lease_until = kNoLease;
  entry.state = PageState::kFree;
  entry.next = free_head_;
  free_head_ = page;
  ++stats_.free;
}

}  // namespace larder::metadata
