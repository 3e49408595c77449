// SPDX-License-Identifier: Apache-2.0
// Most recently used first: for scans over more than there is room for.
#include "policy/eviction_policies.h"

namespace larder {

namespace {

class Mru final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {~facts.last_use, 0};
  }
};

}  // namespace

EvictionOrderPtr mru_order() { return std::make_shared<Mru>(); }

}  // namespace larder
