// SPDX-License-Identifier: Apache-2.0
#include "controller/device_room.h"

#include <algorithm>
#include <string>

#include "base/probe.h"
#include "tree/tree_backlog.h"

namespace larder {

namespace {
// How often room is refused to one request in its life so that storage can take what would go.
constexpr std::uint32_t kMostStoreWaits = 128;
// Copies of victims that are begun for one request before it gets room. A tenant at its ceiling of the host loses
// copies there for those that come: without a limit, two that are next to leave the device could take each other's
// place for ever.
constexpr std::uint32_t kMostCopyWaits = 16;
// The same where a host that is full takes copies for storage alone, which it would evict before all others: it has
// room again whenever storage has taken some.
constexpr std::uint32_t kMostCopyWaitsForStorage = 128;
constexpr std::uint64_t kRoomPart = 32;  // a host with less than this part free counts as full, see gentle_rule()

bool is_copied_to_host(const NodeView& node) {
  return std::find(node.host_pending.begin(), node.host_pending.end(), true) != node.host_pending.end();
}
}  // namespace

DeviceRoom::DeviceRoom(const CacheConfig& config, const Parts& parts)
    : config_(config),
      model_(parts.model),
      device_(parts.device),
      host_(parts.host),
      tree_(parts.tree),
      ops_(parts.ops),
      backlog_(parts.backlog),
      host_room_(parts.host_room),
      prefetcher_(parts.prefetcher),
      backups_(parts.backups),
      events_(parts.events),
      clock_(parts.clock),
      counters_(parts.counters),
      metrics_(parts.metrics) {}

Status DeviceRoom::make_all(RequestId starts, RoomSeeker& seeker, const ComponentCounts& counts, bool others_run) {
  const EvictFor who{.tenant = seeker.tenant, .breaks_floors = !others_run};
  for (const ComponentKind c : kAllComponents) {  // before anything is evicted for a component that does fit
    const auto could = [&] { return could_make(c, counts[index_of(c)], who); };
    if (!could()) prefetcher_.drop_unwanted(false);
    if (!could() && !prefetcher_.yields_device(starts, could)) {
      const bool is_withheld = tree_.tenants().withheld(TenantBook::budget_of(c, Tier::kDevice), who) > 0;
      return overloaded("the device has no room for " + std::to_string(counts[index_of(c)]) + " slots of " +
                        std::string(component_name(c)) + " now: the rest is in use" +
                        (is_withheld ? ", or below the floors of tenants" : ""));
    }
  }
  for (const ComponentKind c : kAllComponents) {
    LARDER_RETURN_IF_ERROR(make(seeker, c, counts[index_of(c)], true, who.breaks_floors));
  }
  return Status::ok();
}

EvictResult DeviceRoom::evict(ComponentKind c, std::uint32_t slots, VictimRule rule, const EvictFor& who) {
  const TimePoint begun = clock_.now();
  EvictResult evicted = tree_.evict_device(c, slots, rule, who);
  const std::uint64_t tokens = c == ComponentKind::kFull ? evicted.freed * model_.page_size : 0;
  if (evicted.freed > 0) metrics_.evicted(tokens, clock_.now() - begun);
  if (evicted.freed > 0) probe(Probe::kEvictedToHost);
  counters_.floors_broken += evicted.from_floors;
  return evicted;
}

bool DeviceRoom::could_make(ComponentKind c, std::uint32_t count, const EvictFor& who) const {
  const std::uint64_t withheld = tree_.tenants().withheld(TenantBook::budget_of(c, Tier::kDevice), who);
  return count + withheld <= device_.free_slots(c) + tree_.counts(c, Tier::kDevice).evictable();
}

Status DeviceRoom::make_room(RoomSeeker& who, ComponentKind c, std::uint32_t count, bool may_wait) {
  return make(who, c, count, may_wait, true);
}

Status DeviceRoom::make(RoomSeeker& seeker, ComponentKind c, std::uint32_t count, bool may_wait, bool breaks_floors) {
  const auto missing = [&] {
    const std::uint32_t free = device_.free_slots(c);
    return count > free ? count - free : 0u;
  };
  if (missing() == 0) return Status::ok();
  const auto no_room = [&] {
    return overloaded("the device has no room for " + std::to_string(count) + " slots of " +
                      std::string(component_name(c)) + " now");
  };
  const EvictFor who{.tenant = seeker.tenant, .breaks_floors = breaks_floors, .coming = count};
  const auto could = [&] { return could_make(c, count, who); };
  if (!could()) prefetcher_.drop_unwanted(false);
  if (!could() && !prefetcher_.yields_device(std::nullopt, could)) return no_room();
  // write_through_selective has copied what it wants to keep, and lets go of the rest. With exclusive tiers pages get
  // their copies only when they leave, also under that policy.
  const bool copies_late = config_.exclusive_tiers || config_.write_policy != WritePolicy::kWriteThroughSelective;
  if (backups_.keeps(c) && copies_late) {
    note_what_storage_wants();
    const EvictResult gentle = evict(c, missing(), gentle_rule(c), who.within_floors());
    const std::uint32_t most_waits = has_tenants() ? kMostCopyWaits : kMostCopyWaitsForStorage;
    const bool may_wait_again = may_wait && seeker.copy_waits < most_waits;
    if (missing() > 0 && may_wait_again && waits_for_copies(seeker, c, gentle.needs_backup)) return no_room();
  }
  if (missing() > 0) drop_victims(c, who, missing);
  if (missing() > 0) return no_room();
  seeker.copy_waits = 0;
  return Status::ok();
}

template <class Missing>
void DeviceRoom::drop_victims(ComponentKind c, const EvictFor& who, Missing missing) {
  const EvictFor keeps_floors = who.within_floors();
  (void)evict(c, missing(), VictimRule::kDrop, keeps_floors);
  if (missing() > 0 && ops_.places().abandoned(OpKind::kStore) > 0) {
    // Pages without a host copy stay while beneath them is what a storage that was detached still writes.
    backlog_.unlock_abandoned();
    (void)evict(c, missing(), VictimRule::kDrop, keeps_floors);
  }
  if (missing() > 0) {
    // So do those that stand above what a queued request keeps on the host. It starts when others have ended.
    prefetcher_.drop_holds();
    (void)evict(c, missing(), VictimRule::kDrop, keeps_floors);
  }
  if (missing() > 0) {
    // And those that what is being fetched continues on the host. Nobody waits for it, so it holds nobody up.
    prefetcher_.drop_unwanted(true);
    (void)evict(c, missing(), VictimRule::kDrop, keeps_floors);
  }
  if (missing() > 0 && tree_.tenants().withheld(TenantBook::budget_of(c, Tier::kDevice), keeps_floors) > 0 &&
      who.breaks_floors) {
    (void)evict(c, missing(), VictimRule::kDrop, who);
  }
}

// After a copy that failed, one round goes without: a device that cannot copy must still compute.
bool DeviceRoom::waits_for_copies(RoomSeeker& seeker, ComponentKind c, const std::vector<NodeId>& victims) {
  if (backups_.take_failure()) return false;
  std::set<NodeId>& leaving = leaving_[index_of(c)];
  if (!are_copied(leaving) && back_up(seeker, c, victims)) return true;
  return are_copied(leaving);
}

// Begins the copies of victims. True: what would make room for them on the host has yet to be stored, and that is
// waited for.
bool DeviceRoom::back_up(RoomSeeker& seeker, ComponentKind c, const std::vector<NodeId>& victims) {
  const Backups::Begun begun = backups_.of_victims(victims, seeker.store_waits < kMostStoreWaits);
  if (begun.copies) {
    for (const NodeId at : victims) note_copied_path(at, leaving_[index_of(c)]);
    // Whoever asks: the victims may be those of a tenant with limits.
    const bool is_for_storage = backlog_.takes_soon() && gentle_rule(c) == VictimRule::kBackUpWorth;
    seeker.copy_waits += has_tenants() || is_for_storage ? 1 : 0;
  }
  seeker.store_waits += begun.waits_for_stores ? 1 : 0;
  return begun.waits_for_stores;
}

// With each victim the path to it is copied, and can leave after it.
void DeviceRoom::note_copied_path(NodeId at, std::set<NodeId>& out) const {
  for (NodeView view = tree_.view(at); view.end != 0; at = view.parent, view = tree_.view(at)) {
    if (is_copied_to_host(view)) {
      out.insert(at);
    } else if (!view.host[0].empty()) {
      break;
    }
  }
}

// Forgets those of which the copies have ended.
bool DeviceRoom::are_copied(std::set<NodeId>& nodes) const {
  std::erase_if(nodes, [&](NodeId at) { return !is_copied_to_host(tree_.view(at)); });
  return !nodes.empty();
}

// What requests that let go have handed over is copied, too, and can leave after that.
bool DeviceRoom::is_room_coming(ComponentKind c) {
  return host_room_.do_copies_wait() || are_copied(leaving_[index_of(c)]) || are_copied(handed_over_);
}

// Does the host have room for copies, or does it have to evict for them? Where restore points are weighed, a little
// room is soon taken by something that is worth more. Other orders hit less with that rule (tests/cache_slow).
VictimRule DeviceRoom::gentle_rule(ComponentKind c) const {
  const std::uint64_t per_slot = host_->blocks_per_slot(c);  // 0: it has markers alone
  const std::uint64_t all = per_slot == 0 ? host_->total().markers : host_->total().blocks / per_slot;
  const std::uint64_t least = tree_.weighs() ? all / kRoomPart : 1;
  ComponentCounts some{};
  some[index_of(c)] = static_cast<std::uint32_t>(std::max<std::uint64_t>(least, 1));
  return host_->shortage(some).is_none() ? VictimRule::kBackUpFirst : VictimRule::kBackUpWorth;
}

void DeviceRoom::note_what_storage_wants() {
  std::array<bool, kComponentCount> wanted{};
  const bool takes = backlog_.takes_soon();
  for (const ComponentKind c : kAllComponents) wanted[index_of(c)] = takes && backups_.keeps(c);
  tree_.backlog().set_wanted(wanted);
}

void DeviceRoom::path_let_go(NodeId node) {
  if (host_ == nullptr) return;
  (void)are_copied(handed_over_);
  note_copied_path(node, handed_over_);
}

std::size_t DeviceRoom::nodes_awaited() const {
  std::size_t nodes = handed_over_.size();
  for (const auto& leaving : leaving_) nodes += leaving.size();
  return nodes;
}

void DeviceRoom::give_back_all(ComponentKind c, std::span<const DeviceSlot> slots) {
  for (const DeviceSlot slot : slots) {
    if (device_.free(c, slot).is_ok()) {
      events_.freed(c, slot);
    } else {
      ++counters_.internal_errors;
    }
  }
}

void DeviceRoom::let_go(ComponentKind c, std::span<const DeviceSlot> slots) {
  if (keeper_ == nullptr) return give_back_all(c, slots);
  for (const DeviceSlot slot : slots) keeper_->keep(c, slot);
}

// Slots of the request that the tree has no use for are still its own business while a step may touch them.
Result<InsertResult> DeviceRoom::extend(LockHandle& held, const ExtendRequest& request, StepLedger* keeper) {
  keeper_ = keeper;
  Result<InsertResult> inserted = tree_.extend(held, request);
  keeper_ = nullptr;
  return inserted;
}

}  // namespace larder
