// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/defect.h"
#include "tree/tree_impl.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

std::span<const PageKey> RadixTree::Impl::page_keys(Id id) {
  if (!nodes.exists(id) || node(id).is_root()) return {};
  path.clear();
  for (Id at = id; !node(at).is_root() && !node(at).keys; at = node(at).parent) path.push_back(at);
  for (auto at = path.rbegin(); at != path.rend(); ++at) hash_edge(*at);
  return {node(id).keys.data(), node(id).pages};
}

std::uint64_t RadixTree::Impl::hash_keys(Id id, std::uint64_t most) {
  if (!nodes.exists(id)) return 0;
  path.clear();
  for (Id at = id; !node(at).is_root() && !node(at).keys; at = node(at).parent) path.push_back(at);
  std::uint64_t hashed = 0;
  const std::vector<Id> edges(path.rbegin(), path.rend());  // a split uses `path`, perhaps
  for (const Id at : edges) {
    if (hashed == most) break;
    const bool is_whole = node(at).pages <= most - hashed;
    const Id head = is_whole ? at : settle({NodeId(at), node(at).begin + (most - hashed)});
    hashed += node(head).pages;
    hash_edge(head);
    if (!is_whole) break;
  }
  return hashed;
}

// What the caller says is believed: it has hashed the same tokens.
void RadixTree::Impl::keep_keys(Id id, std::span<const PageKey> keys) {
  Node& n = node(id);
  n.keys = Run<PageKey>::copy_of(keys);
  n.keys.add_used(n.pages);
}

std::optional<PageKey> RadixTree::Impl::last_key(Id id) {
  if (!nodes.exists(id)) return std::nullopt;
  if (node(id).is_root()) return spaces[node(id).space].seed;
  return page_keys(id).back();
}

// The parent's keys are there.
void RadixTree::Impl::hash_edge(Id id) {
  Node& n = node(id);
  const Node& parent = node(n.parent);
  std::optional<PageKey> prior =
      parent.is_root() ? spaces[n.space].seed : std::optional(parent.keys.data()[parent.pages - 1]);
  if (defect(Defect::kChainRestarted) && !parent.is_root()) prior = std::nullopt;
  Run<PageKey> keys = Run<PageKey>::with_room_for(n.pages);
  for (std::uint32_t i = 0; i < n.pages; ++i) {
    prior = page_key({n.tokens.data() + static_cast<std::size_t>(i) * page_size, page_size}, prior);
    new (keys.mutable_data() + i) PageKey(*prior);
  }
  keys.add_used(n.pages);
  n.keys = std::move(keys);
}

PathHash RadixTree::Impl::hash_at_end(Id id) {
  unhashed.clear();
  for (Id at = id; !node(at).path_hash; at = node(at).parent) unhashed.push_back(at);  // that of a root is there
  for (auto at = unhashed.rbegin(); at != unhashed.rend(); ++at) {
    Node& n = node(*at);
    PathHash hash = *node(n.parent).path_hash;
    hash.append({n.tokens.data(), std::size_t{n.pages} * page_size});
    n.path_hash = hash;
  }
  return *node(id).path_hash;
}

// A leaf that leaves in pieces is split, and its head lacks its hash each time: that follows from the tail's.
PathHash RadixTree::Impl::hash_at_begin(Id id) {
  const Node& n = node(id);
  std::optional<PathHash>& before = node(n.parent).path_hash;
  if (!before && n.path_hash) {
    PathHash hash = *n.path_hash;
    hash.remove({n.tokens.data(), std::size_t{n.pages} * page_size});
    before = hash;
  }
  return hash_at_end(n.parent);
}

PathHash RadixTree::Impl::hash_at(const TreePosition& at) {
  Id id = at.node.v;
  while (!node(id).is_root() && at.pages <= node(id).begin) id = node(id).parent;
  const Node& n = node(id);
  if (at.pages >= n.end()) return hash_at_end(id);
  PathHash hash = hash_at_begin(id);
  hash.append({n.tokens.data(), std::size_t{at.pages - n.begin} * page_size});
  return hash;
}

}  // namespace larder
