// SPDX-License-Identifier: Apache-2.0
// Restore points by what they are worth: of models with recurrent state.
//
//   worth = likely uses x tokens that resuming there saves / bytes that leave with it
//           / (age + patience) / (1 + age / fade)
//
// likely uses: those that it has had, faded. Of one that nobody has used yet, or once, they are chances of its kind,
// which are learnt (CheckpointStats), that of the next use, and of those that follow it. The divisions by the age make
// a use the less likely the longer it has not come: first by the age, and beyond the fade by its square. The patience
// keeps what is new from outweighing everything. It is the time that turns of conversations take to come, which is
// learnt, and the fade eight times as much: so where conversations go on at once, those that have ended make room for
// new ones within a few times of that.
//
// Data whose worth is alike but for its age is one queue, least recently used first, so the worth of each queue's first
// is all that is compared: exact but for the rounding of uses and gain to powers of two, without sampling, and each
// rank decides alike.
//
//   queue   0           no restore point: KV behind the last checkpoint goes first, unless it is new
//           1 .. 165    never used: kind x gain        166 .. 198  used once: used kind x gain
//         199 .. 253    used more often: uses x gain
//           255         full that leaves with its checkpoint, or that a running request builds on: not by itself
//
// Source: GDSF (Cherkasova, 1998) weighs frequency, cost and size, hyperbolic caching (Blankstein et al., ATC '17)
// divides by the age, CAMP (Ghandeharizadeh et al., 2014) rounds to queues.
#include <algorithm>
#include <array>
#include <limits>
#include <numbers>

#include "base/powers_of_two.h"
#include "policy/eviction_policies.h"

namespace larder {

namespace {

constexpr int kGains = 11, kGainOfOne = 4;  // levels of a factor of two; the one that stands for 1
constexpr int kMostPriority = 4;
constexpr int kUses = 5, kUsesOfOne = -1;  // 2, 4, 8, 16, 32 and more
constexpr double kOldAfter = 16;           // this part of the most patience
constexpr double kFadeOfPatience = 8;
constexpr double kLeastPatience = 1.0 / 16;  // of what the tier holds
constexpr int kIdle = 0, kNeverUsed = 1, kUsedOnce = kNeverUsed + static_cast<int>(kCheckpointKinds) * kGains,
              kUsed = kUsedOnce + static_cast<int>(CheckpointStats::kUsedKinds) * kGains;
constexpr int kHeld = 255;
static_assert(kUsed + kUses * kGains <= kHeld - 1);

int level_of(double value, int of_one, int levels) {
  if (!(value > 0)) return 0;
  return std::clamp(exponent_of(value * std::numbers::sqrt2) + of_one, 0, levels - 1);  // rounded, not cut off
}

// Whose likely uses those of a queue are: a kind's, a used kind's, a level's of uses, those of young data without a
// restore point; more than of all else.
constexpr std::size_t kOfOnce = kCheckpointKinds, kOfLevel = kOfOnce + CheckpointStats::kUsedKinds,
                      kYoung = kOfLevel + kUses, kMost = kYoung + 1, kLikelies = kMost + 1;
// By number, small enough to stay in the processor's cache. Queues that are compared for each victim are so without a
// branch.
struct Meanings {
  std::array<std::uint8_t, 256> likely{}, gain{};  // places in what likely_uses() returns, and in kGainOf
};
constexpr int kNoGain = kGains;  // stands for 1
constexpr auto kMeanings = [] {
  Meanings meanings;
  meanings.likely.fill(kMost);
  meanings.gain.fill(kNoGain);
  meanings.likely[kIdle] = kYoung;
  for (int queue = kNeverUsed; queue < kUsed + kUses * kGains; ++queue) {
    const int place = queue - kNeverUsed;
    meanings.likely[queue] = static_cast<std::uint8_t>(place / kGains);
    meanings.gain[queue] = static_cast<std::uint8_t>(place % kGains);
  }
  return meanings;
}();
constexpr auto kGainOf = [] {
  std::array<double, kGains + 1> gains{};
  for (int level = 0; level < kGains; ++level) gains[level] = two_to(level - kGainOfOne);
  gains[kNoGain] = 1;
  return gains;
}();

class Value final : public EvictionOrder {
 public:
  explicit Value(const ValueParameters& parameters)
      : parameters_(parameters), per_fade_(1 / parameters.checkpoints.fade_tokens), without_states_(reuse_order()) {
    for (std::size_t level = 0; level < kUses; ++level) {
      uses_[level] = two_to(static_cast<int>(level) - kUsesOfOne) + parameters.more_uses;
    }
  }

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
    return static_cast<std::uint8_t>(first_queue(facts) + gain);
  }

  [[nodiscard]] double worth(std::uint8_t queue, const QueueAge& at, const CheckpointStats& stats) const override {
    double worth = 0;
    const std::uint64_t used_at_first = 0;
    Value::worths({&queue, 1}, {&used_at_first, 1}, {at.age_tokens, at.tier_tokens}, stats, {&worth, 1});
    return worth;
  }
  // In one loop without calls: there are 20 to 40 for each victim, as a rule.
  void worths(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses, const QueueClock& now,
              const CheckpointStats& stats, std::span<double> out) const override {
    const std::array<double, kLikelies> likely = likely_uses(stats);
    const auto tier_tokens = static_cast<double>(now.tier_tokens);
    const double most = std::min(parameters_.patience_tokens, parameters_.patience_turnovers * tier_tokens);
    const double learnt = std::max(stats.reuse_age(), kLeastPatience * tier_tokens);
    const double patience = std::min(most, learnt);
    const double per_fade = std::max(per_fade_, 1 / (kFadeOfPatience * learnt));
    // Signed: one instruction makes a double of it.
    const auto age_of = [&](std::size_t i) {
      return static_cast<double>(static_cast<std::int64_t>(now.tick - last_uses[i]));
    };
    const auto weight_of = [&](std::size_t i) {
      return likely[kMeanings.likely[queues[i]]] * kGainOf[kMeanings.gain[queues[i]]];
    };
    using Pair = double __attribute__((vector_size(16)));  // two divisions at the price of one
    for (std::size_t i = 0; i < queues.size(); i += 2) {
      const std::size_t k = std::min(i + 1, queues.size() - 1);
      const Pair weight = {weight_of(i), weight_of(k)}, age = {age_of(i), age_of(k)};
      const Pair worth = weight / ((age + patience + 1) * (1 + age * per_fade));
      out[i] = worth[0];
      out[k] = worth[1];
    }
    for (std::size_t i = 0; i < queues.size(); ++i) {
      // What is young is perhaps a piece of a prompt that is still coming.
      if (queues[i] == kIdle && age_of(i) >= most / kOldAfter) out[i] = 0;
    }
  }

 private:
  [[nodiscard]] static int first_queue(const Facts& facts) {
    if (facts.uses < CheckpointStats::kLeastUses) return kNeverUsed + static_cast<int>(facts.kind) * kGains;
    if (facts.uses < CheckpointStats::kMostOfOne) {
      return kUsedOnce + static_cast<int>(CheckpointStats::used_kind(facts.kind)) * kGains;
    }
    return kUsed + level_of(double{facts.uses}, kUsesOfOne, kUses) * kGains;
  }
  [[nodiscard]] std::array<double, kLikelies> likely_uses(const CheckpointStats& stats) const {
    std::array<double, kLikelies> likely{};
    std::copy(uses_.begin(), uses_.end(), likely.begin() + kOfLevel);
    // The next use, and those that follow it.
    for (std::size_t kind = 0; kind < CheckpointStats::kUsedKinds; ++kind) {
      likely[kOfOnce + kind] = stats.chance_again(kind) * (1 + uses_[0]);
    }
    for (std::size_t i = 0; i < kCheckpointKinds; ++i) {
      const auto kind = static_cast<CheckpointKind>(i);
      likely[i] = stats.chance(kind) * (1 + likely[kOfOnce + CheckpointStats::used_kind(kind)]);
    }
    likely[kYoung] = stats.chance(CheckpointKind::kGrid);
    likely[kMost] = std::numeric_limits<double>::infinity();
    return likely;
  }

  const ValueParameters parameters_;
  const double per_fade_;
  std::array<double, kUses> uses_{};  // of a level
  const EvictionOrderPtr without_states_;
};

}  // namespace

EvictionOrderPtr value_order(const ValueParameters& parameters) { return std::make_shared<Value>(parameters); }

}  // namespace larder
