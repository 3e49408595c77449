// Making room on the device: who is evicted when it is full (step 7 of a prefix's life). On the host: host_room.h.
#include <algorithm>

#include "base/probe.h"
#include "controller/cache_impl.h"

namespace larder {

namespace {
// How often room is refused to one request in its life so that storage can take what would go: a storage that is slow
// costs some time, one that hangs costs next to none.
constexpr std::uint32_t kMostStoreWaits = 128;

bool is_copied_to_host(const NodeView& node) {
  return std::find(node.host_pending.begin(), node.host_pending.end(), true) != node.host_pending.end();
}
}  // namespace

bool CacheImpl::tier_keeps(ComponentKind c) const {
  if (!host_ || !config_.host_tier_for_full) return false;  // full is the backbone: without it nothing can follow
  return c != ComponentKind::kMamba || config_.host_tier_for_state;
}

Status CacheImpl::make_device_room(Request& r, const ComponentCounts& counts) {
  for (const ComponentKind c : kAllComponents) {  // before anything is evicted for a component that does fit
    if (!could_make_room(c, counts[index_of(c)])) {
      return overloaded("the device has no room for " + std::to_string(counts[index_of(c)]) + " slots of " +
                        std::string(component_name(c)) + " now: the rest is in use");
    }
  }
  for (const ComponentKind c : kAllComponents) {
    LARDER_RETURN_IF_ERROR(make_room(r.run.store_waits(), c, counts[index_of(c)], true));
  }
  return Status::ok();
}

EvictResult CacheImpl::evict_device(ComponentKind c, std::uint32_t slots, VictimRule rule) {
  const TimePoint begun = clock_.now();
  EvictResult evicted = tree_.evict_device(c, slots, rule);
  const std::uint64_t tokens = c == ComponentKind::kFull ? evicted.freed * page_size() : 0;
  if (evicted.freed > 0) metrics_.evicted(tokens, clock_.now() - begun);
  if (evicted.freed > 0) probe(Probe::kEvictedToHost);
  return evicted;
}

// Would evicting everything do? What is locked or covered now comes free in its own time.
bool CacheImpl::could_make_room(ComponentKind c, std::uint32_t count) const {
  return count <= device_.free_slots(c) + tree_.counts(c, Tier::kDevice).evictable();
}

// Victims leave in the order of the policy, so the device holds what it would hold without a host. One without a host
// copy gets it first, if the host wants it, and is waited for; if no copy can be made it is dropped: a full host tier
// must never stop the engine, nor keep the oldest pages on the device. Writes to storage keep host pages in place:
// while storage takes pages, they are waited for a little; a storage that hangs costs cached pages, not time.
Status CacheImpl::make_room(std::uint32_t& store_waits, ComponentKind c, std::uint32_t count, bool may_wait) {
  const auto missing = [&] {
    const std::uint32_t free = device_.free_slots(c);
    return count > free ? count - free : 0u;
  };
  if (missing() == 0) return Status::ok();
  const auto no_room = [&] {
    return overloaded("the device has no room for " + std::to_string(count) + " slots of " +
                      std::string(component_name(c)) + " now");
  };
  if (!could_make_room(c, count)) return no_room();
  // write_through_selective has copied what it wants to keep, and lets go of the rest.
  if (tier_keeps(c) && config_.write_policy != WritePolicy::kWriteThroughSelective) {
    const EvictResult gentle = evict_device(c, missing(), gentle_rule(c));
    if (missing() == 0) return Status::ok();
    // After a copy that failed, one round goes without: a device that cannot copy must still compute.
    if (may_wait && !std::exchange(backup_failed_, false)) {
      if (!are_copied(leaving_[index_of(c)]) && back_up_for_room(store_waits, c, gentle.needs_backup)) return no_room();
      if (are_copied(leaving_[index_of(c)])) return no_room();
    }
  }
  (void)evict_device(c, missing(), VictimRule::kDrop);
  if (missing() > 0 && ops_.abandoned(OpKind::kStore) > 0) {
    // Pages without a host copy stay while beneath them is what a storage that was detached still writes.
    backlog_.unlock_abandoned();
    (void)evict_device(c, missing(), VictimRule::kDrop);
  }
  if (missing() > 0) {
    // So do those that stand above what a queued request keeps on the host. It starts when others have ended.
    prefetcher_.drop_holds();
    (void)evict_device(c, missing(), VictimRule::kDrop);
  }
  return missing() == 0 ? Status::ok() : no_room();
}

// Begins the copies of victims. True: what would make room for them on the host has yet to be stored, and that is
// waited for.
bool CacheImpl::back_up_for_room(std::uint32_t& store_waits, ComponentKind c, const std::vector<NodeId>& victims) {
  const BackupStart begun = backup_victims(victims, store_waits < kMostStoreWaits);
  if (begun.copies) {
    for (const NodeId at : victims) note_copied_path(at, leaving_[index_of(c)]);
  }
  store_waits += begun.waits_for_stores ? 1 : 0;
  return begun.waits_for_stores;
}

// With each victim the path to it is copied, and can leave after it.
void CacheImpl::note_copied_path(NodeId at, std::vector<NodeId>& out) const {
  for (NodeView view = tree_.view(at); view.end != 0; at = view.parent, view = tree_.view(at)) {
    if (is_copied_to_host(view)) {
      out.push_back(at);
    } else if (!view.host[0].empty()) {
      break;
    }
  }
}

// Forgets those of which the copies have ended.
bool CacheImpl::are_copied(std::vector<NodeId>& nodes) const {
  std::erase_if(nodes, [&](NodeId at) { return !is_copied_to_host(tree_.view(at)); });
  return !nodes.empty();
}

// What requests that let go have handed over is copied, too, and can leave after that.
bool CacheImpl::is_room_coming(ComponentKind c) {
  return host_room_.has_refused() || are_copied(leaving_[index_of(c)]) || are_copied(handed_over_);
}

// Does the host have room for a copy, or would it have to evict for it?
VictimRule CacheImpl::gentle_rule(ComponentKind c) const {
  ComponentCounts one{};
  one[index_of(c)] = 1;
  return host_->blocks_missing(one) == 0 ? VictimRule::kBackUpFirst : VictimRule::kBackUpWorth;
}

}  // namespace larder
