// SPDX-License-Identifier: Apache-2.0
#include "controller/host_presence.h"

#include <algorithm>

namespace larder {

TreePosition position_on_path(const RadixTree& tree, NodeId node, std::uint64_t pages) {
  while (pages > 0 && tree.view(node).begin >= pages) node = tree.view(node).parent;
  return {node, pages};
}

std::vector<PoolPresence> host_presence(const RadixTree& tree, const ModelSpec& model, const TreePosition& to) {
  std::array<Presence, kComponentCount> of;
  for (const ComponentKind c : kAllComponents) of[index_of(c)].resize(model.has(c) ? to.pages : 0, false);
  NodeView view = tree.view(to.node);
  for (; view.end > 0; view = tree.view(view.parent)) {
    for (const ComponentKind c : kAllComponents) {
      const std::size_t i = index_of(c);
      if (view.host[i].empty() || view.host_pending[i]) continue;
      const bool is_state = c == ComponentKind::kMamba;
      if (is_state && view.end > to.pages) continue;
      const std::uint64_t begin = is_state ? view.end - 1 : view.begin, end = std::min(view.end, to.pages);
      for (std::uint64_t page = begin; page < end; ++page) of[i][page] = true;
    }
  }
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model.pools) presence.push_back({pool.name, of[index_of(pool.component)]});
  return presence;
}

const Presence* presence_of(const ModelSpec& model, const std::vector<PoolPresence>& presence, ComponentKind c) {
  if (!model.has(c)) return nullptr;
  const PoolName anchor = model.anchor(c).name;
  const auto it = std::find_if(presence.begin(), presence.end(), [&](const auto& p) { return p.pool == anchor; });
  return it == presence.end() ? nullptr : &it->present;
}

}  // namespace larder
