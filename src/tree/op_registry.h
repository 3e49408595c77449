// SPDX-License-Identifier: Apache-2.0
// Which operations cover which nodes. Internal.
//
// A link joins one op and one node, and is in both their lists: an op finds its nodes when it ends, a node finds its
// ops when it splits. `owned` says which data of the node the op attached and must publish or detach; 0 is a pure
// cover. Cost: O(links of the node) to link (a node is under a handful of ops at a time), O(1) per link to end an op.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tree/node.h"

namespace larder::tree {

class OpRegistry {
 public:
  struct Link {
    OpId op;
    Id node = kNoNode;
    Bits owned = 0;
    std::uint32_t next_of_node = kNoLink, next_of_op = kNoLink;
  };

  explicit OpRegistry(NodePool& nodes) : nodes_(nodes), links_(1) {}

  // Puts `node` under `op` (once), owning also `bits`.
  void link(OpId op, Id node, Bits bits);
  // The head of a split comes under every op of the tail; mamba stays with the tail.
  void split(Id head, Id tail);
  // Removes the op and returns its links; the nodes are no longer under it. Unknown op: empty.
  [[nodiscard]] std::vector<Link> take(OpId op);
  [[nodiscard]] std::size_t link_count() const { return live_; }
  // Calls visit(const Link&) for the links of a node.
  template <class Visit>
  void for_each_of(Id node, Visit visit) const {
    for (std::uint32_t i = nodes_.at(node).first_link; i != kNoLink; i = links_[i].next_of_node) visit(links_[i]);
  }

 private:
  void unlink_from_node(std::uint32_t index);

  NodePool& nodes_;
  std::vector<Link> links_;  // [0] is "no link"
  std::uint32_t free_ = kNoLink;
  std::size_t live_ = 0;
  std::unordered_map<OpId, std::uint32_t> first_of_op_;
};

}  // namespace larder::tree
