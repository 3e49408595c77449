// The in-memory index of the file store: (identity, key) -> where the page lies.
//
// An identity is (namespace digest, layout fingerprint, pool); identities are interned, because a store has few of them
// and millions of pages.
//
// Picture: an open-addressing table of 32-bit entry numbers (linear probing, load <= 3/4, doubled when full) in front
// of a dense array of 64-byte entries. The entries of one segment form a doubly linked list, so that dropping a segment
// costs what it holds and nothing else.
//
// Memory: 64 bytes + 5.4 to 10.7 bytes of table per page: at most 75 MB per million pages.
// Cost: lookup two cache misses; insert the same, amortised; doubling at 1M pages ~10 ms.
// Threads: confined (the file store's mutex guards it).
// Limits: kMaxPages pages, kMaxIdentities identities in use at once; offsets below 256 GiB per segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "key/page_key.h"
#include "model/pool_spec.h"

namespace larder::file_store {

using SegmentId = std::uint32_t;   // 1, 2, ...; never reused while the store lives
using IdentityId = std::uint32_t;  // 0: none

// Records start at multiples of this, counted from the start of the segment file.
inline constexpr std::uint64_t kRecordAlignment = 64;
// The last place where a record may start: what 32 bits of kRecordAlignment count, less one.
inline constexpr std::uint64_t kMaxRecordOffset = std::uint64_t{0xfffffffe} * kRecordAlignment;

struct PageIdentity {
  Digest256 namespace_digest, layout_fingerprint;
  PoolName pool = PoolName::kKv;
  friend bool operator==(const PageIdentity&, const PageIdentity&) = default;
};

struct PageLocation {
  SegmentId segment = 0;
  std::uint64_t offset = 0;  // of the envelope, bytes, a multiple of kRecordAlignment
  std::uint32_t payload_bytes = 0;
  std::uint64_t generation = 0;
};

class PageIndex {
 public:
  static constexpr std::uint64_t kMaxPages = std::uint64_t{1} << 30;
  static constexpr std::size_t kMaxIdentities = std::size_t{1} << 20;

  // 0: no page has this identity.
  [[nodiscard]] IdentityId find_identity(const PageIdentity& identity) const;
  // nullopt-like: false if absent.
  [[nodiscard]] bool find(IdentityId identity, const PageKey& key, PageLocation& out) const;
  [[nodiscard]] bool contains(IdentityId identity, const PageKey& key) const;

  // Adds the page, or replaces a page of an older generation. Ok and unchanged if the one there is newer.
  // kOverloaded: a limit; nothing changes.
  [[nodiscard]] Status insert(const PageIdentity& identity, const PageKey& key, const PageLocation& location);
  // Removes the page if it is still the one of `generation`. True if it was.
  bool erase(IdentityId identity, const PageKey& key, std::uint64_t generation);
  // Remove all pages of a segment / of a namespace; how many. The second costs O(all pages).
  std::uint64_t drop_segment(SegmentId segment);
  std::uint64_t drop_namespace(const Digest256& namespace_digest);
  void clear();

  [[nodiscard]] std::uint64_t size() const { return count_; }
  [[nodiscard]] std::uint64_t payload_bytes() const { return payload_bytes_; }
  [[nodiscard]] std::size_t identities() const { return identity_ids_.size(); }
  [[nodiscard]] std::size_t memory_bytes() const;  // table and entries

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;
  static constexpr std::size_t kChunk = 4096;  // entries allocated together

  struct Entry {
    PageKey key;
    IdentityId identity = 0;  // 0: the entry is free, and next links the free list
    SegmentId segment = 0;
    std::uint32_t offset_units = 0;  // of kRecordAlignment
    std::uint32_t payload_bytes = 0;
    std::uint64_t generation = 0;
    std::uint32_t previous = kNone, next = kNone;  // in the segment's list
  };
  static_assert(sizeof(Entry) == 64);

  struct Identity {
    PageIdentity identity;
    std::uint64_t pages = 0;  // 0: the id is free
  };
  struct IdentityHash {
    std::size_t operator()(const PageIdentity& i) const noexcept {
      return i.namespace_digest.prefix64() ^ (i.layout_fingerprint.prefix64() * 31) ^ static_cast<std::size_t>(i.pool);
    }
  };

  [[nodiscard]] Entry& entry(std::uint32_t number) { return chunks_[number / kChunk][number % kChunk]; }
  [[nodiscard]] const Entry& entry(std::uint32_t number) const { return chunks_[number / kChunk][number % kChunk]; }
  [[nodiscard]] std::size_t home(IdentityId identity, const PageKey& key) const;
  // The table position of the page, or of the free place where it belongs.
  [[nodiscard]] std::size_t probe(IdentityId identity, const PageKey& key) const;
  [[nodiscard]] Result<IdentityId> intern(const PageIdentity& identity);
  void release_identity(IdentityId id);
  [[nodiscard]] std::uint32_t take_entry();
  void grow();
  void link(std::uint32_t number);
  void unlink(std::uint32_t number);
  void place(Entry& e, const PageLocation& location);
  void erase_at(std::size_t position);

  std::vector<std::uint32_t> table_;  // kNone: empty; size a power of two
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  std::uint32_t free_entries_ = kNone;  // list through Entry::next
  std::uint32_t entries_made_ = 0;
  std::uint64_t count_ = 0, payload_bytes_ = 0;
  std::unordered_map<SegmentId, std::uint32_t> segment_heads_;
  std::vector<Identity> identities_;  // [id - 1]
  std::vector<IdentityId> free_identities_;
  std::unordered_map<PageIdentity, IdentityId, IdentityHash> identity_ids_;
};

}  // namespace larder::file_store
