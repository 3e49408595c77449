// SPDX-License-Identifier: Apache-2.0
// One namespace of the page-index service as a state machine: which page holds which key, who writes, who reads.
//
// Purpose: the rules of storage/hf3fs/metadata_service.h for one namespace, without I/O, locks, clock or journal: the
// owner passes the time and writes down what the answers say has changed.
// Threads: confined (EmbeddedMetadata holds one lock per namespace). Time that goes back counts as standing still.
// Bounded: nothing happens at a time of its own, and a call settles about kSettled of what is due, the oldest first: of
// the others a reservation that is over is nobody's already, and a page is not free yet. A reserve() puts no more than
// kParked leased pages aside: where more lie in front of one that could be evicted, it is kFull, and the next call goes
// on from there.
// Cost: O(1) amortised per key, O(log n) in the number of reservations for their deadlines and of pages for evictions
// behind an evicted child; independent of the number of stored keys. recovered(), check() and all parts of a clear()
// look at every page that was ever used. Memory: about 150 bytes per page that was ever used.
//
// Eviction: stored pages without stored children are leaves, in a list by recency. A page becomes a leaf when its last
// child goes; its recency then lies somewhere in the list, so those "late" leaves are in a heap, and the victim is the
// older of both fronts: exact least-recently-used order. A leased victim is parked in the heap of times until its lease
// ends, so that it is looked at once per lease and not again and again.
// Parents are known by the hash of their key alone: a parent may come later, or never. Children whose parent is not
// stored are counted by that hash. Two keys with one 64-bit hash would disturb the order of eviction and nothing else.
//
// Without memory (std::bad_alloc): what was done until then stays and has been told, and no page is between two states.
// Each change asks for its memory first (make_room()).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "metadata/key_slots.h"
#include "metadata/lease_count.h"
#include "metadata/page_entry.h"
#include "metadata/page_heap.h"
#include "metadata/page_lists.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::metadata {

// Never 0. Part of the journal's format.
[[nodiscard]] std::uint64_t hash_key(std::string_view key);

struct HashedKey {
  std::string_view bytes;
  std::uint64_t hash = 0;
};

struct PageTableLimits {
  Nanos max_lease{0};        // no lease is longer
  Nanos max_io_lifetime{0};  // how long the writer of an expired reservation may still be writing
};

struct ReserveWish {
  HashedKey key;
  std::uint64_t parent_hash = 0;  // 0: none or unknown
};
struct ReserveAnswer {
  Reserved reserved;
  bool is_new = false;  // reserved by this call
};

// Of an item that is to be confirmed.
enum class Marked : std::uint8_t {
  kMarked,   // held for the caller: publish() or give_up() must follow
  kStored,   // was confirmed before
  kRefused,  // not reserved (any more) by this session, at this page and generation
};

// A clear looks at every page that was ever used: in parts, so that others get their turn.
struct ClearPart {
  std::uint64_t from = 0;  // page; from pages() on: nothing is left
  std::uint64_t count = 0;
  std::uint64_t before = 0;  // what has this generation, or one above, came after the clear began, and stays
};

class PageTable {
 public:
  static constexpr int kSettled = 1024;   // a quarter of a millisecond
  static constexpr int kParked = 16'384;  // two milliseconds

  // Precondition: 0 < pages <= kMaxNamespacePages.
  PageTable(std::uint64_t pages, const PageTableLimits& limits);
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  [[nodiscard]] std::uint64_t pages() const { return pages_; }
  // The generation that the next new reservation gets; each takes one.
  [[nodiscard]] std::uint64_t next_generation() const { return next_generation_; }

  // out: one per key. lease 0: nothing is leased, no recency refreshed. Precondition: 0 <= lease <= max_lease.
  void find(std::span<const HashedKey> keys, Nanos lease, TimePoint now, std::span<std::optional<PageRef>> out);

  // Reserving takes two steps, each in as many parts as the caller likes, so that others get their turn. The first
  // makes recent what is stored of the wishes, and the stored parents that they name, and gives its recency from which
  // on nothing is to be evicted: making room for the rest of a chain does not take its beginning.
  [[nodiscard]] std::uint64_t make_recent(std::span<const ReserveWish> wishes, TimePoint now);
  // out: one per wish. Evicts nothing of `protected_from` or later.
  void reserve(const MetadataSession& session, std::span<const ReserveWish> wishes, TimePoint deadline, TimePoint now,
               std::uint64_t protected_from, std::span<ReserveAnswer> out);

  // Confirming takes two steps, so that a group over several namespaces is whole or nothing with one lock at a time.
  // Between them the page neither expires nor goes to anybody else; a clear takes effect at publish().
  void advance(TimePoint now);  // before a row of mark()
  // Fills in ref.generation if it is 0.
  [[nodiscard]] Marked mark(const MetadataSession& session, std::string_view key, PageRef& ref);
  void publish(const MetadataSession& session, std::string_view key, const PageRef& ref);
  // As release(), once nobody else has it marked.
  void give_up(const MetadataSession& session, std::string_view key, const PageRef& ref);
  // Frees a reservation; nothing happens if it is none of this session or is being confirmed. `rests`: its page not
  // before max_io_lifetime has passed since advance().
  void release(const MetadataSession& session, std::string_view key, const PageRef& ref, bool rests);

  // The page that was dropped. ref.generation 0: wherever the key is.
  std::optional<PageRef> remove(const HashedKey& key, const PageRef& ref, TimePoint now);
  // Looks at one part, and makes it the next one. Gives the number of stored keys dropped; tells of each of their
  // pages, and of those of the reservations refused, at once. `forgot` does not throw.
  using Forgot = std::function<void(const PageRef&)>;
  std::uint64_t clear(std::string_view prefix, ClearPart& part, TimePoint now, const Forgot& forgot);

  [[nodiscard]] NamespaceStats stats(TimePoint now);
  // kInternal with what is wrong. Looks at everything.
  [[nodiscard]] Status check() const;

  // Recovery, before anything else: load() what the journal has in any order, then recovered(). A page that lies below
  // the highest one loaded and is not stored rests for max(max_lease, max_io_lifetime), as somebody may write to it or
  // read it; the stored ones count as leased for max_lease. Of two pages with one key the newer generation counts.
  void load(PageNumber page, std::uint64_t generation, const HashedKey& key, std::uint64_t parent_hash, bool stored);
  void recovered(std::uint64_t next_generation, TimePoint now);

 private:
  struct Reservation {
    MetadataSession session;
    std::uint32_t marks = 0;  // confirmations under way
    bool is_cleared = false;  // its key is not its own any more
    std::uint32_t next = 0;   // of the free ones
  };

  // Lookup: page_table.cc
  [[nodiscard]] PageNumber lookup(const HashedKey& key) const;
  [[nodiscard]] PageNumber lookup_stored(std::uint64_t hash) const;
  [[nodiscard]] PageNumber reserved_page(const MetadataSession& session, std::string_view key,
                                         const PageRef& ref) const;
  void find_block(std::span<const HashedKey> keys, std::int64_t lease_until, std::span<std::optional<PageRef>> out);
  void lease(PageEntry& entry, std::int64_t until);
  // What is due first. False: nothing is.
  bool settle_one();

  // Life of a page: page_table_life.cc
  [[nodiscard]] ReserveAnswer reserve_one(const MetadataSession& session, const ReserveWish& wish,
                                          std::int64_t deadline);
  [[nodiscard]] std::uint32_t take_reservation(const MetadataSession& session);
  void drop_reservation(PageEntry& entry);
  void store(PageNumber page, PageList leaves);
  void forget_stored(PageNumber page);
  void rest(PageNumber page, std::int64_t until);
  void free_reserved(PageNumber page, std::int64_t rests_until);
  void expire(PageNumber page, std::int64_t deadline);

  // Recency and eviction: page_table_evict.cc
  void touch(PageNumber page);
  void take_out(PageNumber page);
  void count_child(std::uint64_t parent_hash);
  void uncount_child(std::uint64_t parent_hash);
  [[nodiscard]] PageNumber take_page();
  [[nodiscard]] PageNumber victim();
  [[nodiscard]] PageNumber oldest_leaf();

  // constant after construction
  const std::uint64_t pages_;
  const PageTableLimits limits_;

  std::int64_t now_ = 0;
  PageEntries entries_;
  KeySlots slots_;  // keys of stored and reserved pages
  PageLists lists_{entries_};
  PageHeap late_{entries_, PagePlace::kLate};    // leaves, by tick
  PageHeap times_{entries_, PagePlace::kTimed};  // reserved: deadline. Quarantined: end. Stored: end of the lease
  LeaseCount leases_;
  std::vector<Reservation> reservations_;
  std::uint32_t free_reservation_ = kNoPage;
  std::unordered_map<std::uint64_t, std::uint32_t> waiting_children_;  // stored ones, by the hash of an absent parent
  std::uint64_t used_ = 0;                                             // pages from this one on were never used
  PageNumber free_head_ = kNoPage;                                     // of those that were
  std::uint64_t tick_ = 0;
  std::uint64_t protected_from_ = 0;  // ticks from this one on are not evicted now
  int parks_left_ = 0;                // of this reserve()
  std::size_t settles_left_ = 0;      // of this reserve(), besides those of advance()
  std::int64_t held_until_ = kNoLease;
  std::uint64_t next_generation_ = 1;
  std::uint64_t inner_ = 0;  // stored pages with stored children
  NamespaceStats stats_;     // all but `leased`; `free` has the pages never used too
};

}  // namespace larder::metadata
