// SPDX-License-Identifier: Apache-2.0
#include "controller/host_room.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace larder {

namespace {
// Victims are taken a few at a time, so that the choice between components follows the order.
constexpr std::uint64_t kVictimBatch = 16;
}  // namespace

HostRoom::HostRoom(const Parts& parts)
    : model_(parts.model), host_(parts.host), tree_(parts.tree), backlog_(parts.backlog), counters_(parts.counters) {}

HostSpace HostRoom::evictable(TenantId who) const {
  HostSpace space;
  for (const ComponentKind c : kAllComponents) space += host_->space_of(c, tree_.counts(c, Tier::kHost).evictable());
  space.blocks -= std::min(space.blocks, tree_.tenants().withheld(TenantBook::kHostBudget, {.tenant = who}));
  return space;
}

void HostRoom::count_refusal() {
  do_copies_wait_ = false;
  if (std::exchange(has_refused_, false)) backlog_.count_wait();
}

HostAnswer HostRoom::refuse_for_stores() {
  has_refused_ = true;
  return HostAnswer::kWaitsForStores;
}

// How much of the victim may go now, at most `want`. 0: storage has yet to take it.
std::uint64_t HostRoom::share(const HostVictim& victim, std::uint64_t want, HostEffort effort) const {
  const bool is_on_device = victim.worth < 0;  // then it comes again, and to storage, when it leaves the device
  const bool waits = effort == HostEffort::kGently && backlog_.may_wait();
  if (waits && !is_on_device && backlog_.is_soon(victim.node)) return 0;
  const bool loses_nothing = effort == HostEffort::kNoLoss;
  // What comes behind it may have to wait; or it is worth more than what another component has.
  if (!waits && !loses_nothing && !takes_one_by_one()) return want;
  const NodeView node = tree_.view(victim.node);
  const bool is_stored = backlog_.epoch() != 0 && node.stored_epoch == backlog_.epoch();
  if (loses_nothing && !is_stored) return 0;
  return std::min(want, victim.component == ComponentKind::kMamba ? 1 : node.end - node.begin);
}

std::optional<HostVictim> HostRoom::next_victim(const HostSpace& missing, const EvictFor& who) const {
  std::optional<HostVictim> first;
  for (const ComponentKind c : kAllComponents) {
    const bool gives = (host_->blocks_per_slot(c) > 0 ? missing.blocks : missing.markers) > 0;
    if (!model_.has(c) || !gives) continue;
    const std::optional<HostVictim> victim = tree_.next_host_victim(c, who);
    if (!victim) continue;
    const auto place = [](const HostVictim& v) { return std::pair(v.rank, v.worth); };
    const bool is_alike = first && place(*victim) == place(*first);
    if (!first || place(*victim) < place(*first) || (is_alike && victim->across < first->across)) first = victim;
  }
  return first;
}

// What storage reads is locked, so it is neither counted nor a victim.
HostAnswer HostRoom::make(const ComponentCounts& counts, HostEffort effort, TenantId who) {
  const bool gently = effort == HostEffort::kGently;
  HostSpace missing = host_->shortage(counts);
  if (const HostSpace may_go = evictable(who); !missing.fits_in(may_go)) {
    const bool waits = gently && backlog_.may_wait() && missing.fits_in(may_go + backlog_.kept());
    return waits ? refuse_for_stores() : HostAnswer::kNone;
  }
  const EvictFor evicts{.tenant = who, .coming = host_->space_of(counts).blocks};
  std::uint64_t in_vain = 0;
  while (!missing.is_none()) {
    const std::optional<HostVictim> victim = next_victim(missing, evicts);
    if (!victim) {
      // What is left stands beneath pages that are being written.
      return gently && backlog_.may_wait() ? refuse_for_stores() : HostAnswer::kNone;
    }
    const ComponentKind c = victim->component;
    const std::uint64_t per_slot = host_->blocks_per_slot(c);
    const std::uint64_t slots = per_slot == 0 ? missing.markers : (missing.blocks + per_slot - 1) / per_slot;
    const std::uint64_t want = share(*victim, std::min(slots, kVictimBatch), effort);
    if (want == 0) return gently ? refuse_for_stores() : HostAnswer::kNone;
    if (tree_.evict_host(c, want, evicts).freed == 0) return HostAnswer::kNone;
    // Leased and not locked, see StoreBacklog::unlock_abandoned(): more of it would go for nothing as well.
    const HostSpace before = std::exchange(missing, host_->shortage(counts));
    if (missing == before && (!takes_one_by_one() || ++in_vain == kVictimBatch)) return HostAnswer::kNone;
  }
  return HostAnswer::kThere;
}

HostAnswer HostRoom::take(const ComponentCounts& counts, HostEffort effort,
                          std::array<std::vector<HostSlot>, kComponentCount>& out, TenantId who) {
  const HostAnswer answer = make(counts, effort, who);
  if (answer != HostAnswer::kThere) return answer;
  return host_->reserve(counts, out) ? HostAnswer::kThere : HostAnswer::kNone;
}

void HostRoom::give_back(ComponentKind c, std::span<const HostSlot> slots) {
  for (const HostSlot slot : slots) {
    if (!host_->free(c, slot).is_ok()) ++counters_.internal_errors;
  }
}

void HostRoom::let_go(ComponentKind c, std::span<const HostSlot> slots) {
  if (c == ComponentKind::kFull) counters_.host_evicted += slots.size();
  give_back(c, slots);
}

void HostRoom::drop_leases(const std::vector<LeasedSlot>& leases) {
  if (host_ != nullptr) host_->drop_leases(leases);
}

}  // namespace larder
