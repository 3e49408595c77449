// SPDX-License-Identifier: Apache-2.0
// Two segments: what later requests have used often enough is protected, and goes after all the rest.
#include "policy/eviction_policies.h"

namespace larder {

namespace {

constexpr std::uint32_t kProtectedHits = 2;

class Slru final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {facts.hits >= kProtectedHits ? 1u : 0u, facts.last_use};
  }
};

}  // namespace

EvictionOrderPtr slru_order() { return std::make_shared<Slru>(); }

}  // namespace larder
