// SPDX-License-Identifier: Apache-2.0
// What each tenant holds of each tier, and who of them may lose something to whom.
//
// A tenant is a set of namespaces whose room is counted together. Its bounds are given per budget: each component on
// the device is a budget of slots, the host is one of blocks. It holds what the tree has of its namespaces there, in
// use or not, copies under way included; what running requests have yet to give to the tree is nobody's.
//
//   standing   holds             loses to others
//   kOver      > ceiling         before everybody, until it is at its ceiling
//   kWithin    > floor           by the order of eviction, like all that are within their bounds
//   kBelow     <= floor          nothing, unless floors are broken (EvictFor)
//
// A tenant always may evict its own: after all that others would lose to it, or first of all where what is to come
// would take it above its ceiling. A ceiling alone evicts nothing: where there is room, a tenant may hold more. A
// victim goes whole, but for full, of which no more pages go than take its tenant to its bound; so a tenant may end
// below its floor by what left with one page, window or state. A bound of one component is kept against those who need
// that component: what leaves with its page does not count.
//
// Threads: confined with the tree. Ranks: follows from the tree alone. Cost: O(1) for each change; 0 for tenant 0,
// which has no bounds and is not counted. Memory: about 250 bytes for each tenant.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/pool_spec.h"
#include "pool/tier.h"

namespace larder {

// For whom room is made. breaks_floors: also what is below the floors of others goes, when there is nothing else.
// coming: what it is made for, in slots or blocks, if that will be the tenant's: where it would take the tenant above
// its ceiling, the tenant's own goes first.
struct EvictFor {
  TenantId tenant{};
  bool breaks_floors = false;
  std::uint64_t coming = 0;
  [[nodiscard]] EvictFor within_floors() const { return {tenant, false, coming}; }
};

// Pages (checkpoints for mamba). resident: published; locked: of those, locked or covered themselves; pending:
// attached, not published. What is above a locked or covered leaf counts as evictable although it has to wait for the
// leaf.
struct TierCounts {
  std::uint64_t resident = 0, locked = 0, pending = 0;
  [[nodiscard]] std::uint64_t evictable() const { return resident - locked; }
  [[nodiscard]] std::uint64_t held() const { return resident + pending; }
  friend bool operator==(const TierCounts&, const TierCounts&) = default;
};
struct TierCountsChange {
  std::int64_t resident = 0, locked = 0, pending = 0;
};
inline void operator+=(TierCounts& counts, const TierCountsChange& by) {
  counts.resident += static_cast<std::uint64_t>(by.resident);
  counts.locked += static_cast<std::uint64_t>(by.locked);
  counts.pending += static_cast<std::uint64_t>(by.pending);
}

class TenantBook {
 public:
  enum class Standing : std::uint8_t { kOver, kWithin, kBelow };
  static constexpr std::size_t kStandings = 3;
  static constexpr std::size_t kBudgets = kComponentCount + 1;
  static constexpr std::size_t kHostBudget = kComponentCount;
  [[nodiscard]] static constexpr std::size_t budget_of(ComponentKind c, Tier t) {
    return t == Tier::kDevice ? index_of(c) : kHostBudget;
  }
  static constexpr std::uint64_t kNoCeiling = std::numeric_limits<std::uint64_t>::max();
  struct Bounds {
    std::uint64_t floor = 0, ceiling = kNoCeiling;  // slots; on the host blocks. floor <= ceiling
  };
  using AllBounds = std::array<Bounds, kBudgets>;

  // host_weight: blocks of a slot of each component on the host; 0: it takes none.
  explicit TenantBook(const std::array<std::uint64_t, kComponentCount>& host_weight) : host_weight_(host_weight) {}

  [[nodiscard]] TenantId open(const AllBounds& bounds);
  // It holds nothing, and no namespace is its. Its id may be another's later.
  void close(TenantId id);
  // It was opened, and perhaps closed since. Ids count up from 1.
  [[nodiscard]] bool is_known(TenantId id) const { return id.v < tenants_.size(); }

  void count(TenantId id, ComponentKind c, Tier t, const TierCountsChange& by);
  [[nodiscard]] const TierCounts& counts(TenantId id, ComponentKind c, Tier t) const;
  [[nodiscard]] std::uint64_t held(TenantId id, std::size_t budget) const { return tenants_[id.v].held[budget]; }
  [[nodiscard]] const Bounds& bounds(TenantId id, std::size_t budget) const { return tenants_[id.v].bounds[budget]; }
  [[nodiscard]] Standing standing(TenantId id, std::size_t budget) const {
    return id.v == 0 ? Standing::kWithin : tenants_[id.v].standing[budget];
  }
  // Would it be above its ceiling with what is coming to it?
  [[nodiscard]] bool exceeds(const EvictFor& who, std::size_t budget) const {
    if (who.tenant.v == 0 || who.coming == 0) return false;
    const Tenant& tenant = tenants_[who.tenant.v];
    return who.coming > tenant.bounds[budget].ceiling - std::min(tenant.bounds[budget].ceiling, tenant.held[budget]);
  }
  // Slots that it may lose to `who`, at least 1, before its standing changes, or exceeds(who).
  [[nodiscard]] std::uint64_t slots_to_bound(TenantId id, ComponentKind c, Tier t, const EvictFor& who = {}) const;
  // Of what counts as evictable in the budget: what floors keep from `who`, in slots or blocks.
  [[nodiscard]] std::uint64_t withheld(std::size_t budget, const EvictFor& who) const;

  // Those whose standing may have changed in some budget since forget_changed().
  [[nodiscard]] const std::vector<TenantId>& changed() const { return changed_; }
  [[nodiscard]] bool has_changed(TenantId id) const { return tenants_[id.v].has_changed; }
  void forget_changed();
  // Counts what each budget holds from what each component does; kInternal: they differ. O(tenants).
  [[nodiscard]] Status check() const;

 private:
  struct Tenant {
    AllBounds bounds{};
    std::array<std::array<TierCounts, kTierCount>, kComponentCount> counts{};
    std::array<std::uint64_t, kBudgets> held{}, evictable{}, withheld{};
    std::array<Standing, kBudgets> standing = {Standing::kWithin, Standing::kWithin, Standing::kWithin,
                                               Standing::kWithin};
    bool is_open = false, has_changed = false;
  };
  [[nodiscard]] std::uint64_t weight(ComponentKind c, Tier t) const {
    return t == Tier::kDevice ? 1 : host_weight_[index_of(c)];
  }
  void judge(TenantId id, std::size_t budget);

  const std::array<std::uint64_t, kComponentCount> host_weight_;
  std::vector<Tenant> tenants_{1};  // by id; the first is nobody
  std::vector<TenantId> closed_, changed_;
  std::array<std::uint64_t, kBudgets> withheld_{};  // of all
};

}  // namespace larder
