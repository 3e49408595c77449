// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cassert>

#include "base/defect.h"
#include "tree/tree_impl.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

RadixTree::Impl::Id RadixTree::Impl::make_root(std::uint32_t space) {
  const Id id = nodes.allocate();
  node(id).space = space;
  return id;
}

void RadixTree::Impl::link_child(Id parent, Id child) {
  Node& p = node(parent);
  Node& c = node(child);
  c.parent = parent;
  c.prev_sibling = kNoNode;
  c.next_sibling = p.first_child;
  if (p.first_child != kNoNode) node(p.first_child).prev_sibling = child;
  p.first_child = child;
}

void RadixTree::Impl::unlink_child(Id child) {
  Node& c = node(child);
  if (c.prev_sibling == kNoNode) {
    node(c.parent).first_child = c.next_sibling;
  } else {
    node(c.prev_sibling).next_sibling = c.next_sibling;
  }
  if (c.next_sibling != kNoNode) node(c.next_sibling).prev_sibling = c.prev_sibling;
  c.prev_sibling = c.next_sibling = kNoNode;
}

RadixTree::Impl::Id RadixTree::Impl::add_leaf(Id parent, std::span<const TokenId> tokens) {
  const Id id = nodes.allocate();
  Node& n = node(id);
  n.begin = node(parent).end();
  n.space = node(parent).space;
  n.pages = static_cast<std::uint32_t>(pages_in(tokens));
  n.tokens = Run<TokenId>::copy_of(tokens);
  n.tokens.add_used(tokens.size());
  n.edge_hash = edge_hash(parent, tokens.data(), page_size);
  n.created = n.full_tick = tick;
  n.is_fresh = is_fresh();
  link_child(parent, id);
  table.insert(n.edge_hash, id);
  return id;
}

RadixTree::Impl::Id RadixTree::Impl::split(Id id, std::uint64_t page) {
  const Id head_id = nodes.allocate();
  Node& n = node(id);
  Node& head = node(head_id);
  assert(page > n.begin && page < n.end());
  head.begin = n.begin;
  head.pages = static_cast<std::uint32_t>(page - n.begin);
  head.space = n.space;
  head.tokens = n.tokens.share();
  head.edge_hash = n.edge_hash;
  table.replace(n.edge_hash, id, head_id);
  const Id parent = n.parent;
  unlink_child(id);
  link_child(parent, head_id);
  link_child(head_id, id);

  split_residency(head_id, id);
  n.begin = page;
  n.pages -= head.pages;
  n.tokens.advance(static_cast<std::size_t>(head.pages) * page_size);
  n.edge_hash = edge_hash(head_id, n.tokens.data(), page_size);
  table.insert(n.edge_hash, id);
  return head_id;
}

// Everything but the shape. Page counters do not change, except that a host lock of full stays with the tail, unless it
// is one of own pages: the head is safe without it, because leaves go first, or the device has it (exclusive tiers).
void RadixTree::Impl::split_residency(Id head_id, Id tail_id) {
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
  waiting += static_cast<std::uint64_t>(__builtin_popcount(head.complete));
  ops.split(head_id, tail_id);
  backlog.split(head_id, tail_id);

  head.own_locks = tail.own_locks;
  head.locks[index_of(ComponentKind::kFull)] = {tail.locks[index_of(ComponentKind::kFull)][0], tail.own_locks};
  head.locks[index_of(ComponentKind::kSwa)] = tail.locks[index_of(ComponentKind::kSwa)];
  claims_of(head) += head.lock_sum() + (head.is_covered() ? 1 : 0);
  const bool loses_lock = tail.lock_count(ComponentKind::kFull, Tier::kHost) != 0 && head.own_locks == 0;
  if (tail.has(kFullHost) && loses_lock && !head.is_covered()) {
    tally(head, ComponentKind::kFull, Tier::kHost, {.locked = -std::int64_t{head.pages}});
  }
  for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
    for (const Tier t : kAllTiers) {
      const std::size_t i = tree::index_of(t);
      if ((tail.present & bit_of(c, t)) == 0) continue;
      head.slots[index_of(c)][i] = tail.slots[index_of(c)][i].share();
      tail.slots[index_of(c)][i].advance(head.pages);
      if (c == ComponentKind::kFull) head.full_children[i] = 1;
    }
  }
  refresh_aux(head_id);
  if (config.is_exclusive) refresh_leaf(head_id);  // among those that may leave the host without being leaves
  if (tail.keys) {
    head.keys = tail.keys.share();
    tail.keys.advance(head.pages);
  }
}

void RadixTree::Impl::remove_node(Id id) {
  Node& n = node(id);
  assert(n.first_child == kNoNode && n.present == 0 && !n.is_covered());
  const Id parent = n.parent;
  table.erase(n.edge_hash, id);
  unlink_child(id);
  n.tokens.remove_used(static_cast<std::size_t>(n.pages) * page_size);
  n.keys.remove_used(n.pages);
  if (n.tokens.is_sparse()) {
    compact_ancestors(
        id, [](Node& at) -> Run<TokenId>& { return at.tokens; }, page_size);
  }
  if (n.keys.is_sparse())
    compact_ancestors(
        id, [](Node& at) -> Run<PageKey>& { return at.keys; }, 1);
  nodes.release(id);
  refresh_leaf(parent);
}

void RadixTree::Impl::release_slots(Id id, ComponentKind c, Tier t) {
  const auto run_of = [c, t](Node& at) -> SlotRun& { return at.slots[index_of(c)][tree::index_of(t)]; };
  SlotRun& run = run_of(node(id));
  run.remove_used(node(id).pages);
  if (run.is_sparse()) compact_ancestors(id, run_of, 1);
  run.reset();
}

// An array shared by a chain of nodes is let go from the tail as a rule, so what remains of it are ancestors. Without
// this, a head of one page would keep the array of 131,072 pages. Copies less than a quarter of what was let go before,
// so the cost per page is constant.
template <class RunOf>
void RadixTree::Impl::compact_ancestors(Id id, RunOf run_of, std::uint64_t items_per_page) {
  using Items = std::remove_reference_t<decltype(run_of(node(id)))>;
  const Items old = run_of(node(id)).share();
  std::uint64_t items = 0;
  path.clear();
  for (Id at = node(id).parent; !node(at).is_root() && run_of(node(at)).same_array(old); at = node(at).parent) {
    path.push_back(at);
    items += node(at).pages * items_per_page;
  }
  if (path.empty()) return;
  Items fresh = Items::with_room_for(items);
  std::uint64_t filled = 0;
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    Items& run = run_of(node(*at));
    const std::uint64_t count = node(*at).pages * items_per_page;
    std::copy_n(run.data(), count, fresh.mutable_data() + filled);
    run.remove_used(count);
    run = fresh.share(filled);
    run.add_used(count);
    filled += count;
  }
}

// Does the order of eviction, for a reason other than where they stand?
bool RadixTree::Impl::is_told_apart(const Node& upper, const Node& lower) const {
  if (upper.created == lower.created) return false;  // what else it knows of them is the same
  Facts above = facts(upper, ComponentKind::kFull, Tier::kDevice);
  const Facts below = facts(lower, ComponentKind::kFull, Tier::kDevice);
  above.end = below.end;
  return order->key(above) != order->key(below);
}

// Nobody tells the two edges apart: what is there, how it was used, who may lose what.
bool RadixTree::Impl::are_alike(const Node& upper, const Node& lower) const {
  const bool same_data = upper.present == clear_bits(lower.present, kMambaBits);  // so the upper one has no state
  const bool same_use = upper.full_tick == lower.full_tick && upper.hits == lower.hits &&
                        upper.priority == lower.priority && upper.is_fresh == lower.is_fresh;
  if (!same_data || !same_use || is_told_apart(upper, lower)) return false;
  for (const Tier t : kAllTiers) {
    const std::size_t i = tree::index_of(t);
    if (upper.has(bit_of(ComponentKind::kSwa, t)) && upper.aux_tick[0][i] != lower.aux_tick[0][i]) return false;
  }
  return TreeBacklog::are_alike(upper, lower);
}

// Every lock of the upper edge is one of full of a path through the lower edge: no handle ends at the upper node, and
// no window begins between the two.
bool RadixTree::Impl::have_same_locks(const Node& upper, const Node& lower) {
  const auto full = index_of(ComponentKind::kFull), swa = index_of(ComponentKind::kSwa);
  const bool no_window = upper.locks[swa][0] == 0 && lower.locks[swa][0] == 0;
  return upper.locks[full][0] == lower.locks[full][0] && no_window &&
         upper.lock_count(ComponentKind::kMamba, Tier::kDevice) == 0 && !upper.claimed(Tier::kHost) &&
         !lower.claimed(Tier::kHost);
}

bool RadixTree::Impl::are_one_array(const Node& upper, const Node& lower) const {
  const std::size_t pages = upper.pages;
  if (!upper.tokens.continues_in(lower.tokens, pages * page_size) || !upper.keys.continues_in(lower.keys, pages)) {
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
bool RadixTree::Impl::may_merge(const Node& upper, const Node& lower) const {
  const bool is_short = (std::uint64_t{upper.pages} + lower.pages) * page_size <= kMergedTokens;
  const bool may_copy = is_short && (lower.present & kMambaBits) == 0;
  if (!may_copy && !upper.tokens.continues_in(lower.tokens, std::size_t{upper.pages} * page_size)) return false;
  return !upper.is_covered() && !lower.is_covered() && have_same_locks(upper, lower) && are_alike(upper, lower) &&
         static_cast<bool>(upper.keys) == static_cast<bool>(lower.keys) && (may_copy || are_one_array(upper, lower));
}

void RadixTree::Impl::merge_runs(Node& upper, Node& lower) {
  const std::size_t most = std::max<std::size_t>(kMergedTokens / page_size, 1);  // pages
  const auto join = [&](auto& head, auto& tail, std::size_t per_page) {
    head.append(upper.pages * per_page, tail, lower.pages * per_page, most * per_page);
    tail = std::move(head);
  };
  join(upper.tokens, lower.tokens, page_size);
  join(upper.keys, lower.keys, 1);
  for (std::size_t c = 0; c < 2; ++c) {
    for (std::size_t t = 0; t < kTierCount; ++t) join(upper.slots[c][t], lower.slots[c][t], 1);
  }
}

void RadixTree::Impl::undo_split(Id id) {
  const Node& upper = node(id);
  if (upper.first_child == kNoNode) return;
  const Node& lower = node(upper.first_child);
  const bool is_quiet = !upper.claimed(Tier::kDevice) && !lower.claimed(Tier::kDevice);
  if (is_quiet && upper.created == lower.created && upper.aux_tick[0] == lower.aux_tick[0] &&
      are_one_array(upper, lower)) {
    (void)merge_into_only_child(id);
  }
}

bool RadixTree::Impl::merge_into_only_child(Id id) {
  Node& upper = node(id);
  const Id child = upper.first_child;
  if (upper.is_root() || child == kNoNode || node(child).next_sibling != kNoNode) return false;
  Node& lower = node(child);
  if (!may_merge(upper, lower)) return false;

  table.erase(lower.edge_hash, child);
  table.replace(upper.edge_hash, id, child);
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
  if (upper.heap_at[leaf_place(Tier::kHost)] != kNotInHeap) host_full.remove(id);
  for (const Tier t : kAllTiers) {
    if (upper.heap_at[aux_place(ComponentKind::kSwa, t)] != kNotInHeap) aux_heap(ComponentKind::kSwa, t).remove(id);
  }
  backlog.merge(id);
  claims_of(upper) -= upper.lock_sum();
  nodes.release(id);
  refresh_leaf(parent);
  refresh_leaf(child);
  return true;
}

}  // namespace larder
