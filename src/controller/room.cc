// Making room: who is evicted when a tier is full (step 7 of a prefix's life).
#include <algorithm>

#include "controller/cache_impl.h"

namespace larder {

namespace {
// Host victims are taken a few at a time, so that the choice between components follows recency.
constexpr std::uint64_t kHostVictimBatch = 16;
}  // namespace

bool CacheImpl::tier_keeps(ComponentKind c) const {
  if (!host_ || !config_.host_tier_for_full) return false;  // full is the backbone: without it nothing can follow
  return c != ComponentKind::kMamba || config_.host_tier_for_state;
}

Status CacheImpl::make_device_room(const ComponentCounts& counts) {
  for (const ComponentKind c : kAllComponents) {  // before anything is evicted for a component that does fit
    if (!could_make_device_room(c, counts[index_of(c)])) {
      return overloaded("the device has no room for " + std::to_string(counts[index_of(c)]) + " slots of " +
                        std::string(component_name(c)) + " now: the rest is in use");
    }
  }
  for (const ComponentKind c : kAllComponents) LARDER_RETURN_IF_ERROR(make_device_room_for(c, counts[index_of(c)]));
  return Status::ok();
}

// Would evicting everything do? What is locked or pinned now comes free in its own time.
bool CacheImpl::could_make_device_room(ComponentKind c, std::uint32_t count) const {
  return count <= device_.free_slots(c) + tree_.counts(c, Tier::kDevice).evictable();
}

// Prefers victims with a host copy. For the rest: back up and wait while copies are under way, and drop only when none
// is: a full host tier must never stop the engine for good. Writes to storage are not waited for, although they keep
// host pages in place: a storage that is slow or hangs costs cached pages, not time.
Status CacheImpl::make_device_room_for(ComponentKind c, std::uint32_t count) {
  const auto missing = [&] {
    const std::uint32_t free = device_.free_slots(c);
    return count > free ? count - free : 0u;
  };
  if (missing() == 0) return Status::ok();
  const auto no_room = [&] {
    return overloaded("the device has no room for " + std::to_string(count) + " slots of " +
                      std::string(component_name(c)) + " now");
  };
  if (!could_make_device_room(c, count)) return no_room();
  if (tier_keeps(c)) {
    const EvictResult gentle = tree_.evict_device(c, missing(), VictimRule::kBackUpFirst);
    if (missing() == 0) return Status::ok();
    // After a copy that failed, one round goes without: a device that cannot copy must still compute.
    if (!std::exchange(backup_failed_, false)) {
      (void)backup_victims(gentle.needs_backup);
      if (copies_in_flight() > 0) return no_room();
    }
  }
  (void)tree_.evict_device(c, missing(), VictimRule::kDrop);
  return missing() == 0 ? Status::ok() : no_room();
}

// One byte budget: the least recently used victim goes first, whatever its component. Evicts nothing if everything
// would not do.
bool CacheImpl::make_host_room(const ComponentCounts& counts) {
  std::uint64_t evictable = 0;
  for (const ComponentKind c : kAllComponents) {
    evictable += tree_.counts(c, Tier::kHost).evictable() * host_->blocks_per_slot(c);
  }
  if (host_->blocks_missing(counts) > evictable) return false;
  while (true) {
    const std::uint64_t missing = host_->blocks_missing(counts);
    if (missing == 0) return true;
    std::optional<ComponentKind> victim;
    std::uint64_t oldest = 0;
    for (const ComponentKind c : kAllComponents) {
      if (!model_.has(c) || host_->blocks_per_slot(c) == 0) continue;
      const std::optional<std::uint64_t> tick = tree_.next_host_victim_tick(c);
      if (tick && (!victim || *tick < oldest)) {
        victim = c;
        oldest = *tick;
      }
    }
    if (!victim) return false;
    const std::uint64_t per_slot = host_->blocks_per_slot(*victim);
    const std::uint64_t want = std::clamp<std::uint64_t>((missing + per_slot - 1) / per_slot, 1, kHostVictimBatch);
    if (tree_.evict_host(*victim, want).freed == 0) return false;
  }
}

}  // namespace larder
