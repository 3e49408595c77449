// SPDX-License-Identifier: Apache-2.0
// Which tenant a salt is, what is its of each tier, and what it holds there.
//
// Tenants with a rule are there from the start to the end. Of the others each salt is a tenant while it has a namespace
// open, if there are bounds for others; else all of them are tenant 0, which has none.
//
//   salt ─► first rule that fits ─► tenant ─► bounds in slots and blocks ─► TenantBook of the tree, which counts
//
// Threads: confined to the cache thread. Ranks: ids follow from the order in which namespaces are opened and closed,
// which is the same on all. Cost: enter() O(rules + log tenants), once for each namespace that is opened.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "model/model_spec.h"
#include "policy/tenant_limits.h"
#include "pool/device_pools.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

// What a tenant holds, in bytes of its slots: of pages in the tree, with copies under way.
struct TenantUse {
  std::string name;  // of its rule
  std::array<std::uint64_t, kTierCount> bytes{};
};

// As validated by check_tenant_limits(), against what the tiers have. device, host: null: no such tier.
[[nodiscard]] Status check_tenant_limits(const TenantLimits& limits, const ModelSpec& model, const DevicePools* device,
                                         const HostPools* host);

class Tenants {
 public:
  struct Parts {  // all outlive this
    const ModelSpec& model;
    const DevicePools* device;  // null: none that the tree knows
    const HostPools* host;      // null: none
    RadixTree& tree;
    Clock& clock;
    MetricsRegistry* metrics;  // may be null
  };
  // limits: checked.
  Tenants(const TenantLimits& limits, const Parts& parts);

  // Whose a namespace with this salt is; it is about to be opened.
  [[nodiscard]] TenantId enter(const std::string& salt);
  // A namespace of this salt is closed.
  void leave(const std::string& salt);
  // Something of it may not be taken for others.
  [[nodiscard]] bool has_floor(TenantId id) const;
  // Of those with a rule, in the order of the rules.
  [[nodiscard]] std::vector<TenantUse> uses() const;
  // Brings the gauges larder_tenant_bytes up to date; at most ten times a second.
  void note_uses();

 private:
  struct Other {
    TenantId id;
    std::uint32_t spaces = 0;
  };
  [[nodiscard]] TenantBook::AllBounds bounds_of(const TierBounds& bounds) const;
  [[nodiscard]] const TenantRule* rule_of(const std::string& salt, TenantId& id) const;

  const TenantLimits limits_;
  const Parts parts_;
  bool has_others_ = false;                             // there are bounds for them
  std::vector<TenantId> ruled_;                         // by rule
  std::map<std::string, Other> others_;                 // by salt
  std::vector<std::array<Gauge*, kTierCount>> gauges_;  // by rule; empty: no metrics
  TimePoint noted_{};
};

}  // namespace larder
