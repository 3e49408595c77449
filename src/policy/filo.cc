// SPDX-License-Identifier: Apache-2.0
// Made last, out first.
#include "policy/eviction_policies.h"

namespace larder {

namespace {

class Filo final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {~facts.created, facts.last_use};
  }
};

}  // namespace

EvictionOrderPtr filo_order() { return std::make_shared<Filo>(); }

}  // namespace larder
