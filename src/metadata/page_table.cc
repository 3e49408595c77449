// SPDX-License-Identifier: Apache-2.0
#include "metadata/page_table.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cassert>

#include "base/defect.h"

namespace larder::metadata {
namespace {

constexpr std::size_t kBlock = 32;  // keys whose cache lines are on their way at the same time

std::int64_t nanos(TimePoint time) { return time.time_since_epoch().count(); }

}  // namespace

std::uint64_t hash_key(std::string_view key) {
  const std::uint64_t hash = XXH3_64bits(key.data(), key.size());
  return hash == 0 ? 1 : hash;
}

PageTable::PageTable(std::uint64_t pages, const PageTableLimits& limits)
    : pages_(pages), limits_(limits), leases_(limits.max_lease) {
  assert(pages > 0 && pages <= kMaxNamespacePages);
  stats_.pages = stats_.free = pages;
}

PageNumber PageTable::lookup(const HashedKey& key) const {
  return slots_.find(key.hash, [&](PageNumber page) {
    const PageEntry& entry = entries_[page];
    return entry.hash == key.hash && entry.key() == key.bytes;
  });
}

PageNumber PageTable::lookup_stored(std::uint64_t hash) const {
  return slots_.find(hash, [&](PageNumber page) {
    const PageEntry& entry = entries_[page];
    return entry.hash == hash && entry.state == PageState::kStored;
  });
}

PageNumber PageTable::reserved_page(const MetadataSession& session, std::string_view key, const PageRef& ref) const {
  if (ref.page >= used_) return kNoPage;
  const auto page = static_cast<PageNumber>(ref.page);
  const PageEntry& entry = entries_[page];
  const bool matches = entry.state == PageState::kReserved && !times_.is_due(entry, now_) &&
                       (ref.generation == 0 || ref.generation == entry.generation) &&
                       (reservations_[entry.count].session == session || defect(Defect::kConfirmOfOthers)) &&
                       entry.key() == key;
  return matches ? page : kNoPage;
}

void PageTable::advance(TimePoint now) {
  now_ = std::max(now_, nanos(now));
  leases_.advance(now_);
  for (int left = kSettled; left > 0 && settle_one();) --left;
}

bool PageTable::settle_one() {
  if (times_.empty() || times_.top().order > now_) return false;
  const PageHeap::Item item = times_.top();
  late_.make_room();
  times_.pop();
  PageEntry& entry = entries_[item.page];
  if (entry.state == PageState::kReserved) {
    expire(item.page, item.order);
  } else if (entry.state == PageState::kQuarantined) {
    --stats_.quarantined;
    rest(item.page, kNoLease);
  } else {  // its lease has ended, it may be evicted again
    late_.push(item.page, static_cast<std::int64_t>(entry.tick));
  }
  return true;
}

void PageTable::lease(PageEntry& entry, std::int64_t until) {
  if (until <= entry.lease_until) return;
  leases_.remove(entry.lease_until);
  entry.lease_until = until;
  leases_.add(until);
}

void PageTable::find(std::span<const HashedKey> keys, Nanos lease, TimePoint now,
                     std::span<std::optional<PageRef>> out) {
  assert(keys.size() == out.size() && lease.count() >= 0 && lease <= limits_.max_lease);
  advance(now);
  const std::int64_t until = lease.count() > 0 ? now_ + lease.count() : kNoLease;
  for (std::size_t from = 0; from < keys.size(); from += kBlock) {
    const std::size_t count = std::min(kBlock, keys.size() - from);
    find_block(keys.subspan(from, count), until, out.subspan(from, count));
  }
}

// Each step waits for memory only once: the lines that it needs were asked for by the step before.
void PageTable::find_block(std::span<const HashedKey> keys, std::int64_t lease_until,
                           std::span<std::optional<PageRef>> out) {
  for (const HashedKey& key : keys) slots_.prefetch(key.hash);
  std::array<PageNumber, kBlock> pages;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    pages[i] = slots_.guess(keys[i].hash);
    if (pages[i] == kNoPage) continue;
    __builtin_prefetch(&entries_[pages[i]]);
    __builtin_prefetch(entries_[pages[i]].short_key);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    pages[i] = lookup(keys[i]);
    if (pages[i] == kNoPage || lease_until == kNoLease || entries_[pages[i]].place != PagePlace::kLinked) continue;
    if (const PageNumber page = entries_[pages[i]].previous; page < used_) __builtin_prefetch(&entries_[page], 1);
    if (const PageNumber page = entries_[pages[i]].next; page < used_) __builtin_prefetch(&entries_[page], 1);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    out[i].reset();
    if (pages[i] == kNoPage) continue;
    PageEntry& entry = entries_[pages[i]];
    if (entry.state != PageState::kStored) continue;
    out[i] = PageRef{pages[i], entry.generation};
    if (lease_until == kNoLease || defect(Defect::kReadLeaseIgnored)) continue;
    lease(entry, lease_until);
    touch(pages[i]);
  }
}

std::uint64_t PageTable::make_recent(std::span<const ReserveWish> wishes, TimePoint now) {
  advance(now);
  const std::uint64_t first = tick_ + 1;
  for (const ReserveWish& wish : wishes) slots_.prefetch(wish.key.hash);
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const std::uint64_t before = i == 0 ? 0 : wishes[i - 1].key.hash;
    if (wishes[i].parent_hash != 0 && wishes[i].parent_hash != before) {
      const PageNumber parent = lookup_stored(wishes[i].parent_hash);
      if (parent != kNoPage) touch(parent);
    }
    const PageNumber page = lookup(wishes[i].key);
    if (page != kNoPage && entries_[page].state == PageState::kStored) touch(page);
  }
  return first;
}

void PageTable::reserve(const MetadataSession& session, std::span<const ReserveWish> wishes, TimePoint deadline,
                        TimePoint now, std::uint64_t protected_from, std::span<ReserveAnswer> out) {
  assert(wishes.size() == out.size());
  advance(now);
  protected_from_ = protected_from;
  parks_left_ = kParked;
  settles_left_ = kSettled + 2 * wishes.size();
  for (std::size_t i = 0; i < wishes.size(); ++i) out[i] = reserve_one(session, wishes[i], nanos(deadline));
}

std::optional<PageRef> PageTable::remove(const HashedKey& key, const PageRef& ref, TimePoint now) {
  advance(now);
  const PageNumber page = lookup(key);
  if (page == kNoPage || entries_[page].state != PageState::kStored) return std::nullopt;
  const PageRef found{page, entries_[page].generation};
  if (ref.generation != 0 && !(ref == found)) return std::nullopt;
  forget_stored(page);
  rest(page, entries_[page].lease_until);
  return found;
}

std::uint64_t PageTable::clear(std::string_view prefix, ClearPart& part, TimePoint now, const Forgot& forgot) {
  advance(now);
  std::uint64_t dropped = 0;
  const std::uint64_t end = std::min(used_, part.from + part.count);
  for (auto page = static_cast<PageNumber>(part.from); page < end; ++page) {
    PageEntry& entry = entries_[page];
    if (entry.generation >= part.before || !entry.key().starts_with(prefix)) continue;
    if (entry.state == PageState::kStored) {
      forget_stored(page);
      rest(page, entries_[page].lease_until);
      ++dropped;
    } else if (entry.state == PageState::kReserved && !reservations_[entry.count].is_cleared) {
      reservations_[entry.count].is_cleared = true;
      slots_.erase(entry.hash, page);
    } else {
      continue;
    }
    forgot({page, entry.generation});
  }
  part.from = end < used_ ? end : pages_;
  return dropped;
}

NamespaceStats PageTable::stats(TimePoint now) {
  advance(now);
  NamespaceStats stats = stats_;
  stats.leased = leases_.total();
  return stats;
}

void PageTable::load(PageNumber page, std::uint64_t generation, const HashedKey& key, std::uint64_t parent_hash,
                     bool stored) {
  assert(page < pages_);
  used_ = std::max<std::uint64_t>(used_, std::uint64_t{page} + 1);
  entries_.grow(used_);
  PageEntry& entry = entries_[page];
  entry.generation = generation;
  if (!stored) return;
  entry.set_key(key.bytes, PageEntry::room_for(key.bytes));
  entry.hash = key.hash;
  entry.parent_hash = parent_hash == key.hash ? 0 : parent_hash;
}

void PageTable::recovered(std::uint64_t next_generation, TimePoint now) {
  advance(now);
  next_generation_ = std::max(next_generation_, next_generation);
  held_until_ = now_ + limits_.max_lease.count();
  const std::int64_t rest_until = now_ + std::max(limits_.max_lease, limits_.max_io_lifetime).count();
  const auto quarantine = [&](PageNumber page) {
    entries_[page].drop_key();
    entries_[page].state = PageState::kQuarantined;
    times_.push(page, rest_until);
    ++stats_.quarantined;
  };
  std::vector<PageNumber> stored;
  for (PageNumber page = 0; page < used_; ++page) {
    next_generation_ = std::max(next_generation_, entries_[page].generation + 1);
    entries_[page].key_bytes > 0 ? stored.push_back(page) : quarantine(page);
  }
  stats_.free -= used_;
  // The newest first, so that of two pages with one key it is the one that stays.
  std::sort(stored.begin(), stored.end(),
            [&](PageNumber a, PageNumber b) { return entries_[a].generation > entries_[b].generation; });
  std::size_t kept = 0;
  for (const PageNumber page : stored) {
    const PageEntry& entry = entries_[page];
    if (lookup({entry.key(), entry.hash}) != kNoPage) {
      quarantine(page);
      continue;
    }
    slots_.insert(entry.hash, page);
    stored[kept++] = page;
  }
  stored.resize(kept);
  // The oldest first: their order is that of their use, as far as anybody knows.
  for (auto at = stored.rbegin(); at != stored.rend(); ++at) {
    PageEntry& entry = entries_[*at];
    if (limits_.max_lease.count() > 0) lease(entry, held_until_);
    count_child(entry.parent_hash);
    store(*at, PageList::kHeld);
  }
}

}  // namespace larder::metadata
