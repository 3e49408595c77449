// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_spaces.h"

#include "tree/tree_impl.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

namespace {
void forget_seed(TreeState& tree, const Space& space) {
  if (space.seed) {
    tree.space_of_seed.erase(*space.seed);
  } else {
    tree.unseeded_space.reset();
  }
}
}  // namespace

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
  if (!closed.is_retired) forget_seed(tree, closed);
  tree.nodes.release(root);
  closed = Space{};
  tree.closed_spaces.push_back(static_cast<std::uint32_t>(space.v));
  return Status::ok();
}

void TreeSpaces::retire(NamespaceId space) {
  if (rooms_.state.root_of(space) == kNoNode || is_retired(space)) return;
  Space& retired = rooms_.state.spaces[space.v];
  forget_seed(rooms_.state, retired);
  rooms_.residency.retire(retired);
}

bool TreeSpaces::is_claimed(NamespaceId space) const {
  return rooms_.state.root_of(space) != kNoNode && rooms_.state.spaces[space.v].claims != 0;
}

std::uint64_t TreeSpaces::flush(NamespaceId space) { return rooms_.eviction.flush(rooms_.state.root_of(space)); }
NodeId TreeSpaces::root(NamespaceId space) const { return NodeId(rooms_.state.root_of(space)); }
TenantId TreeSpaces::tenant_of(NamespaceId space) const {
  return space.v < rooms_.state.spaces.size() ? rooms_.state.spaces[space.v].tenant : TenantId{};
}
bool TreeSpaces::is_retired(NamespaceId space) const {
  return space.v < rooms_.state.spaces.size() && rooms_.state.spaces[space.v].is_retired;
}

std::uint64_t TreeSpaces::retired_pages(ComponentKind c, Tier t) const {
  std::uint64_t pages = 0;
  for (const Space& space : rooms_.state.spaces) {
    if (!space.is_retired) continue;
    for (Id id = space.root; id != kNoNode; id = next_in_space(rooms_.state.nodes, id)) {
      const Node& node = rooms_.state.nodes.at(id);
      if (node.has(bit_of(c, t))) pages += node.units(c);
    }
  }
  return pages;
}

}  // namespace larder
