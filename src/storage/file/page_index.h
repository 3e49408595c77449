// SPDX-License-Identifier: Apache-2.0
// The in-memory index of the file store: (identity, key) -> where the page lies; and who is evicted next.
//
// An identity is (namespace digest, layout fingerprint, pool); identities and namespaces are interned, because a store
// has few of them and millions of pages.
//
// Picture: pages of one (namespace, key) hang on one *node*; nodes know their parent in the chain. So a prefix keeps
// together: KV, sidecars and state of a position go with one another, tails before heads.
//
//      node(key 0) <- node(key 1) <- node(key 2)        parent links; a node counts its children
//         |              |              |
//        kv             kv, indexer    kv, mamba        pages (singly linked, one per identity)
//
// A parent that is not stored (yet, or any more) is a *ghost*: a node without pages and without a parent, kept while it
// has children. So there are never more ghosts than stored keys.
// Eviction order: among stored nodes without children, the one used longest ago. Removing it may make its parent the
// next; a parent counts as used no earlier than its children were.
// Links come from disk and from clients, and may be absurd: a key is never its own parent, and a cycle of nodes (none
// of which is ever without children) is cut at one node when nothing else is left to evict.
//
// Structure: a table of nodes by key (node_table.h), dense arrays of nodes and pages (64 bytes each), small numbers for
// identities (page_identities.h). The pages of one segment form a doubly linked list, so that dropping or cleaning a
// segment costs what it holds. Victims come from a heap of (last use, node) with stale entries, fixed when popped: a
// use costs O(1). A node says in one bit per identity of its namespace which pages it has, so contains() reads no page.
//
//      table slot   [hash bits | node number]   ->   node   ->   page   ->   next page of the node
//
// Memory: 64 bytes per page + 64 + 5.4 to 10.7 bytes per key + 12 to 48 per node without children.
// Cost: contains() two cache misses, three with find(); the batch form prefetches. insert() about one at the end of a
// chain.
// Threads: confined (the file store's mutex guards it).
// Limits: kMaxPages pages, kMaxIdentities identities in use at once (tests: fewer); offsets below 256 GiB per segment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "key/page_key.h"
#include "model/restore_point.h"
#include "storage/envelope.h"
#include "storage/file/leaf_heap.h"
#include "storage/file/node_table.h"
#include "storage/file/page_identities.h"
#include "storage/file/slab.h"

namespace larder::file_store {

using SegmentId = std::uint32_t;  // 1, 2, ...; never reused while the store lives

// Payloads start at multiples of this, counted from the start of the segment file.
inline constexpr std::uint64_t kPayloadAlignment = 64;
// The last place where a payload may start: what 32 bits of kPayloadAlignment count, less one.
inline constexpr std::uint64_t kMaxPayloadOffset = std::uint64_t{0xfffffffe} * kPayloadAlignment;

struct PageLocation {
  SegmentId segment = 0;
  std::uint64_t offset = 0;  // of the payload, bytes, a multiple of kPayloadAlignment
  std::uint32_t payload_bytes = 0;
  std::uint64_t generation = 0;
  Checksum128 checksum;
  friend bool operator==(const PageLocation&, const PageLocation&) = default;
};

// Sorts pages of one segment as they were written: a page of 0 bytes has the offset of the page behind it.
using PagePlace = std::pair<std::uint64_t, std::uint64_t>;
[[nodiscard]] inline PagePlace place_of(const PageLocation& at) { return {at.offset, at.generation}; }

// A page as the index, a record or a footer lists it.
struct ListedPage {
  PageIdentity identity;
  PageKey key;
  PageKey parent;           // all zero: none, or unknown
  PageLocation location;    // place, size, generation, checksum
  std::uint32_t group = 0;  // within its record: 0, then the same or one more; elsewhere: 0
};
// Of one segment.
inline void sort_by_place(std::vector<ListedPage>& pages) {
  std::sort(pages.begin(), pages.end(),
            [](const ListedPage& a, const ListedPage& b) { return place_of(a.location) < place_of(b.location); });
}

class PageIndex {
 public:
  static constexpr std::uint64_t kMaxPages = std::uint64_t{1} << 30;
  static constexpr std::size_t kMaxIdentities = std::size_t{1} << 20;

  explicit PageIndex(std::size_t most_identities = kMaxIdentities) : most_identities_(most_identities) {}

  // 0: no page has this identity. The number is good until the last page of the identity goes.
  [[nodiscard]] IdentityId find_identity(const PageIdentity& identity) const { return identities_.find(identity); }
  // The key is looked up or inserted soon. Only a hint.
  void prefetch(const PageIdentity& identity, const PageKey& key) const {
    const IdentityId id = find_identity(identity);
    if (id != 0) nodes_.prefetch(identities_[id].namespace_id, key);
  }
  // False if absent.
  [[nodiscard]] bool find(IdentityId identity, const PageKey& key, PageLocation& out) const;
  [[nodiscard]] bool contains(IdentityId identity, const PageKey& key) const;
  // present[i] = contains(identity, keys[i]); `present` is sized by the caller. Prefetches ahead.
  void contains(IdentityId identity, std::span<const PageKey> keys, Presence& present) const;
  // The page was used: its node (and by the rule above all before it) is younger than what was used earlier.
  // Without effect if absent.
  void touch(IdentityId identity, const PageKey& key);

  // Adds the page, or replaces a page of an older generation, and counts as a use. Ok and nothing changes (no use
  // either) if the one there is newer or the same.
  // `parent`: all zero: none or unknown. A page that comes with a parent when its node had none gives it that one.
  // kOverloaded: a limit; nothing changes.
  [[nodiscard]] Status insert(const PageIdentity& identity, const PageKey& key, const PageKey& parent,
                              const PageLocation& location);
  // Cleaning: the page, if it still lies at `from`, lies at `to` now. True if it did. Of both, only segment and offset
  // count. Not a use.
  bool move(const PageIdentity& identity, const PageKey& key, const PageLocation& from, const PageLocation& to);
  // Removes the page if it is still the one of `generation`. True if it was.
  bool erase(IdentityId identity, const PageKey& key, std::uint64_t generation);

  struct Evicted {
    std::uint64_t pages = 0, payload_bytes = 0;
  };
  // Room for so many identities more: the coldest nodes go until there is, but no more than take about a millisecond.
  // `evicted`: so many pages went. kOverloaded: that was not enough; the next call goes on.
  [[nodiscard]] Status make_identity_room(std::size_t identities, std::uint64_t& evicted);
  // Removes the next victim with all its pages; zero pages: the index is empty.
  // Cost: amortised O(log nodes), about ten cache misses.
  Evicted evict_coldest();

  // Appends the pages of a segment, at most `limit`, in no order.
  void list_segment(SegmentId segment, std::size_t limit, std::vector<ListedPage>& out) const;
  // Payload bytes of the pages that lie in the segment, each rounded up to kPayloadAlignment.
  [[nodiscard]] std::uint64_t live_bytes(SegmentId segment) const;
  [[nodiscard]] std::uint64_t live_pages(SegmentId segment) const;

  // Removes all pages of a segment; how many.
  std::uint64_t drop_segment(SegmentId segment);
  // From here on nothing finds the pages of the namespace, and no use makes them younger; they count, and are listed
  // and evicted, until they are removed. Pages that are inserted into it later are others.
  void unlink_namespace(const Digest256& namespace_digest);
  [[nodiscard]] std::uint64_t unlinked_pages() const { return identities_.unlinked_pages(); }
  // Removes unlinked pages, and looks at `places` of all pages for that. False: there are none (any more).
  bool drop_unlinked(std::size_t places);
  // Those of one segment. Cost: O(pages of the segment), if there are any unlinked ones at all.
  void drop_unlinked_of(SegmentId segment);
  void clear();

  [[nodiscard]] std::uint64_t size() const { return page_count_; }
  [[nodiscard]] std::uint64_t payload_bytes() const { return payload_bytes_; }
  [[nodiscard]] std::size_t identities() const { return identities_.size(); }
  [[nodiscard]] std::size_t memory_bytes() const;  // table, nodes, pages, heap
  // Room for this many pages of different keys without growing on the way (opening a large store).
  void reserve(std::uint64_t pages);
  // Links, counts and lists agree. O(everything); tests.
  [[nodiscard]] Status check_invariants() const;

 private:
  friend struct PageIndexCheck;  // page_index_check.cc
  static constexpr std::uint32_t kNone = kNoNumber;
  static constexpr std::size_t kMostNodesForRoom = 1024;

  struct alignas(64) Page {
    std::uint32_t node = kNone;
    IdentityId identity = 0;  // 0: the page is free
    std::uint32_t next_in_node = kNone;
    SegmentId segment = 0;
    std::uint32_t offset_units = 0;  // of kPayloadAlignment
    std::uint32_t payload_bytes = 0;
    std::uint64_t generation = 0;
    Checksum128 checksum;
    std::uint32_t previous = kNone, next = kNone;  // in the segment's list; free: next is the next free one
    [[nodiscard]] std::uint32_t& free_link() { return next; }
    [[nodiscard]] PageLocation location() const {
      return {segment, offset_units * kPayloadAlignment, payload_bytes, generation, checksum};
    }
  };
  static_assert(sizeof(Page) == 64);

  struct SegmentPages {
    std::uint32_t first = kNone;
    std::uint64_t pages = 0, live_bytes = 0;
  };

  // page_index.cc: pages, and their lists.
  [[nodiscard]] bool node_has(std::uint32_t node, IdentityId identity) const;
  [[nodiscard]] std::uint32_t page_of(std::uint32_t node, IdentityId identity) const;
  [[nodiscard]] std::uint32_t find_page(IdentityId identity, const PageKey& key) const;
  void place(std::uint32_t number, const PageLocation& location);
  void unplace(std::uint32_t number);
  void add_page(std::uint32_t node, IdentityId identity, const PageLocation& location);
  void remove_page(std::uint32_t number);
  void remove_from_node(std::uint32_t number);

  // page_index_evict.cc: parents and victims.
  void set_parent(std::uint32_t node, const PageKey& parent);
  void leave_parent(std::uint32_t node);
  void node_emptied(std::uint32_t node);
  [[nodiscard]] std::uint32_t pop_victim();
  void cut_cycle();

  std::size_t most_identities_;
  PageIdentities identities_;
  NodeTable nodes_;
  Slab<Page> pages_;
  std::uint64_t page_count_ = 0, payload_bytes_ = 0;
  std::uint64_t clock_ = 0;          // uses so far
  std::uint32_t last_node_ = kNone;  // of the last insert(): often the parent of the next
  std::uint32_t cut_cursor_ = 0;     // where cut_cycle() goes on searching
  std::uint32_t drop_cursor_ = 0;    // where drop_unlinked() does
  LeafHeap leaves_;
  std::unordered_map<SegmentId, SegmentPages> segments_;
};

}  // namespace larder::file_store
