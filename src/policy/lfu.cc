// SPDX-License-Identifier: Apache-2.0
// Least often used first. Hits never age.
#include "policy/eviction_policies.h"

namespace larder {

namespace {

class Lfu final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {facts.hits, facts.last_use};
  }
};

}  // namespace

EvictionOrderPtr lfu_order() { return std::make_shared<Lfu>(); }

}  // namespace larder
