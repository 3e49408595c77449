// SPDX-License-Identifier: Apache-2.0
// What may be evicted now, in the order in which it goes by policy (policy/eviction_order.h): leaves of one tier, or
// the nodes with swa or mamba data in one tier. What is locked or covered is in no heap, so the next victim is always
// the top. Internal.
//
// A 4-ary min-heap with positions kept in the nodes (Node::heap_at[place]), so that a node that is used, locked or
// emptied is updated or removed in O(log nodes); what was used last stands near the end, where that is O(1) as a rule.
// Keys are stored in the heap: sifting reads no node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/eviction_order.h"
#include "tree/node.h"

namespace larder::tree {

class VictimHeap {
 public:
  // place: of Node::heap_at. Two heaps may have one, if no node is ever in both.
  VictimHeap(NodePool& nodes, std::size_t place) : nodes_(nodes), place_(place) {}

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] Id top() const { return entries_.empty() ? kNoNode : entries_.front().id; }
  [[nodiscard]] const OrderKey& top_key() const { return entries_.front().key; }  // precondition: not empty
  void push(Id id, const OrderKey& key);
  void remove(Id id);                       // precondition: it is in this heap
  void update(Id id, const OrderKey& key);  // precondition: it is in this heap
  [[nodiscard]] bool holds(Id id) const;    // O(1); for checks
  [[nodiscard]] const OrderKey& key_of(Id id) const { return entries_[nodes_.at(id).heap_at[place_]].key; }  // the same
  // Heap order and positions hold.
  [[nodiscard]] bool is_sound() const;

 private:
  struct Entry {
    OrderKey key;
    Id id;
  };
  static constexpr std::size_t kArity = 4;
  void put(std::size_t at, const Entry& entry);
  void sift_up(std::size_t at, Entry entry);
  void sift_down(std::size_t at, Entry entry);

  NodePool& nodes_;
  std::size_t place_;
  std::vector<Entry> entries_;
};

}  // namespace larder::tree
