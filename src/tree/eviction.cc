// SPDX-License-Identifier: Apache-2.0
#include "tree/eviction.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/defect.h"

namespace larder::tree {

EvictResult Eviction::evict_device(ComponentKind c, std::uint64_t slots, VictimRule rule, const EvictFor& who) {
  state_.has_evicted = true;
  Job eviction{.component = c, .tier = Tier::kDevice, .slots = slots, .rule = rule, .who = who};
  c == ComponentKind::kFull ? evict_device_leaves(eviction) : evict_aux(eviction);
  return std::move(eviction.out);
}

EvictResult Eviction::evict_host(ComponentKind c, std::uint64_t slots, const EvictFor& who) {
  state_.has_evicted = true;
  Job eviction{.component = c, .tier = Tier::kHost, .slots = slots, .rule = VictimRule::kDrop, .who = who};
  c == ComponentKind::kFull ? evict_host_full(eviction) : evict_aux(eviction);
  return std::move(eviction.out);
}

std::uint64_t Eviction::most_of(Id id, const Job& eviction, std::uint64_t most) const {
  return std::min(
      most, state_.tenants.slots_to_bound(state_.tenant_of(node(id)), eviction.component, eviction.tier, eviction.who));
}

void Eviction::count_freed(VictimQueues::Rank rank, std::uint64_t freed, EvictResult& out) {
  out.freed += freed;
  if (rank == VictimQueues::Rank::kFloor) out.from_floors += freed;
}

// Does it leave the host because it is worth least of all? Then no copy is made again while nothing has changed.
bool Eviction::is_judged(const VictimQueues::First& first, Tier t) const {
  return state_.weighs && t == Tier::kHost && first.rank == VictimQueues::Rank::kWithin && first.queue != kSpareQueue;
}

// ---- full: leaves, by policy

// One order for all leaves, with and without a host copy.
VictimQueues::First Eviction::next_device_leaf(const EvictFor& who) {
  const VictimQueues::First unbacked =
      victims_.first_victim(victims_.device_unbacked, ComponentKind::kFull, Tier::kDevice, who);
  const VictimQueues::First backed =
      victims_.first_victim(victims_.device_backed, ComponentKind::kFull, Tier::kDevice, who);
  if (unbacked.id == kNoNode) return backed;
  return backed.id == kNoNode || unbacked < backed ? unbacked : backed;
}

// Leaves at most `pages` in the leaf; the rest becomes its parent and stays.
void Eviction::trim_leaf(Id id, std::uint64_t pages) {
  if (node(id).pages > pages) structure_.split(id, node(id).end() - pages);
}

// The first victim that stays ends the eviction: what stands above it comes before what is newer, and is no leaf yet.
void Eviction::evict_device_leaves(Job& eviction) {
  std::vector<Id> refused;
  EvictResult& out = eviction.out;
  while (eviction.missing() > 0) {
    const auto [id, key, worth, queue, rank] = next_device_leaf(eviction.who);
    if (id == kNoNode) break;
    if (stays_for_backup(id, ComponentKind::kFull, eviction.rule)) {
      name_device_leaves(eviction);
      break;
    }
    trim_leaf(id, most_of(id, eviction, eviction.missing()));
    const std::uint64_t pages = node(id).pages;
    const bool demoted = node(id).has(kFullHost);
    if (!evict_device_leaf(id)) {
      victims_.device_unbacked.remove(id);
      refused.push_back(id);
      continue;
    }
    count_freed(rank, pages, out);
    (demoted ? out.demoted : out.dropped) += pages;
  }
  for (const Id id : refused) victims_.refresh_leaf(id);
}

void Eviction::name_victim(Id id, EvictResult& out) {
  out.needs_backup.emplace_back(id);
  victims_.set_leaves_device(id, true);
}

// Those of the next pages that have to be backed up first.
void Eviction::name_device_leaves(Job& eviction) {
  std::vector<Id> seen;
  const std::uint64_t pages = eviction.missing();
  for (std::uint64_t covered = 0; covered < pages;) {
    const Id id = next_device_leaf(eviction.who).id;
    if (id == kNoNode) break;
    if (stays_for_backup(id, ComponentKind::kFull, eviction.rule)) name_victim(id, eviction.out);
    covered += node(id).pages;
    (node(id).in_backed_heap ? victims_.device_backed : victims_.device_unbacked).remove(id);
    seen.push_back(id);
  }
  for (const Id id : seen) victims_.refresh_leaf(id);
}

// Has the victim to stay until it has a host copy? What storage waits for gets there through the host, whatever the
// host thinks of it.
bool Eviction::stays_for_backup(Id id, ComponentKind c, VictimRule rule) {
  if (rule == VictimRule::kDrop) return false;
  const Node& n = node(id);
  const bool has_copy = n.has(bit_of(c, Tier::kHost));
  constexpr Bits kDeviceBits = kFullDevice | kSwaDevice | kMambaDevice;
  const bool is_leaf = n.heap_at[leaf_place(Tier::kDevice)] != kNotInHeap;  // it leaves with all that it has there
  const bool leaves_whole = is_leaf && (c == ComponentKind::kFull || !has_copy);
  const Bits leaving = leaves_whole ? static_cast<Bits>(n.published() & kDeviceBits) : bit_of(c, Tier::kDevice);
  const Bits lost = clear_bits(static_cast<Bits>(leaving << kComponentCount), n.present);  // no copy on the host
  if (state_.backlog.lacks(n, lost)) return true;
  if ((lost & state_.host_keeps) == 0) return false;
  if (rule == VictimRule::kBackUpFirst) return true;
  const auto goes = [&](ComponentKind of) { return (lost & state_.host_keeps & bit_of(of, Tier::kHost)) != 0; };
  const ComponentKind judged = !has_copy                     ? c
                               : goes(ComponentKind::kMamba) ? ComponentKind::kMamba
                               : goes(ComponentKind::kSwa)   ? ComponentKind::kSwa
                                                             : ComponentKind::kFull;
  return !is_next_to_leave_host(id, judged);
}

// Would a host that is full let go of a copy of this before all that it may let go of now? As a rule it has let go of
// it already; where that was by worth, it is not asked again.
bool Eviction::is_next_to_leave_host(Id id, ComponentKind c) {
  if (state_.config.is_exclusive && c == ComponentKind::kFull && node(id).full_children[1] > 0) return false;
  if ((node(id).left_host & bit_of(c, Tier::kHost)) != 0) return true;
  bool has_victim = false;
  const TenantId tenant = state_.tenant_of(node(id));
  // Its standing is the rank that its copy would have; where the copy would take it above its ceiling, its own goes
  // first.
  const std::uint64_t blocks = node(id).units(c) * state_.config.host_blocks[index_of(c)];
  const EvictFor who{.tenant = tenant, .coming = blocks};
  const auto rank = state_.tenants.exceeds(who, TenantBook::kHostBudget)
                        ? VictimQueues::Rank::kOver
                        : static_cast<VictimQueues::Rank>(state_.tenants.standing(tenant, TenantBook::kHostBudget));
  for (const ComponentKind other : kAllComponents) {
    const VictimQueues::First victim = next_host_victim(other, who);
    if (victim.id == kNoNode) continue;
    has_victim = true;
    if (victim.rank < rank) return false;
    if (victim.rank > rank) continue;
    if (!is_worth_less_than(node(id), c, victim, other)) return false;
  }
  return has_victim;
}

// Would a host copy of `n` leave before the victim?
bool Eviction::is_worth_less_than(const Node& n, ComponentKind c, const VictimQueues::First& victim,
                                  ComponentKind victims) const {
  if (victim.queue == kSpareQueue) return false;
  const bool goes_by_state = state_.weighs && (n.present & kMambaBits) != 0;  // full leaves with its checkpoint
  Facts copy = victims_.facts(n, goes_by_state ? ComponentKind::kMamba : c, Tier::kDevice);
  copy.tier = Tier::kHost;
  if (state_.weighs || (state_.chooses && c == victims)) {
    const double own = victims_.worth_of(state_.order->queue(copy), state_.order->key(copy).major, Tier::kHost);
    if (own != victim.worth) return own < victim.worth;
  }
  if (c == ComponentKind::kFull && victims == ComponentKind::kFull) {
    const OrderKey own = state_.order->key(copy);
    // What was used by the same request leaves from its end.
    return own < victim.key || (own == victim.key && n.begin > node(victim.id).begin);
  }
  copy = victims_.plain_facts(n, c, Tier::kDevice);
  return state_.order->key_across(copy) <=
         state_.order->key_across(victims_.plain_facts(node(victim.id), victims, Tier::kHost));
}

// False: beneath it is host data that is in use, which would lose its prefix.
bool Eviction::evict_device_leaf(Id id) {
  if (node(id).has(kFullHost)) {
    residency_.drop_tier(id, Tier::kDevice);
    structure_.undo_split(id);
    return true;
  }
  if (node(id).first_child != kNoNode && !remove_host_descendants(id)) return false;
  residency_.drop_tier(id, Tier::kDevice);
  structure_.remove_node(id);
  return true;
}

// Only where the host has gaps (I2): everything beneath a device-only leaf is host-only and useless without it.
bool Eviction::remove_host_descendants(Id id) {
  std::vector<Id> below;
  for (Id child = node(id).first_child; child != kNoNode; child = node(child).next_sibling) below.push_back(child);
  for (std::size_t i = 0; i < below.size(); ++i) {
    const Node& n = node(below[i]);
    if (n.is_covered() || n.claimed(Tier::kDevice) || n.claimed(Tier::kHost)) return false;
    for (Id child = n.first_child; child != kNoNode; child = node(child).next_sibling) below.push_back(child);
  }
  for (std::size_t i = below.size(); i-- > 0;) {  // children come after their parents in the list
    residency_.drop_tier(below[i], Tier::kHost);
    structure_.remove_node(below[i]);
  }
  return true;
}

// At most so many pages of full: of a leaf its end. Of what the device has, too, the beginning, which it will let go of
// last.
Id Eviction::cut_host_victim(const VictimQueues::First& first, std::uint64_t pages) {
  const Id id = first.id;
  if (node(id).pages <= pages) return id;
  if (first.queue == kSpareQueue) return structure_.split(id, node(id).begin + pages);
  trim_leaf(id, pages);
  return id;
}

void Eviction::evict_host_full(Job& eviction) {
  EvictResult& out = eviction.out;
  while (eviction.missing() > 0) {
    const VictimQueues::First first =
        victims_.first_victim(victims_.host_full, ComponentKind::kFull, Tier::kHost, eviction.who);
    if (first.id == kNoNode) break;
    const Id id = cut_host_victim(first, most_of(first.id, eviction, eviction.missing()));
    const std::uint64_t pages = node(id).pages;
    (node(id).has(kFullDevice) ? out.demoted : out.dropped) += pages;
    count_freed(first.rank, pages, out);
    const Residency::Judgement judgement(residency_, is_judged(first, Tier::kHost));
    evict_from_host(id);
  }
}

void Eviction::evict_from_host(Id id) {
  residency_.drop_tier(id, Tier::kHost);
  if (node(id).present == 0) {
    structure_.remove_node(id);
  } else {
    structure_.undo_split(id);
  }
}

// ---- window and state: tombstones inside

// Those that have to be backed up first stay; what is newer goes nevertheless.
void Eviction::evict_aux(Job& eviction) {
  const auto [c, t] = std::pair(eviction.component, eviction.tier);
  VictimQueues& heap = victims_.aux_heap(c, t);
  std::uint64_t named = 0;
  std::vector<Id> stay;
  while (eviction.missing() > named) {
    const VictimQueues::First first = victims_.first_victim(heap, c, t, eviction.who);
    if (first.id == kNoNode) break;
    if (t == Tier::kDevice && stays_for_backup(first.id, c, eviction.rule)) {
      name_victim(first.id, eviction.out);
      named += node(first.id).units(c);
      heap.remove(first.id);
      stay.push_back(first.id);
      continue;
    }
    const Residency::Judgement judgement(residency_, is_judged(first, t));
    const std::uint64_t freed =
        evict_aux_of(first.id, c, t, most_of(first.id, eviction, eviction.missing() - named), eviction.out);
    count_freed(first.rank, freed, eviction.out);
  }
  for (const Id id : stay) victims_.refresh_aux(id, c, t);
}

// Evicts one victim. A leaf whose restore point goes for good goes altogether: what is left of it would serve nobody.
std::uint64_t Eviction::evict_aux_of(Id id, ComponentKind c, Tier t, std::uint64_t need, EvictResult& out) {
  // A long stretch of window loses its head first, so that the restore point at its end survives.
  if (c == ComponentKind::kSwa && node(id).pages > need && node(id).pages - need >= state_.window_pages) {
    id = structure_.split(id, node(id).begin + need);
  }
  const Node& n = node(id);
  const std::uint64_t units = n.units(c);
  const bool copy_remains = n.has(bit_of(c, other_tier(t)));
  const bool is_leaf = n.heap_at[index_of(t)] != kNotInHeap;
  (copy_remains ? out.demoted : out.dropped) += units;
  if (is_leaf && !copy_remains && t == Tier::kDevice && (n.has(kFullHost) || n.first_child == kNoNode)) {
    (void)evict_device_leaf(id);  // not refused: nothing hangs on it
  } else if (is_leaf && !copy_remains && t == Tier::kHost && !n.has(kFullDevice)) {
    evict_from_host(id);
  } else {
    tombstone(id, c, t);
  }
  return units;
}

void Eviction::tombstone(Id id, ComponentKind c, Tier t) {
  residency_.drop(id, c, t);
  if (c != ComponentKind::kSwa) return;
  // Without its window in any tier the node's state can serve no restore point.
  const Node& n = node(id);
  const bool window_elsewhere = n.has(bit_of(ComponentKind::kSwa, other_tier(t)));
  if (window_elsewhere || !n.has(bit_of(ComponentKind::kMamba, t))) return;
  if (n.lock_count(ComponentKind::kMamba, t) == 0 && !n.is_covered()) residency_.drop(id, ComponentKind::kMamba, t);
}

VictimQueues::First Eviction::next_host_victim(ComponentKind c, const EvictFor& who) {
  return victims_.first_victim(c == ComponentKind::kFull ? victims_.host_full : victims_.aux_heap(c, Tier::kHost), c,
                               Tier::kHost, who);
}

// ---- flush

std::uint64_t Eviction::flush() {
  std::vector<Id> found;
  found.reserve(state_.nodes.live());
  for (Id id = 0; id < state_.nodes.end_id(); ++id) {
    if (state_.nodes.exists(id) && !node(id).is_root()) found.push_back(id);
  }
  // A child begins after its parent: from the deepest upwards.
  std::sort(found.begin(), found.end(), [&](Id a, Id b) { return node(a).begin > node(b).begin; });
  for (const Id id : found) flush_node(id);
  return state_.nodes.live() - state_.open_spaces();
}

std::uint64_t Eviction::flush(Id root) {
  if (root == kNoNode) return 0;
  std::vector<Id> found;
  for (Id id = next_in_space(state_.nodes, root); id != kNoNode; id = next_in_space(state_.nodes, id))
    found.push_back(id);
  for (auto at = found.rbegin(); at != found.rend(); ++at) flush_node(*at);  // children before parents
  std::uint64_t left = 0;
  for (Id id = next_in_space(state_.nodes, root); id != kNoNode; id = next_in_space(state_.nodes, id)) ++left;
  return left;
}

void Eviction::flush_node(Id id) {
  const Node& n = node(id);
  if (n.is_covered()) return;
  for (const Tier t : kAllTiers) {
    for (const ComponentKind c : {ComponentKind::kMamba, ComponentKind::kSwa}) {
      if (n.has(bit_of(c, t)) && (n.lock_count(c, t) == 0 || defect(Defect::kFlushDropsInUse)))
        residency_.drop(id, c, t);
    }
  }
  const auto needed = [&](Tier t) {
    const Bits aux = static_cast<Bits>(bit_of(ComponentKind::kSwa, t) | bit_of(ComponentKind::kMamba, t));
    return n.lock_count(ComponentKind::kFull, t) != 0 || n.full_children[index_of(t)] != 0 || n.has_some(aux);
  };
  const bool stays = n.first_child != kNoNode || n.claimed(Tier::kDevice) || n.claimed(Tier::kHost);
  bool keeps_device = n.has(kFullDevice) && needed(Tier::kDevice);
  const bool keeps_host = n.has(kFullHost) && (needed(Tier::kHost) || (stays && !keeps_device && !n.has(kFullDevice)));
  if (stays && !keeps_device && !keeps_host) keeps_device = true;
  if (n.has(kFullDevice) && !keeps_device) residency_.drop(id, ComponentKind::kFull, Tier::kDevice);
  if (n.has(kFullHost) && !keeps_host) residency_.drop(id, ComponentKind::kFull, Tier::kHost);
  if (!stays) structure_.remove_node(id);
}

}  // namespace larder::tree
