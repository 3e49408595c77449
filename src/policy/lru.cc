// SPDX-License-Identifier: Apache-2.0
// Least recently used first.
#include "policy/eviction_policies.h"

namespace larder {

namespace {

class Lru final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {facts.last_use, 0};
  }
};

}  // namespace

EvictionOrderPtr lru_order() { return std::make_shared<Lru>(); }

}  // namespace larder
