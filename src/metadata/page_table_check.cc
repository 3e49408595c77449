// SPDX-License-Identifier: Apache-2.0
// The invariants of a PageTable, looked up the slow way.
#include <string>
#include <unordered_map>

#include "metadata/page_table.h"

namespace larder::metadata {
namespace {

struct Counted {
  std::uint64_t free = 0, reserved = 0, stored = 0, quarantined = 0, leased = 0, slots = 0, inner = 0;
  std::uint64_t linked = 0, late = 0, timed = 0;
};

Status broken(PageNumber page, const std::string& what) {
  return internal_error("page " + std::to_string(page) + ": " + what);
}

}  // namespace

Status PageTable::check() const {
  Counted counted;
  std::unordered_map<std::uint64_t, std::uint32_t> children;  // stored ones, by the hash of their parent
  for (PageNumber page = 0; page < used_; ++page) {
    const PageEntry& entry = entries_[page];
    counted.leased += leases_.counts(entry.lease_until) ? 1 : 0;
    counted.linked += entry.place == PagePlace::kLinked ? 1 : 0;
    counted.late += entry.place == PagePlace::kLate ? 1 : 0;
    counted.timed += entry.place == PagePlace::kTimed ? 1 : 0;
    if (entry.place == PagePlace::kLate || entry.place == PagePlace::kTimed) {
      const PageHeap& heap = entry.place == PagePlace::kLate ? late_ : times_;
      if (entry.previous >= heap.size() || heap.items()[entry.previous].page != page) return broken(page, "heap place");
    }
    const bool is_cleared = entry.state == PageState::kReserved && reservations_[entry.count].is_cleared;
    if (entry.state == PageState::kStored || (entry.state == PageState::kReserved && !is_cleared)) {
      ++counted.slots;
      if (lookup({entry.key(), entry.hash}) != page) return broken(page, "its key leads elsewhere");
      if (entry.hash != hash_key(entry.key())) return broken(page, "wrong hash");
    }
    switch (entry.state) {
      case PageState::kFree: ++counted.free; break;
      case PageState::kReserved: ++counted.reserved; break;
      case PageState::kQuarantined: ++counted.quarantined; break;
      case PageState::kStored:
        ++counted.stored;
        counted.inner += entry.count > 0 ? 1 : 0;
        if (entry.parent_hash != 0) ++children[entry.parent_hash];
        if (entry.place == PagePlace::kNowhere) return broken(page, "stored, but in no list");
    }
    if (entry.state == PageState::kFree && entry.place != PagePlace::kNowhere) return broken(page, "free, but listed");
    if (entry.state == PageState::kFree && entry.lease_until != kNoLease) return broken(page, "free, but leased");
    if (entry.generation >= next_generation_) return broken(page, "a generation that was not given out");
  }
  std::uint64_t waiting = 0;
  for (const auto& [hash, count] : children) {
    const PageNumber parent = lookup_stored(hash);
    const auto other = waiting_children_.find(hash);
    waiting += parent == kNoPage ? 1 : 0;
    const std::uint32_t known =
        parent != kNoPage ? entries_[parent].count : (other == waiting_children_.end() ? 0 : other->second);
    if (known != count) return internal_error("wrong number of children");
  }
  if (waiting != waiting_children_.size()) return internal_error("children wait for a parent that none of them has");
  if (counted.linked + counted.late + counted.timed > used_) return internal_error("a page in two places");
  if (counted.late != late_.size() || counted.timed != times_.size()) return internal_error("size of a heap");
  if (counted.slots != slots_.size() || counted.inner != inner_) return internal_error("number of keys or inner pages");
  if (counted.leased != leases_.total()) return internal_error("number of leases");
  counted.free += pages_ - used_;
  if (counted.free != stats_.free || counted.reserved != stats_.reserved || counted.stored != stats_.stored ||
      counted.quarantined != stats_.quarantined) {
    return internal_error("the pages of a state are miscounted");
  }
  if (counted.free + counted.reserved + counted.stored + counted.quarantined != pages_) {
    return internal_error("pages are missing");
  }
  return Status::ok();
}

}  // namespace larder::metadata
