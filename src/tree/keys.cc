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

void RadixTree::Impl::set_stored(Id id, std::uint32_t epoch, bool declined) {
  Node& n = node(id);
  if (n.stored_epoch != epoch || n.declined != declined) n.stored = 0;
  n.stored_epoch = epoch;
  n.declined = declined;
  n.stored = static_cast<Bits>(n.stored | (n.published() & (kFullHost | kSwaHost | kMambaHost)));
}

std::vector<NodeId> RadixTree::Impl::unstored(std::uint32_t epoch, std::size_t limit) const {
  std::vector<NodeId> found;
  for (const Space& space : spaces) {
    if (space.root == kNoNode) continue;
    Id id = node(space.root).first_child;
    while (id != kNoNode && found.size() < limit) {  // pre-order along the links, without a stack
      const Node& n = node(id);
      if (n.has(kFullHost) && n.stored_epoch != epoch) found.emplace_back(id);
      if (n.first_child != kNoNode) {
        id = n.first_child;
        continue;
      }
      while (id != kNoNode && node(id).next_sibling == kNoNode) id = node(id).parent;
      if (id != kNoNode) id = node(id).next_sibling;
    }
  }
  return found;
}

}  // namespace larder
