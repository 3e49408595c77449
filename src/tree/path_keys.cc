// SPDX-License-Identifier: Apache-2.0
#include "tree/path_keys.h"

#include <new>
#include <utility>

#include "base/defect.h"

namespace larder::tree {

std::span<const PageKey> PathKeys::page_keys(Id id) {
  if (!state_.nodes.exists(id) || node(id).is_root()) return {};
  state_.path.clear();
  for (Id at = id; !node(at).is_root() && !node(at).keys; at = node(at).parent) state_.path.push_back(at);
  for (auto at = state_.path.rbegin(); at != state_.path.rend(); ++at) hash_edge(*at);
  return {node(id).keys.data(), node(id).pages};
}

void PathKeys::keep_keys(Id id, std::span<const PageKey> keys) {
  Node& n = node(id);
  n.keys = Run<PageKey>::copy_of(keys);
  n.keys.add_used(n.pages);
}

std::optional<PageKey> PathKeys::last_key(Id id) {
  if (!state_.nodes.exists(id)) return std::nullopt;
  if (node(id).is_root()) return state_.spaces[node(id).space].seed;
  return page_keys(id).back();
}

void PathKeys::hash_edge(Id id) {
  Node& n = node(id);
  const Node& parent = node(n.parent);
  std::optional<PageKey> prior =
      parent.is_root() ? state_.spaces[n.space].seed : std::optional(parent.keys.data()[parent.pages - 1]);
  if (defect(Defect::kChainRestarted) && !parent.is_root()) prior = std::nullopt;
  Run<PageKey> keys = Run<PageKey>::with_room_for(n.pages);
  for (std::uint32_t i = 0; i < n.pages; ++i) {
    prior = page_key({n.tokens.data() + static_cast<std::size_t>(i) * state_.page_size, state_.page_size}, prior);
    new (keys.mutable_data() + i) PageKey(*prior);
  }
  keys.add_used(n.pages);
  n.keys = std::move(keys);
}

PathHash PathKeys::hash_at_end(Id id) {
  unhashed_.clear();
  for (Id at = id; !node(at).path_hash; at = node(at).parent) unhashed_.push_back(at);  // that of a root is there
  for (auto at = unhashed_.rbegin(); at != unhashed_.rend(); ++at) {
    Node& n = node(*at);
    PathHash hash = *node(n.parent).path_hash;
    hash.append({n.tokens.data(), std::size_t{n.pages} * state_.page_size});
    n.path_hash = hash;
  }
  return *node(id).path_hash;
}

// A leaf that leaves in pieces is split, and its head lacks its hash each time: that follows from the tail's.
PathHash PathKeys::hash_at_begin(Id id) {
  const Node& n = node(id);
  std::optional<PathHash>& before = node(n.parent).path_hash;
  if (!before && n.path_hash) {
    PathHash hash = *n.path_hash;
    hash.remove({n.tokens.data(), std::size_t{n.pages} * state_.page_size});
    before = hash;
  }
  return hash_at_end(n.parent);
}

PathHash PathKeys::hash_at(const TreePosition& at) {
  Id id = at.node.v;
  while (!node(id).is_root() && at.pages <= node(id).begin) id = node(id).parent;
  const Node& n = node(id);
  if (at.pages >= n.end()) return hash_at_end(id);
  PathHash hash = hash_at_begin(id);
  hash.append({n.tokens.data(), std::size_t{at.pages - n.begin} * state_.page_size});
  return hash;
}

}  // namespace larder::tree
