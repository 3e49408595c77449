// SPDX-License-Identifier: Apache-2.0
#include "tree/tenant_book.h"

#include <algorithm>
#include <cassert>
#include <string>

namespace larder {

TenantId TenantBook::open(const AllBounds& bounds) {
  TenantId id(static_cast<std::uint32_t>(tenants_.size()));
  if (closed_.empty()) {
    tenants_.emplace_back();
  } else {
    id = closed_.back();
    closed_.pop_back();
  }
  Tenant& tenant = tenants_[id.v];
  // Its queues stand where those of the last tenant with this id did.
  if (!tenant.has_changed) changed_.push_back(id);
  tenant = Tenant{.bounds = bounds, .is_open = true, .has_changed = true};
  for (std::size_t budget = 0; budget < kBudgets; ++budget) judge(id, budget);
  return id;
}

void TenantBook::close(TenantId id) {
  Tenant& tenant = tenants_[id.v];
  assert(tenant.is_open && std::all_of(tenant.held.begin(), tenant.held.end(), [](auto held) { return held == 0; }));
  tenant.is_open = false;
  closed_.push_back(id);
}

void TenantBook::count(TenantId id, ComponentKind c, Tier t, const TierCountsChange& by) {
  if (id.v == 0) return;
  Tenant& tenant = tenants_[id.v];
  tenant.counts[index_of(c)][static_cast<std::size_t>(t)] += by;
  const std::size_t budget = budget_of(c, t);
  const auto weighed = [&](std::int64_t slots) { return static_cast<std::uint64_t>(slots) * weight(c, t); };
  tenant.held[budget] += weighed(by.resident + by.pending);
  tenant.evictable[budget] += weighed(by.resident - by.locked);
  judge(id, budget);
}

const TierCounts& TenantBook::counts(TenantId id, ComponentKind c, Tier t) const {
  return tenants_[id.v].counts[index_of(c)][static_cast<std::size_t>(t)];
}

void TenantBook::judge(TenantId id, std::size_t budget) {
  Tenant& tenant = tenants_[id.v];
  const Bounds& bounds = tenant.bounds[budget];
  const std::uint64_t held = tenant.held[budget];
  const std::uint64_t gives = std::min(tenant.evictable[budget], held - std::min(held, bounds.floor));
  withheld_[budget] -= tenant.withheld[budget];
  tenant.withheld[budget] = tenant.evictable[budget] - gives;
  withheld_[budget] += tenant.withheld[budget];
  Standing now = Standing::kWithin;
  if (held > bounds.ceiling) {
    now = Standing::kOver;
  } else if (held <= bounds.floor && bounds.floor > 0) {
    now = Standing::kBelow;
  }
  if (now == tenant.standing[budget]) return;
  tenant.standing[budget] = now;
  if (!tenant.has_changed) changed_.push_back(id);
  tenant.has_changed = true;
}

std::uint64_t TenantBook::slots_to_bound(TenantId id, ComponentKind c, Tier t, const EvictFor& who) const {
  constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t each = weight(c, t);
  if (id.v == 0 || each == 0) return kAll;
  const std::size_t budget = budget_of(c, t);
  const Tenant& tenant = tenants_[id.v];
  const Bounds& bounds = tenant.bounds[budget];
  if (id == who.tenant && exceeds(who, budget)) {
    const std::uint64_t room = bounds.ceiling - std::min(bounds.ceiling, who.coming);
    return std::max<std::uint64_t>((tenant.held[budget] - std::min(tenant.held[budget], room) + each - 1) / each, 1);
  }
  switch (tenant.standing[budget]) {
    case Standing::kOver: return (tenant.held[budget] - bounds.ceiling + each - 1) / each;
    case Standing::kWithin: return bounds.floor == 0 ? kAll : (tenant.held[budget] - bounds.floor + each - 1) / each;
    case Standing::kBelow: return kAll;
  }
  return kAll;
}

std::uint64_t TenantBook::withheld(std::size_t budget, const EvictFor& who) const {
  if (who.breaks_floors) return 0;
  return withheld_[budget] - (who.tenant.v == 0 ? 0 : tenants_[who.tenant.v].withheld[budget]);
}

void TenantBook::forget_changed() {
  for (const TenantId id : changed_) tenants_[id.v].has_changed = false;
  changed_.clear();
}

Status TenantBook::check() const {
  std::array<std::uint64_t, kBudgets> all{};
  for (std::size_t i = 1; i < tenants_.size(); ++i) {
    std::array<std::uint64_t, kBudgets> held{}, evictable{};
    for (const ComponentKind c : kAllComponents) {
      for (const Tier t : {Tier::kDevice, Tier::kHost}) {
        const TierCounts& counts = tenants_[i].counts[index_of(c)][static_cast<std::size_t>(t)];
        held[budget_of(c, t)] += counts.held() * weight(c, t);
        evictable[budget_of(c, t)] += counts.evictable() * weight(c, t);
      }
    }
    for (std::size_t budget = 0; budget < kBudgets; ++budget) all[budget] += tenants_[i].withheld[budget];
    if (held != tenants_[i].held || evictable != tenants_[i].evictable) {
      return internal_error("I12: budgets of tenant " + std::to_string(i) + " are wrong");
    }
  }
  return all == withheld_ ? Status::ok() : internal_error("I12: what floors withhold is wrong");
}

}  // namespace larder
