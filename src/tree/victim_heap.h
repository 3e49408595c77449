// What may be evicted now, in the order in which it goes: leaves of one tier by policy, or the nodes with swa or mamba
// data in one tier by recency. What is locked or covered is in no heap, so the next victim is always the top. Internal.
//
// A 4-ary min-heap with positions kept in the nodes (Node::heap_at[place]), so that a node that is used, locked or
// emptied is updated or removed in O(log nodes); what was used last stands near the end, where that is O(1) as a rule.
// Keys are stored in the heap: sifting reads no node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tree/node.h"

namespace larder::tree {

// Smaller ones first.
struct PolicyKey {
  std::uint64_t major = 0, minor = 0;
  friend auto operator<=>(const PolicyKey&, const PolicyKey&) = default;
};
// Of a leaf.
[[nodiscard]] PolicyKey policy_key(const Node& node, EvictionPolicy policy, std::uint32_t slru_protected_hits);
// Of swa or mamba data. What one request used is told apart by depth: the end of its path is worth more to its next
// turn.
[[nodiscard]] inline PolicyKey recency_key(const Node& node, ComponentKind c, Tier t) {
  return {node.aux_tick[aux_of(c)][index_of(t)], node.end()};
}

class VictimHeap {
 public:
  // place: of Node::heap_at. Two heaps may have one, if no node is ever in both.
  VictimHeap(NodePool& nodes, std::size_t place) : nodes_(nodes), place_(place) {}

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] Id top() const { return entries_.empty() ? kNoNode : entries_.front().id; }
  [[nodiscard]] const PolicyKey& top_key() const { return entries_.front().key; }  // precondition: not empty
  void push(Id id, const PolicyKey& key);
  void remove(Id id);                        // precondition: it is in this heap
  void update(Id id, const PolicyKey& key);  // precondition: it is in this heap
  [[nodiscard]] bool holds(Id id) const;     // O(1); for checks
  [[nodiscard]] const PolicyKey& key_of(Id id) const {
    return entries_[nodes_.at(id).heap_at[place_]].key;
  }  // the same
  // Heap order and positions hold.
  [[nodiscard]] bool is_sound() const;

 private:
  struct Entry {
    PolicyKey key;
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
