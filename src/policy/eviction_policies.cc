// SPDX-License-Identifier: Apache-2.0
#include "policy/eviction_policies.h"

#include <array>

namespace larder {

namespace {

struct Named {
  std::string_view name;
  EvictionOrderPtr (*order)();
};

// In the order of EvictionPolicy.
constexpr std::array<Named, kEvictionPolicyCount> kPolicies = {{{"lru", lru_order},
                                                                {"lfu", lfu_order},
                                                                {"slru", slru_order},
                                                                {"fifo", fifo_order},
                                                                {"mru", mru_order},
                                                                {"filo", filo_order},
                                                                {"priority", priority_order},
                                                                {"value", [] { return value_order(); }}}};

}  // namespace

std::string_view eviction_policy_name(EvictionPolicy p) {
  const auto i = static_cast<std::size_t>(p);
  return i < kPolicies.size() ? kPolicies[i].name : std::string_view("?");
}

std::optional<EvictionPolicy> parse_eviction_policy(std::string_view s) {
  for (std::size_t i = 0; i < kPolicies.size(); ++i) {
    if (kPolicies[i].name == s) return static_cast<EvictionPolicy>(i);
  }
  return std::nullopt;
}

EvictionOrderPtr eviction_order(EvictionPolicy p) {
  const auto i = static_cast<std::size_t>(p);
  return i < kPolicies.size() ? kPolicies[i].order() : lru_order();
}

}  // namespace larder
