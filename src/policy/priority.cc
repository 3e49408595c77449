// SPDX-License-Identifier: Apache-2.0
// Lowest priority first.
#include "policy/eviction_policies.h"

namespace larder {

namespace {

class Priority final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    // Signed order as unsigned.
    return {static_cast<std::uint32_t>(facts.priority) ^ 0x80000000u, facts.last_use};
  }
};

}  // namespace

EvictionOrderPtr priority_order() { return std::make_shared<Priority>(); }

}  // namespace larder
