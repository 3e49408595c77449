// SPDX-License-Identifier: Apache-2.0
// Restore points by what they are worth: of models with recurrent state.
//
//   worth = likely uses x tokens that resuming there saves / bytes that leave with it / (age + patience)
//
// likely uses: those that it has had, faded; of one that nobody has used yet the chance of its kind, which is learnt
// (CheckpointStats). The division by the age makes a use the less likely the longer it has not come; the patience keeps
// what is new from outweighing everything.
//
// Data whose worth is alike but for its age is one queue, least recently used first, so the worth of each queue's first
// is all that is compared: exact but for the rounding of uses and gain to powers of two, without sampling, and each
// rank decides alike.
//
//   queue   0           no restore point: KV behind the last checkpoint goes first, unless it is new
//           1 .. 126    never used: kind x gain        127 .. 238  used: uses x gain
//           255         full that leaves with its checkpoint, or that a running request builds on: not by itself
//
// Source: GDSF (Cherkasova, 1998) weighs frequency, cost and size, hyperbolic caching (Blankstein et al., ATC '17)
// divides by the age, CAMP (Ghandeharizadeh et al., 2014) rounds to queues.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "policy/eviction_policies.h"

namespace larder {

namespace {

constexpr int kGains = 14, kGainOfOne = 6;  // levels of a factor of two; the one that stands for 1
constexpr int kMostPriority = 4;
constexpr int kUses = 8, kUsesOfOne = 1;
constexpr float kLeastUses = 0.35F;  // fewer are none
constexpr double kOldAfter = 16;     // this part of the patience
constexpr int kIdle = 0, kNeverUsed = 1, kUsed = kNeverUsed + static_cast<int>(kCheckpointKinds) * kGains;
constexpr int kHeld = 255;
static_assert(kUsed + kUses * kGains <= kHeld - 1);

int level_of(double value, int of_one, int levels) {
  if (!(value > 0)) return 0;
  return std::clamp(std::ilogb(value * std::numbers::sqrt2) + of_one, 0, levels - 1);  // rounded, not cut off
}

// From 2^-8 on: ldexp() takes longer than all else that worth() does.
constexpr auto kTwoTo = [] {
  std::array<double, 32> powers{1.0 / 256};
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = 2 * powers[i - 1];
  return powers;
}();
double two_to(int exponent) { return kTwoTo[static_cast<std::size_t>(exponent + 8)]; }

class Value final : public EvictionOrder {
 public:
  explicit Value(const ValueParameters& parameters) : parameters_(parameters), without_states_(reuse_order()) {}

  [[nodiscard]] OrderKey key(const Facts& facts) const override {
    if (facts.component != ComponentKind::kFull) return oldest_first(facts);
    return {facts.last_use, 0};
  }
  [[nodiscard]] bool weighs() const override { return true; }
  [[nodiscard]] const EvictionOrder* without_states() const override { return without_states_.get(); }
  [[nodiscard]] CheckpointParameters checkpoint_parameters() const override { return parameters_.checkpoints; }

  [[nodiscard]] std::uint8_t queue(const Facts& facts) const override {
    if (facts.is_held) return kHeld;
    if (!facts.restores) return kIdle;
    // Each step of priority doubles what it is worth.
    const int steps = std::clamp<int>(facts.priority, -kMostPriority, kMostPriority);
    const int gain = level_of(facts.gain, kGainOfOne + steps, kGains);
    const int first = facts.uses < kLeastUses ? kNeverUsed + static_cast<int>(facts.kind) * kGains
                                              : kUsed + level_of(double{facts.uses}, kUsesOfOne, kUses) * kGains;
    return static_cast<std::uint8_t>(first + gain);
  }

  [[nodiscard]] double worth(std::uint8_t queue, const QueueAge& at, const CheckpointStats& stats) const override {
    if (queue == kHeld) return std::numeric_limits<double>::infinity();
    const double patience =
        std::min(parameters_.patience_tokens, parameters_.patience_turnovers * static_cast<double>(at.tier_tokens));
    if (queue == kIdle) {  // what is young is perhaps a piece of a prompt that is still coming
      const bool is_young = static_cast<double>(at.age_tokens) < patience / kOldAfter;
      return is_young ? stats.chance(CheckpointKind::kGrid) / (static_cast<double>(at.age_tokens) + patience + 1) : 0;
    }
    const bool is_used = queue >= kUsed;
    const int place = queue - (is_used ? kUsed : kNeverUsed);
    const int level = place / kGains;
    const double uses =
        is_used ? two_to(level - kUsesOfOne) + parameters_.more_uses : stats.chance(static_cast<CheckpointKind>(level));
    return uses * two_to(place % kGains - kGainOfOne) / (static_cast<double>(at.age_tokens) + patience + 1);
  }
  // In one loop without calls: there are up to 240 for each victim.
  void worths(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> ages_tokens,
              std::uint64_t tier_tokens, const CheckpointStats& stats, std::span<double> out) const override {
    for (std::size_t i = 0; i < queues.size(); ++i) {
      out[i] = Value::worth(queues[i], {ages_tokens[i], tier_tokens}, stats);
    }
  }

 private:
  const ValueParameters parameters_;
  const EvictionOrderPtr without_states_;
};

}  // namespace

EvictionOrderPtr value_order(const ValueParameters& parameters) { return std::make_shared<Value>(parameters); }

}  // namespace larder
