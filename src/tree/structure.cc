// SPDX-License-Identifier: Apache-2.0
#include "tree/structure.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "base/defect.h"

namespace larder::tree {
namespace {

// A merged edge is as long as the longest chunk that engines compute at once, so who works node by node (a copy, a
// write to storage) meets none that is longer than those.
constexpr std::uint64_t kMergedTokens = 8192;

}  // namespace

Id Structure::settle(const TreePosition& at) {
  Id id = at.node.v;
  if (!state_.nodes.exists(id)) return kNoNode;
  // The position may have been taken before a split: then it lies at or above the head that the split made.
  while (!node(id).is_root() && at.pages <= node(id).begin) id = node(id).parent;
  if (at.pages >= node(id).end()) return id;
  return split(id, at.pages);
}

Id Structure::make_root(std::uint32_t space) {
  const Id id = state_.nodes.allocate();
  node(id).space = space;
  return id;
}

void Structure::link_child(Id parent, Id child) {
  Node& p = node(parent);
  Node& c = node(child);
  c.parent = parent;
  c.prev_sibling = kNoNode;
  c.next_sibling = p.first_child;
  if (p.first_child != kNoNode) node(p.first_child).prev_sibling = child;
  p.first_child = child;
}

void Structure::unlink_child(Id child) {
  Node& c = node(child);
  if (c.prev_sibling == kNoNode) {
    node(c.parent).first_child = c.next_sibling;
  } else {
    node(c.prev_sibling).next_sibling = c.next_sibling;
  }
  if (c.next_sibling != kNoNode) node(c.next_sibling).prev_sibling = c.prev_sibling;
  c.prev_sibling = c.next_sibling = kNoNode;
}

Id Structure::add_leaf(Id parent, std::span<const TokenId> tokens) {
  const Id id = state_.nodes.allocate();
  Node& n = node(id);
  n.begin = node(parent).end();
  n.space = node(parent).space;
  n.pages = static_cast<std::uint32_t>(state_.pages_in(tokens));
  n.tokens = Run<TokenId>::copy_of(tokens);
  n.tokens.add_used(tokens.size());
  n.edge_hash = edge_hash(parent, tokens.data(), state_.page_size);
  n.created = n.full_tick = state_.tick;
  n.is_fresh = state_.is_fresh();
  link_child(parent, id);
  state_.table.insert(n.edge_hash, id);
  return id;
}

Id Structure::split(Id id, std::uint64_t page) {
  const Id head_id = state_.nodes.allocate();
  Node& n = node(id);
  Node& head = node(head_id);
  assert(page > n.begin && page < n.end());
  head.begin = n.begin;
  head.pages = static_cast<std::uint32_t>(page - n.begin);
  head.space = n.space;
  head.tokens = n.tokens.share();
  head.edge_hash = n.edge_hash;
  state_.table.replace(n.edge_hash, id, head_id);
  const Id parent = n.parent;
  unlink_child(id);
  link_child(parent, head_id);
  link_child(head_id, id);

  split_residency(head_id, id);
  n.begin = page;
  n.pages -= head.pages;
  n.tokens.advance(static_cast<std::size_t>(head.pages) * state_.page_size);
  n.edge_hash = edge_hash(head_id, n.tokens.data(), state_.page_size);
  state_.table.insert(n.edge_hash, id);
  return head_id;
}

// Everything but the shape. Page counters do not change, except that a host lock of full stays with the tail, unless it
// is one of own pages: the head is safe without it, because leaves go first, or the device has it (exclusive tiers).
void Structure::split_residency(Id head_id, Id tail_id) {
  Node& tail = node(tail_id);
  Node& head = node(head_id);
  head.full_tick = tail.full_tick;
  head.created = tail.created;
  head.hits = tail.hits;
  head.is_fresh = tail.is_fresh;
  head.priority = tail.priority;
  head.aux_tick = tail.aux_tick;
  head.host_gap = std::exchange(tail.host_gap, false);
  head.leaves_device = tail.leaves_device;
  head.left_host = clear_bits(tail.left_host, kMambaHost);
  head.present = defect(Defect::kStateInBothHalves) ? tail.present : clear_bits(tail.present, kMambaBits);
  head.pending = clear_bits(tail.pending, kMambaBits);
  head.complete = clear_bits(tail.complete, kMambaBits);
  state_.waiting += static_cast<std::uint64_t>(__builtin_popcount(head.complete));
  state_.ops.split(head_id, tail_id);
  state_.backlog.split(head_id, tail_id);

  head.own_locks = tail.own_locks;
  head.locks[index_of(ComponentKind::kFull)] = {tail.locks[index_of(ComponentKind::kFull)][0], tail.own_locks};
  head.locks[index_of(ComponentKind::kSwa)] = tail.locks[index_of(ComponentKind::kSwa)];
  state_.claims_of(head) += head.lock_sum() + (head.is_covered() ? 1 : 0);
  const bool loses_lock = tail.lock_count(ComponentKind::kFull, Tier::kHost) != 0 && head.own_locks == 0;
  if (tail.has(kFullHost) && loses_lock && !head.is_covered()) {
    state_.tally(head, ComponentKind::kFull, Tier::kHost, {.locked = -std::int64_t{head.pages}});
  }
  for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
    for (const Tier t : kAllTiers) {
      const std::size_t i = index_of(t);
      if ((tail.present & bit_of(c, t)) == 0) continue;
      head.slots[index_of(c)][i] = tail.slots[index_of(c)][i].share();
      tail.slots[index_of(c)][i].advance(head.pages);
      if (c == ComponentKind::kFull) head.full_children[i] = 1;
    }
  }
  victims_.refresh_aux(head_id);
  if (state_.config.is_exclusive)
    victims_.refresh_leaf(head_id);  // among those that may leave the host without being leaves
  if (tail.keys) {
    head.keys = tail.keys.share();
    tail.keys.advance(head.pages);
  }
}

void Structure::remove_node(Id id) {
  Node& n = node(id);
  assert(n.first_child == kNoNode && n.present == 0 && !n.is_covered());
  const Id parent = n.parent;
  state_.table.erase(n.edge_hash, id);
  unlink_child(id);
  n.tokens.remove_used(static_cast<std::size_t>(n.pages) * state_.page_size);
  n.keys.remove_used(n.pages);
  if (n.tokens.is_sparse()) {
    state_.compact_ancestors(
        id, [](Node& at) -> Run<TokenId>& { return at.tokens; }, state_.page_size);
  }
  if (n.keys.is_sparse())
    state_.compact_ancestors(
        id, [](Node& at) -> Run<PageKey>& { return at.keys; }, 1);
  state_.nodes.release(id);
  victims_.refresh_leaf(parent);
}

// Does the order of eviction, for a reason other than where they stand?
bool Structure::is_told_apart(const Node& upper, const Node& lower) const {
  if (upper.created == lower.created) return false;  // what else it knows of them is the same
  Facts above = victims_.facts(upper, ComponentKind::kFull, Tier::kDevice);
  const Facts below = victims_.facts(lower, ComponentKind::kFull, Tier::kDevice);
  above.end = below.end;
  return state_.order->key(above) != state_.order->key(below);
}

// Nobody tells the two edges apart: what is there, how it was used, who may lose what.
bool Structure::are_alike(const Node& upper, const Node& lower) const {
  const bool same_data = upper.present == clear_bits(lower.present, kMambaBits);  // so the upper one has no state
  const bool same_use = upper.full_tick == lower.full_tick && upper.hits == lower.hits &&
                        upper.priority == lower.priority && upper.is_fresh == lower.is_fresh;
  if (!same_data || !same_use || is_told_apart(upper, lower)) return false;
  for (const Tier t : kAllTiers) {
    const std::size_t i = index_of(t);
    if (upper.has(bit_of(ComponentKind::kSwa, t)) && upper.aux_tick[0][i] != lower.aux_tick[0][i]) return false;
  }
  return TreeBacklog::are_alike(upper, lower);
}

// Every lock of the upper edge is one of full of a path through the lower edge: no handle ends at the upper node, and
// no window begins between the two.
bool Structure::have_same_locks(const Node& upper, const Node& lower) {
  const auto full = index_of(ComponentKind::kFull), swa = index_of(ComponentKind::kSwa);
  const bool no_window = upper.locks[swa][0] == 0 && lower.locks[swa][0] == 0;
  return upper.locks[full][0] == lower.locks[full][0] && no_window &&
         upper.lock_count(ComponentKind::kMamba, Tier::kDevice) == 0 && !upper.claimed(Tier::kHost) &&
         !lower.claimed(Tier::kHost);
}

bool Structure::are_one_array(const Node& upper, const Node& lower) const {
  const std::size_t pages = upper.pages;
  if (!upper.tokens.continues_in(lower.tokens, pages * state_.page_size) ||
      !upper.keys.continues_in(lower.keys, pages)) {
    return false;
  }
  for (std::size_t c = 0; c < 2; ++c) {
    for (std::size_t t = 0; t < kTierCount; ++t) {
      if (!upper.slots[c][t].continues_in(lower.slots[c][t], pages)) return false;
    }
  }
  return true;
}

// A leaf goes with its state, so what is above a state joins it only if it was one edge with it.
bool Structure::may_merge(const Node& upper, const Node& lower) const {
  const bool is_short = (std::uint64_t{upper.pages} + lower.pages) * state_.page_size <= kMergedTokens;
  const bool may_copy = is_short && (lower.present & kMambaBits) == 0;
  if (!may_copy && !upper.tokens.continues_in(lower.tokens, std::size_t{upper.pages} * state_.page_size)) return false;
  return !upper.is_covered() && !lower.is_covered() && have_same_locks(upper, lower) && are_alike(upper, lower) &&
         static_cast<bool>(upper.keys) == static_cast<bool>(lower.keys) && (may_copy || are_one_array(upper, lower));
}

void Structure::merge_runs(Node& upper, Node& lower) {
  const std::size_t most = std::max<std::size_t>(kMergedTokens / state_.page_size, 1);  // pages
  const auto join = [&](auto& head, auto& tail, std::size_t per_page) {
    head.append(upper.pages * per_page, tail, lower.pages * per_page, most * per_page);
    tail = std::move(head);
  };
  join(upper.tokens, lower.tokens, state_.page_size);
  join(upper.keys, lower.keys, 1);
  for (std::size_t c = 0; c < 2; ++c) {
    for (std::size_t t = 0; t < kTierCount; ++t) join(upper.slots[c][t], lower.slots[c][t], 1);
  }
}

void Structure::undo_split(Id id) {
  const Node& upper = node(id);
  if (upper.first_child == kNoNode) return;
  const Node& lower = node(upper.first_child);
  const bool is_quiet = !upper.claimed(Tier::kDevice) && !lower.claimed(Tier::kDevice);
  if (is_quiet && upper.created == lower.created && upper.aux_tick[0] == lower.aux_tick[0] &&
      are_one_array(upper, lower)) {
    (void)merge_into_only_child(id);
  }
}

bool Structure::merge_into_only_child(Id id) {
  Node& upper = node(id);
  const Id child = upper.first_child;
  if (upper.is_root() || child == kNoNode || node(child).next_sibling != kNoNode) return false;
  Node& lower = node(child);
  if (!may_merge(upper, lower)) return false;

  state_.table.erase(lower.edge_hash, child);
  state_.table.replace(upper.edge_hash, id, child);
  unlink_child(child);
  const Id parent = upper.parent;
  unlink_child(id);
  link_child(parent, child);
  merge_runs(upper, lower);
  lower.edge_hash = upper.edge_hash;
  lower.begin = upper.begin;
  lower.pages += upper.pages;
  lower.host_gap = upper.host_gap;
  lower.left_host &= upper.left_host | kMambaHost;
  if (upper.heap_at[leaf_place(Tier::kHost)] != kNotInHeap) victims_.host_full.remove(id);
  for (const Tier t : kAllTiers) {
    if (upper.heap_at[aux_place(ComponentKind::kSwa, t)] != kNotInHeap)
      victims_.aux_heap(ComponentKind::kSwa, t).remove(id);
  }
  state_.backlog.merge(id);
  state_.claims_of(upper) -= upper.lock_sum();
  state_.nodes.release(id);
  victims_.refresh_leaf(parent);
  victims_.refresh_leaf(child);
  return true;
}

std::uint64_t Structure::hash_keys(Id id, std::uint64_t most) {
  if (!state_.nodes.exists(id)) return 0;
  state_.path.clear();
  for (Id at = id; !node(at).is_root() && !node(at).keys; at = node(at).parent) state_.path.push_back(at);
  std::uint64_t hashed = 0;
  const std::vector<Id> edges(state_.path.rbegin(), state_.path.rend());  // a split uses `path`, perhaps
  for (const Id at : edges) {
    if (hashed == most) break;
    const bool is_whole = node(at).pages <= most - hashed;
    const Id head = is_whole ? at : settle({NodeId(at), node(at).begin + (most - hashed)});
    hashed += node(head).pages;
    keys_.hash_edge(head);
    if (!is_whole) break;
  }
  return hashed;
}

}  // namespace larder::tree
