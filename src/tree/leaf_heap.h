// Evictable leaves of one tier, by policy. Internal.
//
// A 4-ary min-heap with positions kept in the nodes (Node::heap_at[tier]), so that a leaf that is used, locked or no
// leaf any more is updated or removed in O(log leaves). Keys are stored in the heap: sifting reads no node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tree/node.h"

namespace larder::tree {

// Smaller leaves first.
struct PolicyKey {
  std::uint64_t major = 0, minor = 0;
  friend auto operator<=>(const PolicyKey&, const PolicyKey&) = default;
};
[[nodiscard]] PolicyKey policy_key(const Node& node, EvictionPolicy policy, std::uint32_t slru_protected_hits);

class LeafHeap {
 public:
  LeafHeap(NodePool& nodes, Tier tier) : nodes_(nodes), tier_(index_of(tier)) {}

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] Id top() const { return entries_.empty() ? kNoNode : entries_.front().id; }
  [[nodiscard]] const PolicyKey& top_key() const { return entries_.front().key; }  // precondition: not empty
  void push(Id id, const PolicyKey& key);
  void remove(Id id);                        // precondition: it is in this heap
  void update(Id id, const PolicyKey& key);  // precondition: it is in this heap
  [[nodiscard]] bool holds(Id id) const;     // O(1); for checks
  // Heap order and positions hold.
  [[nodiscard]] bool is_sound() const;

 private:
  struct Entry {
    PolicyKey key;
    Id id;
  };
  static constexpr std::size_t kArity = 4;
  void place(std::size_t at, const Entry& entry);
  void sift_up(std::size_t at, Entry entry);
  void sift_down(std::size_t at, Entry entry);

  NodePool& nodes_;
  std::size_t tier_;
  std::vector<Entry> entries_;
};

}  // namespace larder::tree
