// SPDX-License-Identifier: Apache-2.0
// From keys to nodes: the open-addressing table. From identities and namespaces to small numbers.
#include <algorithm>
#include <bit>
#include <cassert>

#include "storage/file/page_index.h"

namespace larder::file_store {

// --- the table ---

// Keys are digests, but the namespace must take part, and tests use keys that are not random.
std::uint64_t PageIndex::hash_of(std::uint32_t namespace_id, const PageKey& key) {
  std::uint64_t x = key.prefix64() + namespace_id * 0x94d049bb133111ebull;
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 32);
}

// The place in the table is the low end of the hash, so the hash bits in the slot are of its high end. Never kNone:
// node numbers are below 3/4 of the table's size, so at least one of the number's bits is zero.
std::uint32_t PageIndex::slot_value(std::uint64_t hash, std::uint32_t number) const {
  return (static_cast<std::uint32_t>(hash >> 32) & ~(kNone >> tag_bits_)) | number;
}

std::size_t PageIndex::next_candidate(std::uint64_t hash, std::size_t slot) const {
  const std::uint32_t tag_mask = ~(kNone >> tag_bits_);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  while (table_[slot] != kNone && ((table_[slot] ^ tag) & tag_mask) != 0) slot = (slot + 1) & (table_.size() - 1);
  return slot;
}

std::size_t PageIndex::probe_from(std::size_t slot, std::uint64_t hash, std::uint32_t namespace_id,
                                  const PageKey& key) const {
  for (;; slot = (slot + 1) & (table_.size() - 1)) {
    slot = next_candidate(hash, slot);
    if (table_[slot] == kNone) return slot;
    const Node& node = nodes_[number_at(slot)];
    if (node.namespace_id == namespace_id && node.key == key) return slot;
  }
}

std::uint32_t PageIndex::find_node(std::uint32_t namespace_id, const PageKey& key) const {
  if (table_.empty()) return kNone;
  const std::uint64_t hash = hash_of(namespace_id, key);
  const std::size_t slot = probe_from(hash & (table_.size() - 1), hash, namespace_id, key);
  return table_[slot] == kNone ? kNone : number_at(slot);
}

void PageIndex::prefetch(const PageIdentity& identity, const PageKey& key) const {
  const IdentityId id = find_identity(identity);
  if (id == 0 || table_.empty()) return;
  __builtin_prefetch(&table_[hash_of(identities_[id - 1].namespace_id, key) & (table_.size() - 1)]);
}

std::uint32_t PageIndex::find_or_make_node(std::uint32_t namespace_id, const PageKey& key) {
  if ((node_count_ + 1) * 4 > table_.size() * 3) resize_table(table_.empty() ? kMinTable : table_.size() * 2);
  const std::uint64_t hash = hash_of(namespace_id, key);
  const std::size_t slot = probe_from(hash & (table_.size() - 1), hash, namespace_id, key);
  if (table_[slot] != kNone) return number_at(slot);
  const std::uint32_t number = nodes_.take();
  table_[slot] = slot_value(hash, number);
  ++node_count_;
  Node& node = nodes_[number];  // in_heap stays: the entry of an earlier node is void for this one until it is a leaf
  node.key = key;
  node.namespace_id = namespace_id;
  node.parent = kNone;
  node.children = 0;
  node.first_page = kNone;
  node.present = 0;
  node.last_use = 0;
  return number;
}

void PageIndex::free_node(std::uint32_t number) {
  Node& node = nodes_[number];
  assert(node.first_page == kNone && node.children == 0 && node.parent == kNone);
  const std::size_t mask = table_.size() - 1;
  const std::uint64_t hash = hash_of(node.namespace_id, node.key);
  std::size_t hole = probe_from(hash & mask, hash, node.namespace_id, node.key);
  // Close the gap: move back each follower whose home is not behind the hole.
  for (std::size_t at = (hole + 1) & mask; table_[at] != kNone; at = (at + 1) & mask) {
    const Node& follower = nodes_[number_at(at)];
    const std::size_t from_home = (at - hash_of(follower.namespace_id, follower.key)) & mask;
    if (from_home < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNone;
  node.namespace_id = 0;
  nodes_.give(number);
  --node_count_;
}

void PageIndex::resize_table(std::size_t slots) {
  table_.assign(slots, kNone);
  table_.shrink_to_fit();
  tag_bits_ = 32 - static_cast<std::uint32_t>(std::countr_zero(slots));
  // In the order of the nodes, so that they are read one after the other and only the table is hit at random.
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const Node& node = nodes_[number];
    if (node.namespace_id == 0) continue;
    const std::uint64_t hash = hash_of(node.namespace_id, node.key);
    std::size_t slot = hash & (slots - 1);
    while (table_[slot] != kNone) slot = (slot + 1) & (slots - 1);
    table_[slot] = slot_value(hash, number);
  }
}

// --- identities ---

IdentityId PageIndex::find_identity(const PageIdentity& identity) const {
  const auto at = identity_ids_.find(identity);
  return at == identity_ids_.end() ? 0 : at->second;
}

// The caller adds a page to it.
IdentityId PageIndex::make_identity(const PageIdentity& identity) {
  IdentityId id = 0;
  if (free_identities_.empty()) {
    identities_.emplace_back();
    id = static_cast<IdentityId>(identities_.size());
  } else {
    id = free_identities_.back();
    free_identities_.pop_back();
  }
  const std::uint32_t namespace_id = find_or_make_namespace(identity.namespace_digest);
  Namespace& in = namespaces_[namespace_id - 1];
  const std::uint32_t bit = std::min(static_cast<std::uint32_t>(std::countr_one(in.bits)), kSharedBit);
  if (bit != kSharedBit) in.bits |= 1u << bit;
  ++in.identities;
  identities_[id - 1] = {identity, 0, namespace_id, bit};
  identity_ids_.emplace(identity, id);
  return id;
}

// The caller adds an identity to it.
std::uint32_t PageIndex::find_or_make_namespace(const Digest256& digest) {
  if (const auto known = namespace_ids_.find(digest); known != namespace_ids_.end()) return known->second;
  std::uint32_t id = 0;
  if (free_namespaces_.empty()) {
    namespaces_.emplace_back();
    id = static_cast<std::uint32_t>(namespaces_.size());
  } else {
    id = free_namespaces_.back();
    free_namespaces_.pop_back();
  }
  namespaces_[id - 1] = {digest, 0, 0};
  namespace_ids_.emplace(digest, id);
  return id;
}

// A page of it went; without pages the identity goes, without identities the namespace. (Its last nodes go with its
// last page, so no node is left behind under a free namespace.)
void PageIndex::release_identity(IdentityId id) {
  Identity& identity = identities_[id - 1];
  if (--identity.pages > 0) return;
  identity_ids_.erase(identity.identity);
  free_identities_.push_back(id);
  Namespace& in = namespaces_[identity.namespace_id - 1];
  if (identity.bit != kSharedBit) in.bits &= ~(1u << identity.bit);
  if (--in.identities > 0) return;
  namespace_ids_.erase(in.digest);
  free_namespaces_.push_back(identity.namespace_id);
}

}  // namespace larder::file_store
