// SPDX-License-Identifier: Apache-2.0
#include "storage/file/node_table.h"

#include <bit>
#include <cassert>

#include "storage/file/index_check.h"

namespace larder::file_store {

// The place in the table is the low end of the hash, so the hash bits in the slot are of its high end. Never kNoNumber:
// node numbers are below 3/4 of the table's size, so at least one of the number's bits is zero.
std::uint32_t NodeTable::slot_value(std::uint64_t hash, std::uint32_t number) const {
  return (static_cast<std::uint32_t>(hash >> 32) & ~(kNoNumber >> tag_bits_)) | number;
}

std::size_t NodeTable::next_candidate(std::uint64_t hash, std::size_t slot) const {
  const std::uint32_t tag_mask = ~(kNoNumber >> tag_bits_);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  while (table_[slot] != kNoNumber && ((table_[slot] ^ tag) & tag_mask) != 0) slot = (slot + 1) & (table_.size() - 1);
  return slot;
}

std::size_t NodeTable::probe_from(std::size_t slot, std::uint64_t hash, std::uint32_t namespace_id,
                                  const PageKey& key) const {
  for (;; slot = (slot + 1) & (table_.size() - 1)) {
    slot = next_candidate(hash, slot);
    if (table_[slot] == kNoNumber) return slot;
    const IndexNode& node = nodes_[number_at(slot)];
    if (node.namespace_id == namespace_id && node.key == key) return slot;
  }
}

std::uint32_t NodeTable::find(std::uint32_t namespace_id, const PageKey& key) const {
  if (table_.empty()) return kNoNumber;
  const std::uint64_t hash = hash_of(namespace_id, key);
  const std::size_t slot = probe_from(hash & (table_.size() - 1), hash, namespace_id, key);
  return table_[slot] == kNoNumber ? kNoNumber : number_at(slot);
}

std::uint32_t NodeTable::find_or_make(std::uint32_t namespace_id, const PageKey& key) {
  if ((count_ + 1) * 4 > table_.size() * 3) resize(table_.empty() ? kMinTable : table_.size() * 2);
  const std::uint64_t hash = hash_of(namespace_id, key);
  const std::size_t slot = probe_from(hash & (table_.size() - 1), hash, namespace_id, key);
  if (table_[slot] != kNoNumber) return number_at(slot);
  const std::uint32_t number = nodes_.take();
  table_[slot] = slot_value(hash, number);
  ++count_;
  IndexNode& node =
      nodes_[number];  // in_heap stays: the entry of an earlier node is void for this one until it is a leaf
  node.key = key;
  node.namespace_id = namespace_id;
  node.parent = kNoNumber;
  node.children = 0;
  node.first_page = kNoNumber;
  node.present = 0;
  node.last_use = 0;
  return number;
}

void NodeTable::free(std::uint32_t number) {
  IndexNode& node = nodes_[number];
  assert(node.first_page == kNoNumber && node.children == 0 && node.parent == kNoNumber);
  const std::size_t mask = table_.size() - 1;
  const std::uint64_t hash = hash_of(node.namespace_id, node.key);
  std::size_t hole = probe_from(hash & mask, hash, node.namespace_id, node.key);
  // Close the gap: move back each follower whose home is not behind the hole.
  for (std::size_t at = (hole + 1) & mask; table_[at] != kNoNumber; at = (at + 1) & mask) {
    const IndexNode& follower = nodes_[number_at(at)];
    const std::size_t from_home = (at - hash_of(follower.namespace_id, follower.key)) & mask;
    if (from_home < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNoNumber;
  node.namespace_id = 0;
  nodes_.give(number);
  --count_;
}

void NodeTable::resize(std::size_t slots) {
  table_.assign(slots, kNoNumber);
  table_.shrink_to_fit();
  tag_bits_ = 32 - static_cast<std::uint32_t>(std::countr_zero(slots));
  // In the order of the nodes, so that they are read one after the other and only the table is hit at random.
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const IndexNode& node = nodes_[number];
    if (node.namespace_id == 0) continue;
    const std::uint64_t hash = hash_of(node.namespace_id, node.key);
    std::size_t slot = hash & (slots - 1);
    while (table_[slot] != kNoNumber) slot = (slot + 1) & (slots - 1);
    table_[slot] = slot_value(hash, number);
  }
}

void NodeTable::reserve(std::uint64_t nodes) {
  std::size_t slots = std::max(kMinTable, table_.size());
  while (nodes * 4 > slots * 3) slots *= 2;
  if (slots > table_.size()) resize(slots);
  nodes_.reserve(nodes);
}

Status NodeTable::check() const {
  std::uint64_t used = 0, live = 0;
  for (std::size_t slot = 0; slot < table_.size(); ++slot) {
    if (table_[slot] == kNoNumber) continue;
    ++used;
    const std::uint32_t number = number_at(slot);
    if (number >= nodes_.made() || nodes_[number].namespace_id == 0) return broken_index("slot without a node", slot);
    const IndexNode& node = nodes_[number];
    if (table_[slot] != slot_value(hash_of(node.namespace_id, node.key), number))
      return broken_index("wrong tag", slot);
    if (find(node.namespace_id, node.key) != number) return broken_index("node not found by its key", number);
  }
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) live += nodes_[number].namespace_id != 0 ? 1 : 0;
  if (used != count_ || live != count_) return broken_index("nodes and slots do not match", used);
  if (!table_.empty() && (!std::has_single_bit(table_.size()) || used * 4 > table_.size() * 3)) {
    return broken_index("table size", table_.size());
  }
  return Status::ok();
}

}  // namespace larder::file_store
