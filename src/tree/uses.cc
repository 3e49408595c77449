// SPDX-License-Identifier: Apache-2.0
#include "tree/uses.h"

#include <algorithm>

namespace larder::tree {

void Uses::touch(const TreePosition& at, bool count_hit) {
  const Id id = structure_.settle(at);  // so that the rest of the edge, which was not used, stays as old as it is
  if (id == kNoNode || node(id).is_root()) return;
  ++state_.tick;
  if (count_hit) count_use(id);
  touch_window(id, true);
  touch_state(id);
  touch_path(id, count_hit ? 1 : 0);
}

void Uses::count_use(Id id) {
  Node& n = node(id);
  if (!state_.weighs || (n.present & kMambaBits) == 0) return;
  const float uses = state_.uses_now(n);
  state_.stats.used(n.kind, uses, state_.since_use(n));
  n.uses = uses + 1;
  n.uses_at = static_cast<std::uint32_t>(state_.tick / kTicksOfUse);
}

void Uses::note_prompt(NamespaceId space, std::span<const TokenId> tokens) {
  if (!state_.chooses) return;
  const auto& full = state_.counts[index_of(ComponentKind::kFull)];
  const std::uint64_t device = full[0].resident, host = full[1].resident;
  state_.most_pages = std::max(state_.most_pages, state_.config.is_exclusive ? device + host : std::max(device, host));
  if (state_.has_evicted) state_.duel.use(space, tokens, state_.page_size, state_.most_pages * state_.page_size);
}

bool Uses::ends_turn_at(const TreePosition& at) const {
  const Node& n = node(at.node.v);
  return (n.present & kMambaBits) != 0 && n.end() == at.pages && ends_turn(n.kind);
}

bool Uses::recall(const TreePosition& at, std::span<const TokenId> rest, std::span<const std::uint64_t> pages,
                  std::span<CheckpointOrigin* const> origins) {
  if (!state_.weighs || !state_.nodes.exists(at.node.v)) return false;
  bool is_later = ends_turn_at(at);
  if (pages.empty()) return is_later;
  CheckpointStats& stats = state_.stats;
  PathHash end = keys_.hash_at(at);
  std::optional<PathHash> on_the_way, taken_again;  // the last ones that are remembered
  std::uint64_t page = at.pages;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    for (; page < pages[i]; ++page) {
      end.append(rest.subspan((page - at.pages) * state_.page_size, state_.page_size));
      if (!stats.remembers(end)) continue;
      if (page + 1 < pages[i]) {
        on_the_way = end;
      } else {
        taken_again = end;
        on_the_way.reset();
      }
    }
    origins[i]->path = end;
  }
  for (const auto& evicted : {on_the_way, taken_again}) {
    is_later = is_later || (evicted && ends_turn(*stats.kind_of(*evicted)));
  }
  // The next turn of a conversation does not end where the one before did.
  if (on_the_way) stats.missed(*on_the_way, state_.tick);
  if (taken_again) stats.wanted(*taken_again, state_.tick);
  for (CheckpointOrigin* const origin : origins) origin->uses = state_.stats.uses_of(*origin->path, state_.tick);
  return is_later;
}

void Uses::touch_state(Id id) {
  for (const Tier t : kAllTiers) {
    if (!node(id).has(bit_of(ComponentKind::kMamba, t))) continue;
    victims_.set_aux_tick(id, ComponentKind::kMamba, t);
  }
  node(id).left_host = clear_bits(node(id).left_host, kMambaHost);
}

// Refreshes swa of the window that ends at `id`; `exactly`: of no page before it, for which an edge may be split. Pages
// nearer to the end become newer: the next turn of the same conversation needs them, the farther ones only a return to
// this very point.
void Uses::touch_window(Id id, bool exactly) {
  if (state_.window_pages == 0) return;
  const std::uint64_t from = state_.window_begin(node(id).end());
  for (Id at = id; !node(at).is_root() && node(at).end() > from; at = node(at).parent) {
    if (!node(at).has_some(kSwaDevice | kSwaHost)) continue;
    if (exactly && node(at).begin < from) structure_.split(at, from);
    node(at).left_host = clear_bits(node(at).left_host, kSwaHost);
    for (const Tier t : kAllTiers) {
      if (node(at).has(bit_of(ComponentKind::kSwa, t))) victims_.set_aux_tick(at, ComponentKind::kSwa, t);
    }
  }
}

void Uses::touch_path(Id id, std::uint32_t hits) {
  for (; !node(id).is_root(); id = node(id).parent) {
    Node& n = node(id);
    n.full_tick = state_.tick;
    n.hits += hits;
    n.is_fresh = state_.is_fresh();
    n.left_host = clear_bits(n.left_host, kFullHost);
    victims_.set_leaves_device(id, false);
    victims_.refresh_leaf_key(id);
  }
}

// A merge keeps the lower node, so the walk goes on from it.
void Uses::touch_own_path(Id id, std::int32_t priority) {
  for (Id above = id; !node(above).is_root(); above = node(id).parent) {
    Node& n = node(above);
    n.full_tick = state_.tick;
    n.is_fresh = state_.is_fresh();
    n.priority = std::max(n.priority, priority);
    n.left_host = clear_bits(n.left_host, kFullHost);
    victims_.set_leaves_device(above, false);
    victims_.refresh_leaf_key(above);
    if (above == id || !structure_.merge_into_only_child(above)) id = above;
  }
}

}  // namespace larder::tree
