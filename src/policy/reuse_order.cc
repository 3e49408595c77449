// SPDX-License-Identifier: Apache-2.0
// By the way of leaving that suits the requests of late (policy/reuse_duel.h): what value is for models without
// recurrent state.
//
//   queue   0         used last while most recently used first was ahead: goes first, the newest before others
//           1 .. 64   by uses, least recently used first within each. Where least often used first is ahead, the
//                     queue of the fewest goes first; else they are as one
#include <algorithm>
#include <bit>

#include "policy/eviction_policies.h"

namespace larder {

namespace {

constexpr std::uint8_t kFresh = 0, kFirstLevel = 1;
constexpr std::uint32_t kExact = 16;  // uses; from there on four levels for each doubling
constexpr std::uint32_t kLevels = 64;

std::uint32_t level_of_uses(std::uint32_t uses) {
  if (uses < kExact) return uses;
  const auto doubling = static_cast<std::uint32_t>(std::bit_width(uses)) - 5;  // 0: 16 .. 31
  const std::uint32_t quarter = (uses >> (doubling + 2)) & 3;
  return std::min(kExact + 4 * doubling + quarter, kLevels - 1);
}

class Reuse final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {facts.is_fresh ? ~facts.last_use : facts.last_use, 0};
  }
  [[nodiscard]] bool chooses() const override { return true; }
  [[nodiscard]] std::uint8_t queue(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return kFirstLevel;
    return facts.is_fresh ? kFresh : static_cast<std::uint8_t>(kFirstLevel + level_of_uses(facts.hits));
  }
  [[nodiscard]] double worth_when(ReuseWay ahead, std::uint8_t queue) const override {
    if (queue == kFresh) return 0;
    return ahead == ReuseWay::kLfu ? queue : 1;
  }
};

}  // namespace

EvictionOrderPtr reuse_order() { return std::make_shared<Reuse>(); }

}  // namespace larder
