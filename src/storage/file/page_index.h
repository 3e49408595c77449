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
// Structure: an open-addressing table of node numbers (linear probing, load <= 3/4, doubled when full) in front of
// dense arrays of nodes (64 bytes, one cache line) and pages (64 bytes). A slot of the table has 32 bits; those that
// the number does not need hold a part of the hash, so that probing seldom reads a node in vain. The pages of one
// segment form a doubly linked list, so that dropping or cleaning a segment costs what it holds. Victims come from a
// heap of (last use, node) with stale entries, fixed when popped: a use costs O(1).
// A node says in one bit per identity of its namespace which pages it has, so contains() reads no page.
//
//      table slot   [hash bits | node number]   ->   node   ->   page   ->   next page of the node
//
// Memory: 64 bytes per page + 64 + 5.4 to 10.7 bytes per key + 12 to 48 per node without children.
// Cost: contains() two cache misses, three with find(); the batch form prefetches. insert() about one at the end of a
// chain. Doubling the table at 1M keys costs about 30 ms.
// Threads: confined (the file store's mutex guards it).
// Limits: kMaxPages pages, kMaxIdentities identities in use at once; offsets below 256 GiB per segment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "key/page_key.h"
#include "model/pool_spec.h"
#include "model/restore_point.h"
#include "storage/envelope.h"

namespace larder::file_store {

using SegmentId = std::uint32_t;   // 1, 2, ...; never reused while the store lives
using IdentityId = std::uint32_t;  // 0: none

// Payloads start at multiples of this, counted from the start of the segment file.
inline constexpr std::uint64_t kPayloadAlignment = 64;
// The last place where a payload may start: what 32 bits of kPayloadAlignment count, less one.
inline constexpr std::uint64_t kMaxPayloadOffset = std::uint64_t{0xfffffffe} * kPayloadAlignment;

struct PageIdentity {
  Digest256 namespace_digest, layout_fingerprint;
  PoolName pool = PoolName::kKv;
  friend bool operator==(const PageIdentity&, const PageIdentity&) = default;
};

struct PageIdentityHash {
  std::size_t operator()(const PageIdentity& i) const noexcept {
    return i.namespace_digest.prefix64() ^ (i.layout_fingerprint.prefix64() * 31) ^ static_cast<std::size_t>(i.pool);
  }
};

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

  // 0: no page has this identity. The number is good until the last page of the identity goes.
  [[nodiscard]] IdentityId find_identity(const PageIdentity& identity) const;
  // The key is looked up or inserted soon. Only a hint.
  void prefetch(const PageIdentity& identity, const PageKey& key) const;
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
  // Removes the next victim with all its pages; zero pages: the index is empty.
  // Cost: amortised O(log nodes), about ten cache misses.
  Evicted evict_coldest();

  // Appends the pages of a segment, at most `limit`, in no order.
  void list_segment(SegmentId segment, std::size_t limit, std::vector<ListedPage>& out) const;
  // Payload bytes of the pages that lie in the segment, each rounded up to kPayloadAlignment.
  [[nodiscard]] std::uint64_t live_bytes(SegmentId segment) const;
  [[nodiscard]] std::uint64_t live_pages(SegmentId segment) const;

  // Remove all pages of a segment / of a namespace; how many. The second costs O(all pages).
  std::uint64_t drop_segment(SegmentId segment);
  std::uint64_t drop_namespace(const Digest256& namespace_digest);
  void clear();

  [[nodiscard]] std::uint64_t size() const { return page_count_; }
  [[nodiscard]] std::uint64_t payload_bytes() const { return payload_bytes_; }
  [[nodiscard]] std::size_t identities() const { return identity_ids_.size(); }
  [[nodiscard]] std::size_t memory_bytes() const;  // table, nodes, pages, heap
  // Room for this many pages of different keys without growing on the way (opening a large store).
  void reserve(std::uint64_t pages);
  // Links, counts and lists agree. O(everything); tests.
  [[nodiscard]] Status check_invariants() const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;
  static constexpr std::uint32_t kSharedBit = 31;  // of Node::present
  static constexpr std::size_t kBatch = 64;        // keys looked up side by side
  static constexpr std::size_t kMinTable = 1024, kMinHeapLimit = 1024;

  // One (namespace, key). A *leaf* is a node with pages and without children.
  struct alignas(64) Node {
    PageKey key;
    std::uint32_t namespace_id = 0;  // 0: the node is free
    std::uint32_t parent = kNone;    // free: the next free one
    std::uint32_t children = 0;
    std::uint32_t first_page = kNone;  // kNone: a ghost
    std::uint32_t present = 0;         // bit Identity::bit of each page
    std::uint32_t in_heap = 0;         // 1: one entry of the heap names this number; also while the node is free
    std::uint64_t last_use = 0;
    [[nodiscard]] std::uint32_t& free_link() { return parent; }
    [[nodiscard]] bool is_leaf() const { return namespace_id != 0 && first_page != kNone && children == 0; }
  };
  static_assert(sizeof(Node) == 64);

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
  };
  static_assert(sizeof(Page) == 64);

  // Records with numbers from 0 up that never move; freed numbers are used first.
  template <class T>
  class Slab {
   public:
    [[nodiscard]] T& operator[](std::uint32_t number) { return chunks_[number / kChunk][number % kChunk]; }
    [[nodiscard]] const T& operator[](std::uint32_t number) const { return chunks_[number / kChunk][number % kChunk]; }
    // The record is as it was left by give(), or new.
    [[nodiscard]] std::uint32_t take() {
      const std::uint32_t number = free_;
      if (number != kNone) {
        free_ = (*this)[number].free_link();
        return number;
      }
      if (made_ % kChunk == 0) chunks_.push_back(std::make_unique<T[]>(kChunk));
      return made_++;
    }
    void give(std::uint32_t number) {
      (*this)[number].free_link() = free_;
      free_ = number;
    }
    [[nodiscard]] std::uint32_t made() const { return made_; }  // numbers below this exist, some of them free
    [[nodiscard]] std::size_t memory_bytes() const { return chunks_.size() * kChunk * sizeof(T); }
    void reserve(std::uint64_t records) { chunks_.reserve(static_cast<std::size_t>(records / kChunk + 1)); }

   private:
    static constexpr std::size_t kChunk = 4096;  // records allocated together
    std::vector<std::unique_ptr<T[]>> chunks_;
    std::uint32_t free_ = kNone;
    std::uint32_t made_ = 0;
  };

  // An entry of the heap, 12 bytes: `node` was a leaf last used at `use`. A use since then makes the entry too old,
  // and a child or the end of the node makes it void; both are noticed when it is popped.
  struct Candidate {
    std::uint32_t node = kNone, use_low = 0, use_high = 0;
    Candidate() = default;
    Candidate(std::uint32_t number, std::uint64_t use)
        : node(number), use_low(static_cast<std::uint32_t>(use)), use_high(static_cast<std::uint32_t>(use >> 32)) {}
    [[nodiscard]] std::uint64_t use() const { return (std::uint64_t{use_high} << 32) | use_low; }
    // std heaps have the greatest on top; ours the one used longest ago.
    friend bool operator<(const Candidate& a, const Candidate& b) { return a.use() > b.use(); }
  };
  static_assert(sizeof(Candidate) == 12);

  struct Identity {
    PageIdentity identity;
    std::uint64_t pages = 0;  // 0: the id is free
    std::uint32_t namespace_id = 0;
    std::uint32_t bit = 0;  // in Node::present: its own, or kSharedBit if those of the namespace were used up
  };
  struct Namespace {
    Digest256 digest;
    std::uint32_t identities = 0;  // 0: the id is free
    std::uint32_t bits = 0;        // of Node::present that have an owner
  };
  struct SegmentPages {
    std::uint32_t first = kNone;
    std::uint64_t pages = 0, live_bytes = 0;
  };

  // page_index_table.cc: from keys to nodes, from identities to numbers.
  [[nodiscard]] static std::uint64_t hash_of(std::uint32_t namespace_id, const PageKey& key);
  [[nodiscard]] std::uint32_t slot_value(std::uint64_t hash, std::uint32_t number) const;
  [[nodiscard]] std::uint32_t number_at(std::size_t slot) const { return table_[slot] & (kNone >> tag_bits_); }
  // From `slot` on, the first that is empty or has the hash bits of `hash`.
  [[nodiscard]] std::size_t next_candidate(std::uint64_t hash, std::size_t slot) const;
  // From `slot` on, the slot of the node, or the empty one where it belongs.
  [[nodiscard]] std::size_t probe_from(std::size_t slot, std::uint64_t hash, std::uint32_t namespace_id,
                                       const PageKey& key) const;
  [[nodiscard]] std::uint32_t find_node(std::uint32_t namespace_id, const PageKey& key) const;
  // A new node is a ghost without children: the caller gives it one of both.
  [[nodiscard]] std::uint32_t find_or_make_node(std::uint32_t namespace_id, const PageKey& key);
  void free_node(std::uint32_t number);
  void resize_table(std::size_t slots);
  [[nodiscard]] IdentityId make_identity(const PageIdentity& identity);
  [[nodiscard]] std::uint32_t find_or_make_namespace(const Digest256& digest);
  void release_identity(IdentityId id);

  // page_index.cc: pages, and their lists.
  [[nodiscard]] bool node_has(std::uint32_t node, IdentityId identity) const;
  [[nodiscard]] std::uint32_t page_of(std::uint32_t node, IdentityId identity) const;
  [[nodiscard]] std::uint32_t find_page(IdentityId identity, const PageKey& key) const;
  [[nodiscard]] static PageLocation location_of(const Page& page);
  [[nodiscard]] ListedPage listed(const Page& page) const;
  void place(std::uint32_t number, const PageLocation& location);
  void unplace(std::uint32_t number);
  void add_page(std::uint32_t node, IdentityId identity, const PageLocation& location);
  void remove_page(std::uint32_t number);
  void remove_from_node(std::uint32_t number);

  // page_index_evict.cc: parents and victims.
  void set_parent(std::uint32_t node, const PageKey& parent);
  void leave_parent(std::uint32_t node);
  void node_emptied(std::uint32_t node);
  void push_candidate(std::uint32_t node);
  void prune_heap();
  [[nodiscard]] std::uint32_t pop_victim();
  void cut_cycle();

  // page_index_check.cc
  [[nodiscard]] Status check_table() const;
  [[nodiscard]] Status check_nodes() const;
  [[nodiscard]] Status check_pages() const;
  [[nodiscard]] Status check_heap() const;
  [[nodiscard]] Status check_segments() const;
  [[nodiscard]] Status check_identities() const;

  std::vector<std::uint32_t> table_;  // kNone: empty; else hash bits above a node number; size a power of two
  std::uint32_t tag_bits_ = 0;        // of a slot that hold a part of the hash
  Slab<Node> nodes_;
  Slab<Page> pages_;
  std::uint64_t node_count_ = 0;  // not free
  std::uint64_t page_count_ = 0, payload_bytes_ = 0;
  std::uint64_t clock_ = 0;          // uses so far
  std::uint32_t last_node_ = kNone;  // of the last insert(): often the parent of the next
  std::uint32_t cut_cursor_ = 0;     // where cut_cycle() goes on searching
  std::vector<Candidate> heap_;
  std::size_t heap_limit_ = kMinHeapLimit;  // entries; when reached, the void ones are removed
  std::unordered_map<SegmentId, SegmentPages> segments_;
  std::vector<Identity> identities_;  // [id - 1]
  std::vector<IdentityId> free_identities_;
  std::unordered_map<PageIdentity, IdentityId, PageIdentityHash> identity_ids_;
  std::vector<Namespace> namespaces_;  // [id - 1]
  std::vector<std::uint32_t> free_namespaces_;
  std::unordered_map<Digest256, std::uint32_t> namespace_ids_;
};

}  // namespace larder::file_store
