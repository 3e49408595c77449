// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_check.h"

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace larder::tree {
namespace {

std::string_view tier_name(Tier t) { return t == Tier::kDevice ? "device" : "host"; }

Status broken(const char* invariant, Id id, const std::string& what) {
  return internal_error(std::string(invariant) + ", node " + std::to_string(id) + ": " + what);
}

std::string numbers(std::uint64_t have, std::uint64_t want) {
  return std::to_string(have) + " instead of " + std::to_string(want);
}

}  // namespace

// Sums over all nodes, and what has been seen. One pass fills it; the end compares it with the tree's own counters.
struct TreeCheck::Census {
  struct Lists {
    std::uint64_t aux[kAuxCount][kTierCount] = {};
    std::uint64_t device_backed = 0, device_unbacked = 0, host = 0;
  };
  TierCounts counts[kComponentCount][kTierCount] = {};
  std::unordered_set<std::uint32_t> slots[kComponentCount][kTierCount];
  Lists expected;
  std::uint64_t nodes = 0, links = 0, waiting = 0;
  std::vector<std::uint64_t> claims;  // by namespace
  // By tenant, of each component and tier.
  std::vector<std::array<std::array<TierCounts, kTierCount>, kComponentCount>> tenants;
};

// Parent, edge, children, child table: I9 and the shape of the tree.
Status TreeCheck::check_shape(Id id) const {
  const Node& n = node(id);
  std::array<std::uint32_t, kTierCount> full_children{};
  std::uint64_t child_locks = 0;
  for (Id at = n.first_child, before = kNoNode; at != kNoNode; before = at, at = node(at).next_sibling) {
    const Node& child = node(at);
    if (!state_.nodes.exists(at) || child.parent != id || child.prev_sibling != before || child.is_root()) {
      return broken("links", at, "is no proper child of " + std::to_string(id));
    }
    if (child.begin != n.end()) return broken("edges", at, "begins at " + numbers(child.begin, n.end()));
    if (child.space != n.space) return broken("namespaces", at, "differs from its parent's");
    if (matcher_.find_child(id, child.tokens.data()) != at) return broken("I9", at, "is not found by its first page");
    if (child.edge_hash != edge_hash(id, child.tokens.data(), state_.page_size)) return broken("I9", at, "stale hash");
    full_children[0] += (child.present & kFullDevice) != 0;
    full_children[1] += (child.present & kFullHost) != 0;
    child_locks += child.lock_count(ComponentKind::kFull, Tier::kDevice);
  }
  if (full_children != n.full_children) return broken("I6", id, "full_children are wrong");
  if (n.own_locks > n.lock_count(ComponentKind::kFull, Tier::kHost)) return broken("locks", id, "of own pages");
  if (!n.is_root() && n.lock_count(ComponentKind::kFull, Tier::kDevice) < child_locks) {
    return broken("I5", id, "full lock " + numbers(n.lock_count(ComponentKind::kFull, Tier::kDevice), child_locks));
  }
  return Status::ok();
}

// I1 to I4: what stands on what.
Status TreeCheck::check_residency(Id id) const {
  const Node& n = node(id);
  const Node& parent = node(n.parent);
  if ((n.pending & ~n.present) != 0 || (n.complete & ~n.pending) != 0) return broken("bits", id, "not nested");
  if (n.has(kFullDevice) && !parent.is_root() && !parent.has(kFullDevice)) {
    return broken("I1", id, "full on the device, its parent's is not");
  }
  if (n.has(kFullHost) && !parent.is_root() && !parent.has(kFullHost) && !state_.config.allow_host_gaps &&
      !n.host_gap) {
    return broken("I2", id, "full on the host, its parent's is not");
  }
  for (const Tier t : kAllTiers) {
    const bool has_full = n.has(bit_of(ComponentKind::kFull, t));
    for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
      if (n.has(bit_of(c, t)) && !has_full) return broken("I3", id, std::string(component_name(c)) + " without full");
    }
  }
  if (!n.has_some(kFullDevice | kFullHost)) return broken("I4", id, "no full data in any tier");
  for (const ComponentKind c : kAllComponents) {
    for (const Tier t : kAllTiers) {
      if ((n.complete & bit_of(c, t)) != 0 && operations_.readiness(n, c, t) != Operations::Readiness::kWait) {
        return broken("waiting", id, "a complete copy waits for nothing");
      }
    }
  }
  return Status::ok();
}

bool TreeCheck::is_overrated(const VictimQueues& victims, Id id, ComponentKind c, Tier t) const {
  const std::uint8_t queue = victims_.place_of(node(id), c, t).queue;
  if (!state_.weighs) return queue != victims.queue_of(id);
  const std::uint64_t last_use = victims.key_of(id).major;
  return victims_.worth_of(queue, last_use, t) <= 0 && victims_.worth_of(victims.queue_of(id), last_use, t) > 0;
}

// I6: leaves and lists, seen from the node.
Status TreeCheck::check_queues(Id id, Census& census) const {
  const Node& n = node(id);
  if (victims_.is_device_leaf(n) != (n.heap_at[0] != kNotInHeap))
    return broken("I6", id, "wrong in the device leaf heaps");
  if (victims_.may_leave_host(n) != (n.heap_at[1] != kNotInHeap))
    return broken("I6", id, "wrong in the host leaf heap");
  if (victims_.is_device_leaf(n)) {
    if (n.in_backed_heap != n.has(kFullHost)) return broken("I6", id, "in the wrong device leaf heap");
    const VictimQueues& heap = n.in_backed_heap ? victims_.device_backed : victims_.device_unbacked;
    if (!heap.holds(id)) return broken("I6", id, "not where it says");
    if (heap.key_of(id) != victims_.place_of(n, ComponentKind::kFull, Tier::kDevice).key)
      return broken("I6", id, "has a stale key");
    if (is_overrated(heap, id, ComponentKind::kFull, Tier::kDevice)) return broken("I6", id, "waits above its worth");
    ++(n.in_backed_heap ? census.expected.device_backed : census.expected.device_unbacked);
  }
  if (victims_.may_leave_host(n)) {
    if (!victims_.host_full.holds(id)) return broken("I6", id, "not where it says in the host heap");
    if (victims_.host_full.key_of(id) != victims_.place_of(n, ComponentKind::kFull, Tier::kHost).key)
      return broken("I6", id, "has a stale key");
    if (is_overrated(victims_.host_full, id, ComponentKind::kFull, Tier::kHost)) {
      return broken("I6", id, "waits above its worth on the host");
    }
    ++census.expected.host;
  }
  for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
    for (const Tier t : kAllTiers) {
      const bool is_there = n.heap_at[aux_place(c, t)] != kNotInHeap;
      if (victims_.is_aux_victim(n, c, t) != is_there)
        return broken("I6", id, "wrong in the heap of windows or states");
      if (!is_there) continue;
      const VictimQueues& heap = victims_.aux_heaps[aux_of(c)][index_of(t)];
      if (!heap.holds(id)) return broken("I6", id, "not where it says in the heap of windows or states");
      if (heap.key_of(id) != victims_.place_of(n, c, t).key) return broken("I6", id, "has a stale key");
      if (is_overrated(heap, id, c, t)) return broken("I6", id, "has a window or state that waits above its worth");
      ++census.expected.aux[aux_of(c)][index_of(t)];
    }
  }
  return Status::ok();
}

// I7 and I8: counters and slots.
Status TreeCheck::count_node(Id id, Census& census) const {
  const Node& n = node(id);
  for (const ComponentKind c : kAllComponents) {
    for (const Tier t : kAllTiers) {
      const Bits bit = bit_of(c, t);
      if ((n.present & bit) == 0) continue;
      const bool is_pending = (n.pending & bit) != 0;
      const bool is_locked = !is_pending && (n.lock_count(c, t) != 0 || n.is_covered());
      const std::int64_t units = n.units(c);
      const TierCountsChange change{is_pending ? 0 : units, is_locked ? units : 0, is_pending ? units : 0};
      census.counts[index_of(c)][index_of(t)] += change;
      const TenantId tenant = state_.tenant_of(n);
      if (census.tenants.size() <= tenant.v) census.tenants.resize(tenant.v + std::size_t{1});
      census.tenants[tenant.v][index_of(c)][index_of(t)] += change;
      for (std::uint32_t i = 0; i < n.units(c); ++i) {
        const std::uint32_t slot = n.slot_data(c, t)[i];
        if (slot == DeviceSlot::kNone) return broken("slots", id, "an invalid slot is attached");
        if (!census.slots[index_of(c)][index_of(t)].insert(slot).second) {
          return broken("I8", id,
                        std::string(component_name(c)) + " slot " + std::to_string(slot) + " twice on the " +
                            std::string(tier_name(t)));
        }
      }
    }
  }
  census.waiting += static_cast<std::uint64_t>(__builtin_popcount(n.complete));
  state_.ops.for_each_of(id, [&](const OpRegistry::Link&) { ++census.links; });
  ++census.nodes;
  return Status::ok();
}

Status TreeCheck::check_lists(const Census& census) const {
  for (const ComponentKind c : {ComponentKind::kSwa, ComponentKind::kMamba}) {
    for (const Tier t : kAllTiers) {
      const VictimQueues& heap = victims_.aux_heaps[aux_of(c)][index_of(t)];
      const std::uint64_t expected = census.expected.aux[aux_of(c)][index_of(t)];
      if (!heap.is_sound() || heap.size() != expected) {
        return broken("I6", 0, "a heap of windows or states has " + numbers(heap.size(), expected));
      }
    }
  }
  const bool heaps_hold = victims_.device_backed.is_sound() && victims_.device_unbacked.is_sound() &&
                          victims_.host_full.is_sound() &&
                          victims_.device_backed.size() == census.expected.device_backed &&
                          victims_.device_unbacked.size() == census.expected.device_unbacked &&
                          victims_.host_full.size() == census.expected.host;
  return heaps_hold ? Status::ok() : broken("I6", 0, "a leaf heap is out of order or has strangers");
}

// I12: what tenants hold, and where their queues stand.
Status TreeCheck::check_tenants(const Census& census) const {
  const std::array<const VictimQueues*, 3> leaves = {&victims_.device_backed, &victims_.device_unbacked,
                                                     &victims_.host_full};
  for (std::uint32_t i = 1; state_.tenants.is_known(TenantId(i)); ++i) {
    const TenantId id(i);
    for (const ComponentKind c : kAllComponents) {
      for (const Tier t : kAllTiers) {
        const TierCounts want = i < census.tenants.size() ? census.tenants[i][index_of(c)][index_of(t)] : TierCounts{};
        if (state_.tenants.counts(id, c, t) == want) continue;
        return broken("I12", 0,
                      "tenant " + std::to_string(i) + " holds " +
                          std::to_string(state_.tenants.counts(id, c, t).held()) + " of " +
                          std::string(component_name(c)) + " on the " + std::string(tier_name(t)) +
                          ", and in the tree is " + std::to_string(want.held()));
      }
    }
    if (state_.tenants.has_changed(id)) continue;
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      const Tier t = k < 2 ? Tier::kDevice : Tier::kHost;
      if (leaves[k]->standing_of(id) != state_.tenants.standing(id, TenantBook::budget_of(ComponentKind::kFull, t))) {
        return broken("I12", 0, "leaves of tenant " + std::to_string(i) + " stand elsewhere");
      }
    }
  }
  return state_.tenants.check();
}

Status TreeCheck::check_totals(const Census& census) const {
  for (const ComponentKind c : kAllComponents) {
    for (const Tier t : kAllTiers) {
      const TierCounts& have = state_.counts[index_of(c)][index_of(t)];
      const TierCounts& want = census.counts[index_of(c)][index_of(t)];
      const std::string where = std::string(component_name(c)) + " on the " + std::string(tier_name(t)) + ": ";
      if (have.resident != want.resident)
        return broken("I7", 0, where + "resident " + numbers(have.resident, want.resident));
      if (have.locked != want.locked) return broken("I7", 0, where + "locked " + numbers(have.locked, want.locked));
      if (have.pending != want.pending)
        return broken("I7", 0, where + "pending " + numbers(have.pending, want.pending));
    }
  }
  if (census.nodes + state_.open_spaces() != state_.nodes.live()) return broken("nodes", 0, "some are not reachable");
  if (census.nodes != state_.table.size())
    return broken("I9", 0, "child table has " + numbers(state_.table.size(), census.nodes));
  if (census.links != state_.ops.link_count())
    return broken("ops", 0, "links " + numbers(state_.ops.link_count(), census.links));
  if (census.waiting != state_.waiting) return broken("waiting", 0, numbers(state_.waiting, census.waiting));
  for (std::size_t i = 0; i < state_.spaces.size(); ++i) {
    if (state_.spaces[i].claims != census.claims[i]) {
      return broken("I11", state_.spaces[i].root, "claims " + numbers(state_.spaces[i].claims, census.claims[i]));
    }
  }
  return Status::ok();
}

Status TreeCheck::check_invariants() const {
  Census census;
  census.claims.resize(state_.spaces.size());
  for (Id id = 0; id < state_.nodes.end_id(); ++id) {
    if (!state_.nodes.exists(id)) continue;
    LARDER_RETURN_IF_ERROR(check_shape(id));
    census.claims[node(id).space] += node(id).lock_sum() + (node(id).is_covered() ? 1 : 0);
    if (node(id).is_root()) {
      state_.ops.for_each_of(id, [&](const OpRegistry::Link&) { ++census.links; });
      continue;
    }
    LARDER_RETURN_IF_ERROR(check_residency(id));
    LARDER_RETURN_IF_ERROR(check_queues(id, census));
    LARDER_RETURN_IF_ERROR(count_node(id, census));
  }
  LARDER_RETURN_IF_ERROR(check_lists(census));
  LARDER_RETURN_IF_ERROR(state_.backlog.check());
  LARDER_RETURN_IF_ERROR(check_tenants(census));
  return check_totals(census);
}

}  // namespace larder::tree
