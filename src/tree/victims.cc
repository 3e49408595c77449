// SPDX-License-Identifier: Apache-2.0
#include "tree/victims.h"

#include <algorithm>

#include "base/defect.h"

namespace larder::tree {

Victims::Victims(TreeState& state)
    : TreeRoom(state),
      device_backed(state.nodes, state.spaces, leaf_place(Tier::kDevice)),
      device_unbacked(state.nodes, state.spaces, leaf_place(Tier::kDevice)),
      host_full(state.nodes, state.spaces, leaf_place(Tier::kHost)),
      aux_heaps{{{VictimQueues(state.nodes, state.spaces, aux_place(ComponentKind::kSwa, Tier::kDevice)),
                  VictimQueues(state.nodes, state.spaces, aux_place(ComponentKind::kSwa, Tier::kHost))},
                 {VictimQueues(state.nodes, state.spaces, aux_place(ComponentKind::kMamba, Tier::kDevice)),
                  VictimQueues(state.nodes, state.spaces, aux_place(ComponentKind::kMamba, Tier::kHost))}}} {}

bool Victims::is_aux_victim(const Node& n, ComponentKind c, Tier t) const {
  return n.has(bit_of(c, t)) && (n.lock_count(c, t) == 0 || defect(Defect::kEvictsLocked)) && !n.is_covered();
}

// Like a leaf that is let go: it comes back to the place that its last use gives it.
void Victims::refresh_aux(Id id, ComponentKind c, Tier t) {
  const Node& n = node(id);
  const bool is_there = n.heap_at[aux_place(c, t)] != kNotInHeap;
  if (is_aux_victim(n, c, t) == is_there) return;
  is_there ? aux_heap(c, t).remove(id) : push_victim(aux_heap(c, t), id, c, t);
}

void Victims::refresh_aux(Id id) {
  constexpr Bits kAuxBits = kSwaDevice | kSwaHost | kMambaBits;
  if ((node(id).present & kAuxBits) == 0) return;  // drop() has taken it out of its heaps
  for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
    for (const Tier t : kAllTiers) refresh_aux(id, c, t);
  }
}

void Victims::set_aux_tick(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  n.aux_tick[aux_of(c)][index_of(t)] = state_.tick;
  if (n.heap_at[aux_place(c, t)] != kNotInHeap) update_victim(aux_heap(c, t), id, c, t);
}

std::uint64_t Victims::last_use(const Node& n, ComponentKind c, Tier t) const {
  return c == ComponentKind::kFull ? n.full_tick : n.aux_tick[aux_of(c)][index_of(t)];
}

Facts Victims::facts(const Node& n, ComponentKind c, Tier t) const {
  Facts all = plain_facts(n, c, t);
  if (state_.weighs) weigh(n, all);
  return all;
}

Facts Victims::plain_facts(const Node& n, ComponentKind c, Tier t) const {
  Facts facts{.component = c,
              .tier = t,
              .space = NamespaceId(n.space),
              .last_use = last_use(n, c, t),
              .created = n.created,
              .end = n.end()};
  if (c == ComponentKind::kFull) {
    facts.hits = n.hits;
    facts.is_fresh = n.is_fresh;
    facts.priority = n.priority;
  }
  return facts;
}

// A leaf leaves with its checkpoint, whichever of the two is asked for. The checkpoint before it, in whatever tier, is
// where its requests would resume then.
void Victims::weigh(const Node& n, Facts& f) const {
  constexpr int kMostNodes = 64;
  f.restores = (n.present & kMambaBits) != 0;
  f.is_held =
      f.component == ComponentKind::kFull && !f.restores && n.lock_count(ComponentKind::kFull, Tier::kDevice) != 0;
  if (!f.restores) return;
  f.kind = n.kind;
  f.priority = n.priority;
  const bool has_state = n.has(bit_of(ComponentKind::kMamba, f.tier));
  f.is_held = f.component == ComponentKind::kFull && f.tier == Tier::kHost && has_state;
  if (f.is_held) return;
  f.uses = state_.uses_now(n);
  const bool is_leaf = n.full_children[index_of(f.tier)] == 0;
  const auto tier = index_of(f.tier);
  std::uint64_t pages = f.component == ComponentKind::kFull || is_leaf ? n.pages : 0;
  bool goes_along = pages > 0;  // what nothing else stands on, up to the checkpoint above
  Id above = n.parent;
  for (int i = 0; i < kMostNodes && !node(above).is_root() && (node(above).present & kMambaBits) == 0; ++i) {
    goes_along = goes_along && node(above).full_children[tier] <= 1;
    if (goes_along) pages += node(above).pages;
    above = node(above).parent;
  }
  std::uint64_t leaves = pages * state_.config.slot_bytes[index_of(ComponentKind::kFull)];
  if (has_state) leaves += state_.config.slot_bytes[index_of(ComponentKind::kMamba)];
  const std::uint64_t saved = (n.end() - node(above).end()) * state_.config.slot_bytes[index_of(ComponentKind::kFull)];
  // Signed: one instruction makes a double of it.
  const auto number = [](std::uint64_t bytes) { return static_cast<double>(static_cast<std::int64_t>(bytes)); };
  f.gain = number(saved) / number(std::max<std::uint64_t>(leaves, 1));
}

bool Victims::is_spare(const Node& n, ComponentKind c, Tier t) const {
  if (!state_.config.is_exclusive || t != Tier::kHost || n.leaves_device) return false;
  if (c != ComponentKind::kFull) return n.has(bit_of(c, Tier::kDevice));
  for (const ComponentKind with : kAllComponents) {
    if (n.has(bit_of(with, Tier::kHost)) && !n.has(bit_of(with, Tier::kDevice))) return false;
  }
  return true;
}

// Of what the device has, too, the newest goes first, and of one path the beginning: the device will let go of it last.
Victims::Place Victims::place_of(const Node& n, ComponentKind c, Tier t) const {
  if (is_spare(n, c, t)) return {kSpareQueue, {~last_use(n, c, t), n.end()}};
  const Facts known = facts(n, c, t);
  return {state_.weighs || state_.chooses ? state_.order->queue(known) : std::uint8_t{0}, state_.order->key(known)};
}

void Victims::push_victim(VictimQueues& victims, Id id, ComponentKind c, Tier t) {
  const Place place = place_of(node(id), c, t);
  victims.push(id, place.queue, place.key);
}

void Victims::update_victim(VictimQueues& victims, Id id, ComponentKind c, Tier t) {
  const Place place = place_of(node(id), c, t);
  victims.update(id, place.queue, place.key);
}

double Victims::worth_of(std::uint8_t queue, std::uint64_t last_use, Tier t) const {
  if (queue == kSpareQueue) return -1;
  if (state_.chooses) return state_.order->worth_when(state_.duel.ahead(), queue);
  if (!state_.weighs) return 0;
  const std::uint64_t tier_pages = state_.counts[index_of(ComponentKind::kFull)][index_of(t)].resident;
  return state_.order->worth(queue, {state_.tick - std::min(state_.tick, last_use), tier_pages * state_.page_size},
                             state_.stats);
}

void Victims::worths_of(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses, Tier t,
                        std::span<double> out) const {
  if (!state_.weighs) {
    for (std::size_t i = 0; i < queues.size(); ++i) out[i] = worth_of(queues[i], last_uses[i], t);
    return;
  }
  const std::uint64_t tier_pages = state_.counts[index_of(ComponentKind::kFull)][index_of(t)].resident;
  state_.order->worths(queues, last_uses, {state_.tick, tier_pages * state_.page_size}, state_.stats, out);
  for (std::size_t i = 0; state_.config.is_exclusive && i < queues.size(); ++i) {
    if (queues[i] == kSpareQueue) out[i] = -1;
  }
}

void Victims::settle_standings() {
  for (const TenantId id : state_.tenants.changed()) {
    const auto set = [&](VictimQueues& victims, ComponentKind c, Tier t) {
      victims.set_standing(id, state_.tenants.standing(id, TenantBook::budget_of(c, t)));
    };
    set(device_backed, ComponentKind::kFull, Tier::kDevice);
    set(device_unbacked, ComponentKind::kFull, Tier::kDevice);
    set(host_full, ComponentKind::kFull, Tier::kHost);
    for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
      for (const Tier t : kAllTiers) set(aux_heap(c, t), c, t);
    }
  }
  state_.tenants.forget_changed();
}

VictimQueues::First Victims::first_victim(VictimQueues& victims, ComponentKind c, Tier t, const EvictFor& who) {
  if (!state_.tenants.changed().empty()) settle_standings();
  const auto worths = [&](std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses,
                          std::span<double> out) { worths_of(queues, last_uses, t, out); };
  const bool own_first = state_.tenants.exceeds(who, TenantBook::budget_of(c, t));
  if (!state_.weighs) return victims.first(worths, who, own_first);
  const VictimQueues::Question question{
      .tick = state_.tick,
      .tier_pages = state_.counts[index_of(ComponentKind::kFull)][index_of(t)].resident,
      .changes_of_stats = state_.stats.changes(),
      .who = who.tenant,
      .breaks_floors = who.breaks_floors,
      .own_first = own_first};
  if (const auto known = victims.known_first(question)) return *known;
  // What came above it may have lessened the worth of data that nobody touches: now and then one first is looked at.
  constexpr std::uint32_t kVictimsForALook = 16;
  const Id other = ++victims_asked_ % kVictimsForALook == 0 ? victims.next_to_check() : kNoNode;
  if (other != kNoNode) update_victim(victims, other, c, t);
  constexpr int kMostMoves = 16;  // then a rounding error is as good as another
  for (int moves = 0;; ++moves) {
    const VictimQueues::First first = victims.first(worths, who, own_first);
    const Place place = first.id == kNoNode ? Place{} : place_of(node(first.id), c, t);
    if (first.id == kNoNode || moves == kMostMoves || place.queue == first.queue) {
      victims.note_first(question, first);
      return first;
    }
    victims.update(first.id, place.queue, place.key);
  }
}

// A leaf without a host copy leaves the tree when it is evicted, so claims on the host keep it as well.
bool Victims::is_device_leaf(const Node& n) const {
  return n.has(kFullDevice) && n.full_children[0] == 0 && !n.claimed(Tier::kDevice) && !n.is_covered() &&
         (n.has(kFullHost) || !n.claimed(Tier::kHost));
}

// Beneath what the device has, too, the host may have gaps where tiers are exclusive.
bool Victims::may_leave_host(const Node& n) const {
  return n.has(kFullHost) && (n.full_children[1] == 0 || is_spare(n, ComponentKind::kFull, Tier::kHost)) &&
         !n.claimed(Tier::kHost) && !n.is_covered() && (n.has(kFullDevice) || !n.claimed(Tier::kDevice));
}

void Victims::refresh_leaf(Id id) {
  Node& n = node(id);
  if (n.is_root()) return;
  const bool backed = n.has(kFullHost);
  const bool device_leaf = is_device_leaf(n);
  if (n.heap_at[0] != kNotInHeap && (!device_leaf || n.in_backed_heap != backed)) {
    (n.in_backed_heap ? device_backed : device_unbacked).remove(id);
  }
  const bool host_leaf = may_leave_host(n);
  if (n.heap_at[1] != kNotInHeap && !host_leaf) host_full.remove(id);
  const bool joins_device = device_leaf && n.heap_at[0] == kNotInHeap;
  const bool joins_host = host_leaf && n.heap_at[1] == kNotInHeap;
  if (joins_device) {
    n.in_backed_heap = backed;
    push_victim(backed ? device_backed : device_unbacked, id, ComponentKind::kFull, Tier::kDevice);
  }
  if (joins_host) push_victim(host_full, id, ComponentKind::kFull, Tier::kHost);
}

void Victims::set_state_place(Id id, Tier t) {
  if (node(id).heap_at[aux_place(ComponentKind::kMamba, t)] == kNotInHeap) return;
  update_victim(aux_heap(ComponentKind::kMamba, t), id, ComponentKind::kMamba, t);
}

void Victims::set_leaves_device(Id id, bool leaves) {
  if (!state_.config.is_exclusive || node(id).leaves_device == leaves) return;
  node(id).leaves_device = leaves;
  refresh_spares(id);
}

void Victims::refresh_spares(Id id) {
  if (!state_.config.is_exclusive) return;
  refresh_leaf(id);
  const Node& n = node(id);
  if (n.heap_at[1] != kNotInHeap) update_victim(host_full, id, ComponentKind::kFull, Tier::kHost);
  for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
    if (n.heap_at[aux_place(c, Tier::kHost)] != kNotInHeap) update_victim(aux_heap(c, Tier::kHost), id, c, Tier::kHost);
  }
}

void Victims::refresh_leaf_key(Id id) {
  const Node& n = node(id);
  if (n.heap_at[0] != kNotInHeap) {
    update_victim(n.in_backed_heap ? device_backed : device_unbacked, id, ComponentKind::kFull, Tier::kDevice);
  }
  if (n.heap_at[1] != kNotInHeap) update_victim(host_full, id, ComponentKind::kFull, Tier::kHost);
}

// Facts::is_held of what is no restore point.
void Victims::refresh_held(Id id, ComponentKind c, Tier t) {
  const bool restores = (node(id).present & kMambaBits) != 0;
  if (state_.weighs && !restores && c == ComponentKind::kFull && t == Tier::kDevice) refresh_leaf_key(id);
}

}  // namespace larder::tree
