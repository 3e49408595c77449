// Nodes that storage lacks, parents before children: those that wait, or those that rest. Internal.
//
// Doubly linked through the nodes, so that who asks for some of them does not walk past those that are stored. An
// ancestor stands before all of its descendants; where a node is put is RadixTree::Impl::place_unstored()'s business.
#pragma once

#include <cstddef>

#include "tree/node.h"

namespace larder::tree {

class UnstoredList {
 public:
  UnstoredList(NodePool& nodes, Backlog own) : nodes_(nodes), own_(own) {}

  [[nodiscard]] Id first() const { return first_; }
  [[nodiscard]] Id after(Id id) const { return nodes_.at(id).unstored_after; }
  [[nodiscard]] std::size_t size() const { return size_; }

  void push_front(Id id) { insert_between(kNoNode, id, first_); }
  void push_back(Id id) { insert_between(last_, id, kNoNode); }
  void insert_before(Id id, Id after) { insert_between(nodes_.at(after).unstored_before, id, after); }
  void insert_after(Id id, Id before) { insert_between(before, id, nodes_.at(before).unstored_after); }
  void remove(Id id) {
    Node& n = nodes_.at(id);
    (n.unstored_before == kNoNode ? first_ : nodes_.at(n.unstored_before).unstored_after) = n.unstored_after;
    (n.unstored_after == kNoNode ? last_ : nodes_.at(n.unstored_after).unstored_before) = n.unstored_before;
    n.unstored_before = n.unstored_after = kNoNode;
    n.backlog = Backlog::kOut;
    --size_;
  }

 private:
  void insert_between(Id before, Id id, Id after) {
    Node& n = nodes_.at(id);
    n.unstored_before = before;
    n.unstored_after = after;
    n.backlog = own_;
    (before == kNoNode ? first_ : nodes_.at(before).unstored_after) = id;
    (after == kNoNode ? last_ : nodes_.at(after).unstored_before) = id;
    ++size_;
  }

  NodePool& nodes_;
  const Backlog own_;
  Id first_ = kNoNode, last_ = kNoNode;
  std::size_t size_ = 0;
};

}  // namespace larder::tree
