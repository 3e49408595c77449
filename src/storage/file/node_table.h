// SPDX-License-Identifier: Apache-2.0
// From keys to the nodes of the page index: one open-addressing table of node numbers (linear probing, load <= 3/4,
// doubled when full) in front of dense arrays of nodes (64 bytes, one cache line). A slot of the table has 32 bits;
// those that the number does not need hold a part of the hash, so that probing seldom reads a node in vain.
//
// Memory: 64 + 5.4 to 10.7 bytes per key. Cost: two cache misses to find a node; find_all() prefetches. Doubling the
// table at 1M keys costs about 30 ms. Threads: confined (the file store's mutex).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "key/page_key.h"
#include "storage/file/slab.h"

namespace larder::file_store {

// One (namespace, key). A *leaf* is a node with pages and without children.
struct alignas(64) IndexNode {
  PageKey key;
  std::uint32_t namespace_id = 0;    // 0: the node is free
  std::uint32_t parent = kNoNumber;  // free: the next free one
  std::uint32_t children = 0;
  std::uint32_t first_page = kNoNumber;  // kNoNumber: a ghost
  std::uint32_t present = 0;             // bit PageIdentities::Entry::bit of each page
  std::uint32_t in_heap = 0;             // 1: one entry of the heap names this number; also while the node is free
  std::uint64_t last_use = 0;
  [[nodiscard]] std::uint32_t& free_link() { return parent; }
  [[nodiscard]] bool is_leaf() const { return namespace_id != 0 && first_page != kNoNumber && children == 0; }
};
static_assert(sizeof(IndexNode) == 64);

class NodeTable {
 public:
  [[nodiscard]] IndexNode& operator[](std::uint32_t number) { return nodes_[number]; }
  [[nodiscard]] const IndexNode& operator[](std::uint32_t number) const { return nodes_[number]; }

  // kNoNumber: there is none.
  [[nodiscard]] std::uint32_t find(std::uint32_t namespace_id, const PageKey& key) const;
  // A new node is a ghost without children: the caller gives it one of both.
  [[nodiscard]] std::uint32_t find_or_make(std::uint32_t namespace_id, const PageKey& key);
  // Calls found(i, number or kNoNumber) for keys[i], in order.
  template <class Found>
  void find_all(std::uint32_t namespace_id, std::span<const PageKey> keys, Found found) const;
  // The key is looked up or inserted soon. Only a hint.
  void prefetch(std::uint32_t namespace_id, const PageKey& key) const {
    if (!table_.empty()) __builtin_prefetch(&table_[hash_of(namespace_id, key) & (table_.size() - 1)]);
  }
  // Precondition: no pages, no children, no parent.
  void free(std::uint32_t number);

  [[nodiscard]] std::uint32_t made() const { return nodes_.made(); }  // numbers below this exist, some of them free
  [[nodiscard]] std::size_t memory_bytes() const {
    return table_.capacity() * sizeof(std::uint32_t) + nodes_.memory_bytes();
  }
  // Room for this many nodes without growing on the way.
  void reserve(std::uint64_t nodes);
  // Slots and nodes agree. O(slots); tests.
  [[nodiscard]] Status check() const;

 private:
  static constexpr std::size_t kBatch = 64;  // keys looked up side by side
  static constexpr std::size_t kMinTable = 1024;

  // Keys are digests, but the namespace must take part, and tests use keys that are not random.
  [[nodiscard]] static std::uint64_t hash_of(std::uint32_t namespace_id, const PageKey& key) {
    std::uint64_t x = key.prefix64() + namespace_id * 0x94d049bb133111ebull;
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 32);
  }
  [[nodiscard]] std::uint32_t slot_value(std::uint64_t hash, std::uint32_t number) const;
  [[nodiscard]] std::uint32_t number_at(std::size_t slot) const { return table_[slot] & (kNoNumber >> tag_bits_); }
  // From `slot` on, the first that is empty or has the hash bits of `hash`.
  [[nodiscard]] std::size_t next_candidate(std::uint64_t hash, std::size_t slot) const;
  // From `slot` on, the slot of the node, or the empty one where it belongs.
  [[nodiscard]] std::size_t probe_from(std::size_t slot, std::uint64_t hash, std::uint32_t namespace_id,
                                       const PageKey& key) const;
  void resize(std::size_t slots);

  std::vector<std::uint32_t> table_;  // kNoNumber: empty; else hash bits above a node number; size a power of two
  std::uint32_t tag_bits_ = 0;        // of a slot that hold a part of the hash
  Slab<IndexNode> nodes_;
  std::uint64_t count_ = 0;  // not free
};

template <class Found>
void NodeTable::find_all(std::uint32_t namespace_id, std::span<const PageKey> keys, Found found) const {
  if (table_.empty()) {
    for (std::size_t i = 0; i < keys.size(); ++i) found(i, kNoNumber);
    return;
  }
  const std::size_t mask = table_.size() - 1;
  std::array<std::uint64_t, kBatch> hashes;
  std::array<std::size_t, kBatch> slots;
  for (std::size_t begin = 0; begin < keys.size(); begin += kBatch) {
    // All slots of the batch are on their way before the first is read, then all nodes.
    const std::size_t count = std::min(kBatch, keys.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(namespace_id, keys[begin + i]);
      __builtin_prefetch(&table_[hashes[i] & mask]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      slots[i] = next_candidate(hashes[i], hashes[i] & mask);
      if (table_[slots[i]] != kNoNumber) __builtin_prefetch(&nodes_[number_at(slots[i])]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t slot = probe_from(slots[i], hashes[i], namespace_id, keys[begin + i]);
      found(begin + i, table_[slot] == kNoNumber ? kNoNumber : number_at(slot));
    }
  }
}

}  // namespace larder::file_store
