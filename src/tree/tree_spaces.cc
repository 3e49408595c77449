// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_spaces.h"

#include "tree/tree_impl.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

NamespaceId TreeSpaces::open(const std::optional<PageKey>& seed, TenantId tenant, PathHash path) {
  TreeState& tree = rooms_.state;
  const auto next =
      tree.closed_spaces.empty() ? static_cast<std::uint32_t>(tree.spaces.size()) : tree.closed_spaces.back();
  if (seed) {
    const auto [known, is_new] = tree.space_of_seed.try_emplace(*seed, next);
    if (!is_new) return NamespaceId(known->second);
  } else if (tree.unseeded_space) {
    return NamespaceId(*tree.unseeded_space);
  } else {
    tree.unseeded_space = next;
  }
  if (tree.closed_spaces.empty()) {
    tree.spaces.emplace_back();
  } else {
    tree.closed_spaces.pop_back();
  }
  tree.spaces[next] = {seed, rooms_.structure.make_root(next), 0, tenant};
  tree.node(tree.spaces[next].root).path_hash = path;
  return NamespaceId(next);
}

Status TreeSpaces::close(NamespaceId space) {
  TreeState& tree = rooms_.state;
  const Id root = tree.root_of(space);
  if (root == kNoNode) return not_found("the tree has no such namespace");
  const Node& node = tree.node(root);
  if (node.first_child != kNoNode || node.is_covered()) return conflict("the namespace is in use");
  Space& closed = tree.spaces[space.v];
  if (closed.seed) {
    tree.space_of_seed.erase(*closed.seed);
  } else {
    tree.unseeded_space.reset();
  }
  tree.nodes.release(root);
  closed = Space{};
  tree.closed_spaces.push_back(static_cast<std::uint32_t>(space.v));
  return Status::ok();
}

bool TreeSpaces::is_claimed(NamespaceId space) const {
  return rooms_.state.root_of(space) != kNoNode && rooms_.state.spaces[space.v].claims != 0;
}

std::uint64_t TreeSpaces::flush(NamespaceId space) { return rooms_.eviction.flush(rooms_.state.root_of(space)); }
NodeId TreeSpaces::root(NamespaceId space) const { return NodeId(rooms_.state.root_of(space)); }
TenantId TreeSpaces::tenant_of(NamespaceId space) const {
  return space.v < rooms_.state.spaces.size() ? rooms_.state.spaces[space.v].tenant : TenantId{};
}

}  // namespace larder
