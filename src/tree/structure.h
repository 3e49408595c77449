// SPDX-License-Identifier: Apache-2.0
// The tree's shape: nodes are made, cut in two, joined and removed.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <span>

#include "tree/path_keys.h"
#include "tree/tree_state.h"
#include "tree/victims.h"

namespace larder::tree {

class Structure : private TreeRoom {
 public:
  Structure(TreeState& state, PathKeys& keys, Victims& victims) : TreeRoom(state), keys_(keys), victims_(victims) {}

  // The node that ends at the position, which may have been taken before a split; the edge is cut if it goes on.
  // kNoNode: its node is gone.
  [[nodiscard]] Id settle(const TreePosition& at);
  [[nodiscard]] Id make_root(std::uint32_t space);
  [[nodiscard]] Id add_leaf(Id parent, std::span<const TokenId> tokens);
  // Cuts the edge at `page` (inside it). Returns the new parent, which has the head; `id` keeps the tail.
  Id split(Id id, std::uint64_t page);
  // Precondition: no children, no data, no claims.
  void remove_node(Id id);
  // Makes one edge of two if nothing tells them apart: undoes splits, and joins what one request computed in pieces.
  // `id` goes, its only child keeps its id. Edges that were never one grow to kMergedTokens. False: nothing was done.
  // Cost: O(pages of the child) on average, O(pages of both) at worst; O(1) for the halves of one edge.
  bool merge_into_only_child(Id id);
  // The same, of the two halves of one edge only.
  void undo_split(Id id);
  // Keys of at most `most` pages of the path that have none, from the root; cuts an edge where that ends. How many.
  std::uint64_t hash_keys(Id id, std::uint64_t most);

 private:
  void split_residency(Id head, Id tail);
  void link_child(Id parent, Id child);
  void unlink_child(Id child);
  [[nodiscard]] bool may_merge(const Node& upper, const Node& lower) const;
  [[nodiscard]] bool are_alike(const Node& upper, const Node& lower) const;
  [[nodiscard]] bool is_told_apart(const Node& upper, const Node& lower) const;
  [[nodiscard]] static bool have_same_locks(const Node& upper, const Node& lower);
  [[nodiscard]] bool are_one_array(const Node& upper, const Node& lower) const;
  void merge_runs(Node& upper, Node& lower);

  PathKeys& keys_;
  Victims& victims_;
};

}  // namespace larder::tree
