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
  refresh_unstored(id);
}

bool RadixTree::Impl::is_unstored(const Node& n, std::uint32_t epoch) {
  return n.has(kFullHost) && n.stored_epoch != epoch;
}

Backlog RadixTree::Impl::backlog_of(const Node& n) const {
  if (!is_unstored(n, unstored_epoch) || n.is_storing) return Backlog::kOut;
  return n.rests ? Backlog::kResting : Backlog::kWaiting;
}

void RadixTree::Impl::refresh_unstored(Id id) {
  Node& n = node(id);
  if (!is_unstored(n, unstored_epoch)) n.rests = false;  // what comes to the host anew waits like all the others
  const Backlog belongs = backlog_of(n);
  if (belongs == n.backlog) return;
  if (n.backlog != Backlog::kOut) backlog(n.backlog).remove(id);
  if (belongs != Backlog::kOut) place_unstored(backlog(belongs), belongs, id);
}

// What stands right after its nearest ancestor of the list is after all the others, too, and before its descendants:
// they are that ancestor's.
void RadixTree::Impl::place_unstored(UnstoredList& list, Backlog own, Id id) {
  if (node(id).first_child == kNoNode) {
    list.push_back(id);
    return;
  }
  Id above = node(id).parent;
  while (above != kNoNode && node(above).backlog != own) above = node(above).parent;
  above == kNoNode ? list.push_front(id) : list.insert_after(id, above);
}

void RadixTree::Impl::track_unstored(std::uint32_t epoch) {
  if (epoch == unstored_epoch) return;
  for (UnstoredList* list : {&missing_in_storage, &resting}) {
    while (list->size() > 0) list->remove(list->first());
  }
  unstored_epoch = epoch;
  for (const Space& space : spaces) {
    for (Id id = space.root; id != kNoNode; id = next_in_space(id)) {
      node(id).rests = false;
      if (backlog_of(node(id)) == Backlog::kWaiting) missing_in_storage.push_back(id);
    }
  }
}

void RadixTree::Impl::begin_storing(Id id) {
  node(id).is_storing = true;
  refresh_unstored(id);
}

void RadixTree::Impl::end_storing(Id id, bool rests) {
  Node& n = node(id);
  n.is_storing = false;
  n.rests = rests && is_unstored(n, unstored_epoch);
  refresh_unstored(id);
}

void RadixTree::Impl::wake_resting() {
  while (resting.size() > 0) {
    const Id id = resting.first();
    node(id).rests = false;
    refresh_unstored(id);
  }
}

std::vector<NodeId> RadixTree::Impl::unstored(std::uint32_t epoch, std::size_t limit, Id after) const {
  std::vector<NodeId> found;
  if (epoch == unstored_epoch) {
    const bool is_inside = after != kNoNode && node(after).backlog == Backlog::kWaiting;
    Id id = is_inside ? missing_in_storage.after(after) : missing_in_storage.first();
    for (; id != kNoNode && found.size() < limit; id = missing_in_storage.after(id)) found.emplace_back(id);
    return found;
  }
  for (const Space& space : spaces) {
    for (Id id = space.root; id != kNoNode && found.size() < limit; id = next_in_space(id)) {
      if (is_unstored(node(id), epoch)) found.emplace_back(id);
    }
  }
  return found;
}

}  // namespace larder
