// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cassert>

#include "base/defect.h"
#include "tree/tree_impl.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

namespace {

// Slots are kept as plain numbers inside, so that both tiers share their code; at the border they get their type back.
static_assert(sizeof(DeviceSlot) == sizeof(std::uint32_t) && sizeof(HostSlot) == sizeof(std::uint32_t));

template <class Slot>
std::span<const Slot> typed(std::span<const std::uint32_t> slots) {
  return {reinterpret_cast<const Slot*>(slots.data()), slots.size()};
}

}  // namespace

void RadixTree::Impl::give_back(ComponentKind c, Tier t, std::span<const std::uint32_t> slots) {
  if (slots.empty()) return;
  if (t == Tier::kDevice) {
    sink.free_device(c, typed<DeviceSlot>(slots));
  } else {
    sink.free_host(c, typed<HostSlot>(slots));
  }
}

void RadixTree::Impl::give_back_duplicates(ComponentKind c, Tier t, std::span<const std::uint32_t> given,
                                           const std::uint32_t* own) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= given.size(); ++i) {
    if (i < given.size() && given[i] != own[i]) continue;
    give_back(c, t, given.subspan(begin, i - begin));
    begin = i + 1;
  }
}

void RadixTree::Impl::set_slots(Id id, ComponentKind c, Tier t, SlotRun run) {
  if (c == ComponentKind::kMamba) {
    node(id).state[tree::index_of(t)] = *run.data();
  } else {
    run.add_used(node(id).pages);
    node(id).slots[index_of(c)][tree::index_of(t)] = std::move(run);
  }
}

void RadixTree::Impl::add_published(Id id, ComponentKind c, Tier t, bool tells) {
  Node& n = node(id);
  n.present = static_cast<Bits>(n.present | bit_of(c, t));
  const std::int64_t units = n.units(c);
  tally(n, c, t, {.resident = units, .locked = n.lock_count(c, t) != 0 || n.is_covered() ? units : 0});
  backlog.came(id, bit_of(c, t));
  if (c == ComponentKind::kFull) {
    ++node(n.parent).full_children[tree::index_of(t)];
    refresh_leaf(n.parent);
  } else {
    n.aux_tick[aux_of(c)][tree::index_of(t)] = tick;
    refresh_aux(id, c, t);
  }
  refresh_leaf(id);
  refresh_spares(id);
  if (tells) tell_came(id, c, t);
}

void RadixTree::Impl::tell_came(Id id, ComponentKind c, Tier t) {
  if (page_observer == nullptr || (t == Tier::kHost && defect(Defect::kHostNotTold))) return;
  page_observer->came(page_change(id, c, t));
}

void RadixTree::Impl::add_pending(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  assert(n.is_covered());  // put_under() comes first
  n.present = static_cast<Bits>(n.present | bit_of(c, t));
  n.pending = static_cast<Bits>(n.pending | bit_of(c, t));
  tally(n, c, t, {.pending = n.units(c)});
  if (c == ComponentKind::kFull) {
    ++node(n.parent).full_children[tree::index_of(t)];
    refresh_leaf(n.parent);
  }
}

void RadixTree::Impl::publish(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  const Bits bit = bit_of(c, t);
  if ((n.complete & bit) != 0) --waiting;
  n.pending = clear_bits(n.pending, bit);
  n.complete = clear_bits(n.complete, bit);
  const std::int64_t units = n.units(c);
  // Covered until now; recount_covered() corrects `locked`.
  tally(n, c, t, {.resident = units, .locked = units, .pending = -units});
  backlog.came(id, bit);
  if (c != ComponentKind::kFull) {
    n.aux_tick[aux_of(c)][tree::index_of(t)] = tick;  // that of finish_op()
    refresh_aux(id, c, t);
  }
  recount_covered(id, true);
  refresh_leaf(id);  // the other tier's heap may depend on this copy
  refresh_spares(id);
  tell_came(id, c, t);
}

void RadixTree::Impl::drop(Id id, ComponentKind c, Tier t, bool goes_with_tier) {
  Node& n = node(id);
  const Bits bit = bit_of(c, t);
  const std::int64_t units = n.units(c);
  const bool was_covered = n.is_covered();
  if ((n.pending & bit) != 0) {
    tally(n, c, t, {.pending = -units});
    if ((n.complete & bit) != 0) --waiting;
  } else {
    tally(n, c, t, {.resident = -units, .locked = n.lock_count(c, t) != 0 || was_covered ? -units : 0});
    const bool is_last = !n.has(bit_of(c, other_tier(t)));
    if (weighs && is_last && c == ComponentKind::kMamba) {
      stats.lost(hash_at_end(id), n.kind, uses_now(n), tick);
    }
    if (observer != nullptr && is_last) tell_lost(id, c, t);
    if (page_observer != nullptr) page_observer->went(page_change(id, c, t));
  }
  if (t == Tier::kDevice) n.left_host = clear_bits(n.left_host, bit_of(c, Tier::kHost));
  if (is_judging && n.has(bit_of(c, Tier::kDevice))) n.left_host |= bit;
  n.present = clear_bits(n.present, bit);
  n.pending = clear_bits(n.pending, bit);
  n.complete = clear_bits(n.complete, bit);
  backlog.went(id);
  if (c != ComponentKind::kFull) refresh_aux(id, c, t);
  give_back(c, t, {n.slot_data(c, t), n.units(c)});
  if (c == ComponentKind::kMamba) {
    n.state[tree::index_of(t)] = DeviceSlot::kNone;
  } else {
    release_slots(id, c, t);
  }
  recount_covered(id, was_covered);
  if (c == ComponentKind::kFull) {
    if (t == Tier::kHost) n.host_gap = false;
    if (t == Tier::kDevice) n.leaves_device = false;
    // As a leaf its parent's state leaves with all of the edge, so it is worth less by the byte.
    if (--node(n.parent).full_children[tree::index_of(t)] == 0 && weighs) set_state_place(n.parent, t);
    refresh_leaf(n.parent);
  }
  refresh_leaf(id);
  if (weighs && c == ComponentKind::kMamba && !goes_with_tier)
    refresh_leaf_key(id);  // full without it is no restore point
  refresh_spares(id);
}

void RadixTree::Impl::tell_lost(Id id, ComponentKind c, Tier t) {
  const Node& n = node(id);
  TreeChange change{NamespaceId(n.space), c, t, n.begin, n.end()};
  change.tokens = {n.tokens.data(), std::size_t{n.pages} * page_size};
  const bool is_known = (n.stored & bit_of(c, Tier::kHost)) != 0;
  (n.declined ? change.declined_epoch : change.stored_epoch) = is_known ? n.stored_epoch : 0;
  observer->lost(change, c == ComponentKind::kFull ? hash_at_begin(id) : hash_at_end(id));
}

PageChange RadixTree::Impl::page_change(Id id, ComponentKind c, Tier t) {
  const std::span<const PageKey> keys = page_keys(id);
  const Node& n = node(id);
  const std::size_t first = c == ComponentKind::kMamba ? keys.size() - 1 : 0;
  PageChange change{NamespaceId(n.space), c, t, keys.subspan(first), {}, {}};
  change.tokens = std::span(n.tokens.data(), std::size_t{n.pages} * page_size).subspan(first * page_size);
  if (first > 0) {
    change.before = keys[first - 1];
  } else if (n.begin > 0) {
    change.before = page_keys(n.parent).back();
  }
  return change;
}

void RadixTree::Impl::tell_pages(PageObserver& to) {
  for (const Space& space : spaces) {
    if (space.root == kNoNode) continue;
    for (Id id = next_in_space(nodes, space.root); id != kNoNode; id = next_in_space(nodes, id)) {
      for (const ComponentKind c : kAllComponents) {
        for (const Tier t : kAllTiers) {
          if (node(id).has(bit_of(c, t))) to.came(page_change(id, c, t));
        }
      }
    }
  }
}

void RadixTree::Impl::drop_tier(Id id, Tier t) {
  const bool had_state = (node(id).present & bit_of(ComponentKind::kMamba, t)) != 0;
  // Full last: state and window of a tier stand on it.
  for (const ComponentKind c : {ComponentKind::kMamba, ComponentKind::kSwa, ComponentKind::kFull}) {
    if ((node(id).present & bit_of(c, t)) != 0) drop(id, c, t, true);
  }
  if (weighs && had_state) refresh_leaf_key(id);  // of the other tier, if it is there
}

void RadixTree::Impl::recount_covered(Id id, bool was_covered) {
  Node& n = node(id);
  const bool is_covered = n.is_covered();
  if (was_covered == is_covered) return;
  is_covered ? ++claims_of(n) : --claims_of(n);
  for (const ComponentKind c : kAllComponents) {
    for (const Tier t : kAllTiers) {
      if (!n.has(bit_of(c, t)) || n.lock_count(c, t) != 0) continue;
      const std::int64_t units = n.units(c);
      tally(n, c, t, {.locked = is_covered ? units : -units});
    }
  }
  refresh_leaf(id);
  refresh_aux(id);
}

bool RadixTree::Impl::is_aux_victim(const Node& n, ComponentKind c, Tier t) const {
  return n.has(bit_of(c, t)) && (n.lock_count(c, t) == 0 || defect(Defect::kEvictsLocked)) && !n.is_covered();
}

// Like a leaf that is let go: it comes back to the place that its last use gives it.
void RadixTree::Impl::refresh_aux(Id id, ComponentKind c, Tier t) {
  const Node& n = node(id);
  const bool is_there = n.heap_at[aux_place(c, t)] != kNotInHeap;
  if (is_aux_victim(n, c, t) == is_there) return;
  is_there ? aux_heap(c, t).remove(id) : push_victim(aux_heap(c, t), id, c, t);
}

void RadixTree::Impl::refresh_aux(Id id) {
  constexpr Bits kAuxBits = kSwaDevice | kSwaHost | kMambaBits;
  if ((node(id).present & kAuxBits) == 0) return;  // drop() has taken it out of its heaps
  for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
    for (const Tier t : kAllTiers) refresh_aux(id, c, t);
  }
}

void RadixTree::Impl::set_aux_tick(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  n.aux_tick[aux_of(c)][tree::index_of(t)] = tick;
  if (n.heap_at[aux_place(c, t)] != kNotInHeap) update_victim(aux_heap(c, t), id, c, t);
}

std::uint64_t RadixTree::Impl::last_use(const Node& n, ComponentKind c, Tier t) const {
  return c == ComponentKind::kFull ? n.full_tick : n.aux_tick[aux_of(c)][tree::index_of(t)];
}

Facts RadixTree::Impl::facts(const Node& n, ComponentKind c, Tier t) const {
  Facts all = plain_facts(n, c, t);
  if (weighs) weigh(n, all);
  return all;
}

Facts RadixTree::Impl::plain_facts(const Node& n, ComponentKind c, Tier t) const {
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
void RadixTree::Impl::weigh(const Node& n, Facts& f) const {
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
  f.uses = uses_now(n);
  const bool is_leaf = n.full_children[tree::index_of(f.tier)] == 0;
  const auto tier = tree::index_of(f.tier);
  std::uint64_t pages = f.component == ComponentKind::kFull || is_leaf ? n.pages : 0;
  bool goes_along = pages > 0;  // what nothing else stands on, up to the checkpoint above
  Id above = n.parent;
  for (int i = 0; i < kMostNodes && !node(above).is_root() && (node(above).present & kMambaBits) == 0; ++i) {
    goes_along = goes_along && node(above).full_children[tier] <= 1;
    if (goes_along) pages += node(above).pages;
    above = node(above).parent;
  }
  std::uint64_t leaves = pages * config.slot_bytes[index_of(ComponentKind::kFull)];
  if (has_state) leaves += config.slot_bytes[index_of(ComponentKind::kMamba)];
  const std::uint64_t saved = (n.end() - node(above).end()) * config.slot_bytes[index_of(ComponentKind::kFull)];
  // Signed: one instruction makes a double of it.
  const auto number = [](std::uint64_t bytes) { return static_cast<double>(static_cast<std::int64_t>(bytes)); };
  f.gain = number(saved) / number(std::max<std::uint64_t>(leaves, 1));
}

bool RadixTree::Impl::is_spare(const Node& n, ComponentKind c, Tier t) const {
  if (!config.is_exclusive || t != Tier::kHost || n.leaves_device) return false;
  if (c != ComponentKind::kFull) return n.has(bit_of(c, Tier::kDevice));
  for (const ComponentKind with : kAllComponents) {
    if (n.has(bit_of(with, Tier::kHost)) && !n.has(bit_of(with, Tier::kDevice))) return false;
  }
  return true;
}

// Of what the device has, too, the newest goes first, and of one path the beginning: the device will let go of it last.
RadixTree::Impl::Place RadixTree::Impl::place_of(const Node& n, ComponentKind c, Tier t) const {
  if (is_spare(n, c, t)) return {kSpareQueue, {~last_use(n, c, t), n.end()}};
  const Facts known = facts(n, c, t);
  return {weighs || chooses ? order->queue(known) : std::uint8_t{0}, order->key(known)};
}

void RadixTree::Impl::push_victim(VictimQueues& victims, Id id, ComponentKind c, Tier t) {
  const Place place = place_of(node(id), c, t);
  victims.push(id, place.queue, place.key);
}

void RadixTree::Impl::update_victim(VictimQueues& victims, Id id, ComponentKind c, Tier t) {
  const Place place = place_of(node(id), c, t);
  victims.update(id, place.queue, place.key);
}

double RadixTree::Impl::worth_of(std::uint8_t queue, std::uint64_t last_use, Tier t) const {
  if (queue == kSpareQueue) return -1;
  if (chooses) return order->worth_when(duel.ahead(), queue);
  if (!weighs) return 0;
  const std::uint64_t tier_pages = counts[index_of(ComponentKind::kFull)][tree::index_of(t)].resident;
  return order->worth(queue, {tick - std::min(tick, last_use), tier_pages * page_size}, stats);
}

void RadixTree::Impl::worths_of(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses, Tier t,
                                std::span<double> out) const {
  if (!weighs) {
    for (std::size_t i = 0; i < queues.size(); ++i) out[i] = worth_of(queues[i], last_uses[i], t);
    return;
  }
  const std::uint64_t tier_pages = counts[index_of(ComponentKind::kFull)][tree::index_of(t)].resident;
  order->worths(queues, last_uses, {tick, tier_pages * page_size}, stats, out);
  for (std::size_t i = 0; config.is_exclusive && i < queues.size(); ++i) {
    if (queues[i] == kSpareQueue) out[i] = -1;
  }
}

void RadixTree::Impl::tally(const Node& n, ComponentKind c, Tier t, const TierCountsChange& by) {
  counts[index_of(c)][tree::index_of(t)] += by;
  tenants.count(tenant_of(n), c, t, by);
}

void RadixTree::Impl::settle_standings() {
  for (const TenantId id : tenants.changed()) {
    const auto set = [&](VictimQueues& victims, ComponentKind c, Tier t) {
      victims.set_standing(id, tenants.standing(id, TenantBook::budget_of(c, t)));
    };
    set(device_backed, ComponentKind::kFull, Tier::kDevice);
    set(device_unbacked, ComponentKind::kFull, Tier::kDevice);
    set(host_full, ComponentKind::kFull, Tier::kHost);
    for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
      for (const Tier t : kAllTiers) set(aux_heap(c, t), c, t);
    }
  }
  tenants.forget_changed();
}

VictimQueues::First RadixTree::Impl::first_victim(VictimQueues& victims, ComponentKind c, Tier t, const EvictFor& who) {
  if (!tenants.changed().empty()) settle_standings();
  const auto worths = [&](std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses,
                          std::span<double> out) { worths_of(queues, last_uses, t, out); };
  const bool own_first = tenants.exceeds(who, TenantBook::budget_of(c, t));
  if (!weighs) return victims.first(worths, who, own_first);
  const VictimQueues::Question question{
      .tick = tick,
      .tier_pages = counts[index_of(ComponentKind::kFull)][tree::index_of(t)].resident,
      .changes_of_chances = stats.changes_of_chances(),
      .who = who.tenant,
      .breaks_floors = who.breaks_floors,
      .own_first = own_first};
  if (const auto known = victims.known_first(question)) return *known;
  // What came above it may have lessened the worth of data that nobody touches: now and then one first is looked at.
  constexpr std::uint32_t kVictimsForALook = 16;
  const Id other = ++victims_asked % kVictimsForALook == 0 ? victims.next_to_check() : kNoNode;
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
bool RadixTree::Impl::is_device_leaf(const Node& n) const {
  return n.has(kFullDevice) && n.full_children[0] == 0 && !n.claimed(Tier::kDevice) && !n.is_covered() &&
         (n.has(kFullHost) || !n.claimed(Tier::kHost));
}

// Beneath what the device has, too, the host may have gaps where tiers are exclusive.
bool RadixTree::Impl::may_leave_host(const Node& n) const {
  return n.has(kFullHost) && (n.full_children[1] == 0 || is_spare(n, ComponentKind::kFull, Tier::kHost)) &&
         !n.claimed(Tier::kHost) && !n.is_covered() && (n.has(kFullDevice) || !n.claimed(Tier::kDevice));
}

void RadixTree::Impl::refresh_leaf(Id id) {
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

void RadixTree::Impl::set_state_place(Id id, Tier t) {
  if (node(id).heap_at[aux_place(ComponentKind::kMamba, t)] == kNotInHeap) return;
  update_victim(aux_heap(ComponentKind::kMamba, t), id, ComponentKind::kMamba, t);
}

void RadixTree::Impl::set_leaves_device(Id id, bool leaves) {
  if (!config.is_exclusive || node(id).leaves_device == leaves) return;
  node(id).leaves_device = leaves;
  refresh_spares(id);
}

void RadixTree::Impl::refresh_spares(Id id) {
  if (!config.is_exclusive) return;
  refresh_leaf(id);
  const Node& n = node(id);
  if (n.heap_at[1] != kNotInHeap) update_victim(host_full, id, ComponentKind::kFull, Tier::kHost);
  for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
    if (n.heap_at[aux_place(c, Tier::kHost)] != kNotInHeap) update_victim(aux_heap(c, Tier::kHost), id, c, Tier::kHost);
  }
}

void RadixTree::Impl::refresh_leaf_key(Id id) {
  const Node& n = node(id);
  if (n.heap_at[0] != kNotInHeap) {
    update_victim(n.in_backed_heap ? device_backed : device_unbacked, id, ComponentKind::kFull, Tier::kDevice);
  }
  if (n.heap_at[1] != kNotInHeap) update_victim(host_full, id, ComponentKind::kFull, Tier::kHost);
}

}  // namespace larder
