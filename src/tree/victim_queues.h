// SPDX-License-Identifier: Apache-2.0
// What may be evicted now, in the order in which it goes by policy (policy/eviction_order.h): leaves of one tier, or
// the nodes with swa or mamba data in one tier. What is locked or covered is in none, so the next victim is always the
// first of a queue. Internal.
//
// One queue, or up to 256 for an order that weighs. Each is a 4-ary min-heap with positions kept in the nodes
// (Node::heap_at[place], queue_at[place]), so that a node that is used, locked or emptied is updated or removed in
// O(log nodes); what was used last stands near the end, where that is O(1) as a rule. Keys are stored in the heap:
// sifting reads no node.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/eviction_order.h"
#include "tree/node.h"

namespace larder::tree {

// Of what leaves first of all, whatever its order says: no order has this queue.
inline constexpr std::uint8_t kSpareQueue = 254;

class VictimQueues {
 public:
  struct First {
    Id id = kNoNode;  // kNoNode: there is none
    OrderKey key;
    double worth = 0;
    std::uint8_t queue = 0;
    friend bool operator<(const First& a, const First& b) {
      return a.worth != b.worth ? a.worth < b.worth : a.key < b.key;
    }
  };

  // place: of Node::heap_at. Two objects may have one, if no node is ever in both.
  VictimQueues(NodePool& nodes, std::size_t place) : nodes_(nodes), place_(place) {}

  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // The first of the queue that is worth least: worth(queue, key of its first). O(queues that are not empty).
  template <class Worth>
  [[nodiscard]] First first(Worth worth) const;
  // The first of one queue after the other, with each call. kNoNode: all are empty.
  [[nodiscard]] Id next_to_check();
  void push(Id id, std::uint8_t queue, const OrderKey& key);
  void remove(Id id);                                           // precondition: it is in here
  void update(Id id, std::uint8_t queue, const OrderKey& key);  // precondition: it is in here
  [[nodiscard]] bool holds(Id id) const;                        // O(1); for checks
  [[nodiscard]] const OrderKey& key_of(Id id) const;            // precondition: it is in here
  [[nodiscard]] std::uint8_t queue_of(Id id) const { return nodes_.at(id).queue_at[place_]; }  // the same
  // Heap order and positions hold.
  [[nodiscard]] bool is_sound() const;

 private:
  struct Entry {
    OrderKey key;
    Id id;
  };
  using Heap = std::vector<Entry>;
  static constexpr std::size_t kArity = 4;
  void put(Heap& heap, std::size_t at, const Entry& entry);
  void sift_up(Heap& heap, std::size_t at, Entry entry);
  void sift_down(Heap& heap, std::size_t at, Entry entry);

  NodePool& nodes_;
  std::size_t place_;
  std::size_t size_ = 0;
  std::vector<Heap> heaps_;                // by queue
  std::size_t checked_ = 0;                // the queue of the last next_to_check()
  std::array<std::uint64_t, 4> filled_{};  // a bit for each queue that is not empty
};

template <class Worth>
VictimQueues::First VictimQueues::first(Worth worth) const {
  First best;
  for (std::size_t word = 0; word < filled_.size(); ++word) {
    for (std::uint64_t bits = filled_[word]; bits != 0; bits &= bits - 1) {
      const std::size_t queue = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
      const Entry& entry = heaps_[queue].front();
      const First next{entry.id, entry.key, worth(static_cast<std::uint8_t>(queue), entry.key),
                       static_cast<std::uint8_t>(queue)};
      if (best.id == kNoNode || next < best) best = next;
    }
  }
  return best;
}

}  // namespace larder::tree
