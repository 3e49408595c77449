// SPDX-License-Identifier: Apache-2.0
#include "tree/residency.h"

#include <cassert>
#include <utility>
#include <vector>

#include "base/defect.h"

namespace larder::tree {
namespace {

// Slots are kept as plain numbers inside, so that both tiers share their code; at the border they get their type back.
static_assert(sizeof(DeviceSlot) == sizeof(std::uint32_t) && sizeof(HostSlot) == sizeof(std::uint32_t));

template <class Slot>
std::span<const Slot> typed(std::span<const std::uint32_t> slots) {
  return {reinterpret_cast<const Slot*>(slots.data()), slots.size()};
}

}  // namespace

void Residency::give_back(ComponentKind c, Tier t, std::span<const std::uint32_t> slots) {
  if (slots.empty()) return;
  if (t == Tier::kDevice) {
    sink_.free_device(c, typed<DeviceSlot>(slots));
  } else {
    sink_.free_host(c, typed<HostSlot>(slots));
  }
}

void Residency::give_back_duplicates(ComponentKind c, Tier t, std::span<const std::uint32_t> given,
                                     const std::uint32_t* own) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= given.size(); ++i) {
    if (i < given.size() && given[i] != own[i]) continue;
    give_back(c, t, given.subspan(begin, i - begin));
    begin = i + 1;
  }
}

void Residency::set_slots(Id id, ComponentKind c, Tier t, SlotRun run) {
  if (c == ComponentKind::kMamba) {
    node(id).state[index_of(t)] = *run.data();
  } else {
    run.add_used(node(id).pages);
    node(id).slots[index_of(c)][index_of(t)] = std::move(run);
  }
}

void Residency::add_published(Id id, ComponentKind c, Tier t, bool tells) {
  Node& n = node(id);
  n.present = static_cast<Bits>(n.present | bit_of(c, t));
  const std::int64_t units = n.units(c);
  state_.tally(n, c, t, {.resident = units, .locked = n.lock_count(c, t) != 0 || n.is_covered() ? units : 0});
  state_.backlog.came(id, bit_of(c, t));
  if (c == ComponentKind::kFull) {
    ++node(n.parent).full_children[index_of(t)];
    victims_.refresh_leaf(n.parent);
  } else {
    n.aux_tick[aux_of(c)][index_of(t)] = state_.tick;
    victims_.refresh_aux(id, c, t);
  }
  victims_.refresh_leaf(id);
  victims_.refresh_spares(id);
  if (tells) tell_came(id, c, t);
}

void Residency::tell_came(Id id, ComponentKind c, Tier t) {
  if (!is_told(id) || (t == Tier::kHost && defect(Defect::kHostNotTold))) return;
  page_observer_->came(page_change(id, c, t));
}

void Residency::add_pending(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  assert(n.is_covered());  // put_under() comes first
  n.present = static_cast<Bits>(n.present | bit_of(c, t));
  n.pending = static_cast<Bits>(n.pending | bit_of(c, t));
  state_.tally(n, c, t, {.pending = n.units(c)});
  if (c == ComponentKind::kFull) {
    ++node(n.parent).full_children[index_of(t)];
    victims_.refresh_leaf(n.parent);
  }
}

void Residency::publish(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  const Bits bit = bit_of(c, t);
  if ((n.complete & bit) != 0) --state_.waiting;
  n.pending = clear_bits(n.pending, bit);
  n.complete = clear_bits(n.complete, bit);
  const std::int64_t units = n.units(c);
  // Covered until now; recount_covered() corrects `locked`.
  state_.tally(n, c, t, {.resident = units, .locked = units, .pending = -units});
  state_.backlog.came(id, bit);
  if (c != ComponentKind::kFull) {
    n.aux_tick[aux_of(c)][index_of(t)] = state_.tick;  // that of finish_op()
    victims_.refresh_aux(id, c, t);
  }
  recount_covered(id, true);
  victims_.refresh_leaf(id);  // the other tier's heap may depend on this copy
  victims_.refresh_spares(id);
  tell_came(id, c, t);
}

void Residency::drop(Id id, ComponentKind c, Tier t, bool goes_with_tier) {
  Node& n = node(id);
  const Bits bit = bit_of(c, t);
  const std::int64_t units = n.units(c);
  const bool was_covered = n.is_covered();
  if ((n.pending & bit) != 0) {
    state_.tally(n, c, t, {.pending = -units});
    if ((n.complete & bit) != 0) --state_.waiting;
  } else {
    state_.tally(n, c, t, {.resident = -units, .locked = n.lock_count(c, t) != 0 || was_covered ? -units : 0});
    const bool is_last = !n.has(bit_of(c, other_tier(t)));
    if (state_.weighs && is_last && c == ComponentKind::kMamba) {
      state_.stats.lost(keys_.hash_at_end(id), n.kind, n.uses, state_.tick - state_.since_use(n));
    }
    if (observer_ != nullptr && is_last && !state_.spaces[n.space].is_retired) tell_lost(id, c, t);
    if (is_told(id)) page_observer_->went(page_change(id, c, t));
  }
  if (t == Tier::kDevice) n.left_host = clear_bits(n.left_host, bit_of(c, Tier::kHost));
  if (is_judging_ && n.has(bit_of(c, Tier::kDevice))) n.left_host |= bit;
  n.present = clear_bits(n.present, bit);
  n.pending = clear_bits(n.pending, bit);
  n.complete = clear_bits(n.complete, bit);
  state_.backlog.went(id);
  if (c != ComponentKind::kFull) victims_.refresh_aux(id, c, t);
  give_back(c, t, {n.slot_data(c, t), n.units(c)});
  if (c == ComponentKind::kMamba) {
    n.state[index_of(t)] = DeviceSlot::kNone;
  } else {
    release_slots(id, c, t);
  }
  recount_covered(id, was_covered);
  if (c == ComponentKind::kFull) {
    if (t == Tier::kHost) n.host_gap = false;
    if (t == Tier::kDevice) n.leaves_device = false;
    // As a leaf its parent's state leaves with all of the edge, so it is worth less by the byte.
    if (--node(n.parent).full_children[index_of(t)] == 0 && state_.weighs) victims_.set_state_place(n.parent, t);
    victims_.refresh_leaf(n.parent);
  }
  victims_.refresh_leaf(id);
  if (state_.weighs && c == ComponentKind::kMamba && !goes_with_tier)
    victims_.refresh_leaf_key(id);  // full without it is no restore point
  victims_.refresh_spares(id);
}

void Residency::tell_lost(Id id, ComponentKind c, Tier t) {
  const Node& n = node(id);
  TreeChange change{NamespaceId(n.space), c, t, n.begin, n.end()};
  change.tokens = {n.tokens.data(), std::size_t{n.pages} * state_.page_size};
  const bool is_known = (n.stored & bit_of(c, Tier::kHost)) != 0;
  (n.declined ? change.declined_epoch : change.stored_epoch) = is_known ? n.stored_epoch : 0;
  observer_->lost(change, c == ComponentKind::kFull ? keys_.hash_at_begin(id) : keys_.hash_at_end(id));
}

PageChange Residency::page_change(Id id, ComponentKind c, Tier t) {
  const std::span<const PageKey> keys = keys_.page_keys(id);
  const Node& n = node(id);
  const std::size_t first = c == ComponentKind::kMamba ? keys.size() - 1 : 0;
  PageChange change{NamespaceId(n.space), c, t, keys.subspan(first), {}, {}};
  change.tokens = std::span(n.tokens.data(), std::size_t{n.pages} * state_.page_size).subspan(first * state_.page_size);
  if (first > 0) {
    change.before = keys[first - 1];
  } else if (n.begin > 0) {
    change.before = keys_.page_keys(n.parent).back();
  }
  return change;
}

void Residency::tell_pages(PageObserver& to) {
  for (const Space& space : state_.spaces) {
    if (space.root == kNoNode || space.is_retired) continue;
    for (Id id = next_in_space(state_.nodes, space.root); id != kNoNode; id = next_in_space(state_.nodes, id)) {
      for (const ComponentKind c : kAllComponents) {
        for (const Tier t : kAllTiers) {
          if (node(id).has(bit_of(c, t))) to.came(page_change(id, c, t));
        }
      }
    }
  }
}

void Residency::retire(Space& space) {
  std::vector<Id> found;
  for (Id id = next_in_space(state_.nodes, space.root); id != kNoNode; id = next_in_space(state_.nodes, id))
    found.push_back(id);
  for (auto at = found.rbegin(); at != found.rend(); ++at) tell_retired(*at);  // children before parents
  space.is_retired = true;
  for (const Id id : found) state_.backlog.went(id);
}

void Residency::tell_retired(Id id) {
  for (const ComponentKind c : {ComponentKind::kMamba, ComponentKind::kSwa, ComponentKind::kFull}) {
    bool is_lost = false;
    for (const Tier t : kAllTiers) {
      if (!node(id).has(bit_of(c, t))) continue;
      if (observer_ != nullptr && !std::exchange(is_lost, true)) tell_lost(id, c, t);
      if (page_observer_ != nullptr) page_observer_->went(page_change(id, c, t));
    }
  }
}

void Residency::drop_tier(Id id, Tier t) {
  const bool had_state = (node(id).present & bit_of(ComponentKind::kMamba, t)) != 0;
  // Full last: state and window of a tier stand on it.
  for (const ComponentKind c : {ComponentKind::kMamba, ComponentKind::kSwa, ComponentKind::kFull}) {
    if ((node(id).present & bit_of(c, t)) != 0) drop(id, c, t, true);
  }
  if (state_.weighs && had_state) victims_.refresh_leaf_key(id);  // of the other tier, if it is there
}

void Residency::recount_covered(Id id, bool was_covered) {
  Node& n = node(id);
  const bool is_covered = n.is_covered();
  if (was_covered == is_covered) return;
  is_covered ? ++state_.claims_of(n) : --state_.claims_of(n);
  for (const ComponentKind c : kAllComponents) {
    for (const Tier t : kAllTiers) {
      if (!n.has(bit_of(c, t)) || n.lock_count(c, t) != 0) continue;
      const std::int64_t units = n.units(c);
      state_.tally(n, c, t, {.locked = is_covered ? units : -units});
    }
  }
  victims_.refresh_leaf(id);
  victims_.refresh_aux(id);
}

void Residency::release_slots(Id id, ComponentKind c, Tier t) {
  const auto run_of = [c, t](Node& at) -> SlotRun& { return at.slots[index_of(c)][index_of(t)]; };
  SlotRun& run = run_of(node(id));
  run.remove_used(node(id).pages);
  if (run.is_sparse()) state_.compact_ancestors(id, run_of, 1);
  run.reset();
}

}  // namespace larder::tree
