// SPDX-License-Identifier: Apache-2.0
#include "policy/checkpoint_stats.h"

#include <algorithm>
#include <numbers>
#include <numeric>

#include "base/powers_of_two.h"

namespace larder {

std::size_t CheckpointStats::row_of(std::uint64_t name) const {
  return (name >> 1) % std::max<std::size_t>(parameters_.entries / kWays, 1) * kWays;
}

// Among powers of two, rounded.
std::size_t CheckpointStats::place_of_age(double tokens) {
  return static_cast<std::size_t>(
      std::clamp(exponent_of(tokens * std::numbers::sqrt2 + 1), 0, static_cast<int>(kAges) - 1));
}

CheckpointStats::CheckpointStats(const CheckpointParameters& parameters) : parameters_(parameters) {
  const double taken = parameters.unknown_taken;
  counts_.fill({taken, taken * parameters.unknown_chance});
  std::fill(counts_.begin() + kCheckpointKinds, counts_.end(), Count{taken, taken * parameters.unknown_again});
  for (std::size_t place = 0; place < kPlaces; ++place) set_chance(place);
  reuse_age_ = parameters.unknown_age_tokens;
  ages_[place_of_age(reuse_age_)] = parameters.unknown_ages;
}

void CheckpointStats::count(std::size_t place, double taken, double used) {
  Count& count = counts_[place];
  count.taken += taken;
  count.used += used;
  if (count.taken >= parameters_.most_taken) {
    count.taken /= 2;
    count.used /= 2;
  }
  set_chance(place);
}

void CheckpointStats::came(CheckpointKind kind) { count(place_of(kind), 1, 0); }

// Those that have been used more than once are no measure: what all requests share is used all the time.
void CheckpointStats::used(CheckpointKind kind, float uses, std::uint64_t age) {
  if (uses >= kMostOfOne) return;
  if (uses >= kLeastUses) return count(place_of_once(kind), 0, 1);
  count(place_of(kind), 0, 1);
  count(place_of_once(kind), 1, 0);
  note_age(age);
}

void CheckpointStats::note_age(std::uint64_t age) {
  ages_[place_of_age(static_cast<double>(age))] += 1;
  const double sum = std::accumulate(ages_.begin(), ages_.end(), 0.0);
  double below = 0;
  std::size_t median = 0;
  while ((below += ages_[median]) * 2 < sum) ++median;
  reuse_age_ = two_to(static_cast<int>(median));
  ++changes_;
  if (sum < parameters_.most_ages) return;
  for (double& count : ages_) count /= 2;
}

float CheckpointStats::faded(float uses, std::uint64_t tokens) const {
  if (uses == 0) return 0;
  // 2^-x, on a straight line between whole x: the same on every processor, which exp2() is not.
  const double halvings = std::min(static_cast<double>(tokens) / parameters_.fade_tokens, 126.0);
  const int whole = static_cast<int>(halvings);
  return uses * static_cast<float>((1 - (halvings - whole) / 2) * two_to(-whole));
}

const CheckpointStats::Entry* CheckpointStats::find(PathHash path) const {
  if (entries_.empty()) return nullptr;
  const std::uint64_t name = name_of(path);
  if (last_.path == name) return &last_;
  const Entry* const row = &entries_[row_of(name)];
  const Entry* const found = std::find_if(row, row + kWays, [&](const Entry& e) { return e.path == name; });
  return found == row + kWays ? nullptr : found;
}

std::optional<CheckpointKind> CheckpointStats::kind_of(PathHash path) const {
  const Entry* const found = find(path);
  return found == nullptr ? std::nullopt : std::optional(found->kind);
}

void CheckpointStats::prefetch(PathHash path) const {
  if (entries_.empty()) return;
  const Entry* const row = &entries_[row_of(name_of(path))];
  __builtin_prefetch(row);
  __builtin_prefetch(row + kWays - 1);
}

void CheckpointStats::lost(PathHash path, CheckpointKind kind, float uses, std::uint64_t tick) {
  if (entries_.empty()) entries_.resize(std::max(parameters_.entries, kWays));
  enter_last();
  last_ = {name_of(path), tick, uses, kind};
  prefetch(path);
}

void CheckpointStats::enter_last() {
  if (last_.path == 0) return;
  Entry* const row = &entries_[row_of(last_.path)];
  Entry* place = std::find_if(row, row + kWays, [&](const Entry& e) { return e.path == last_.path; });
  if (place == row + kWays) {
    place = std::min_element(row, row + kWays, [](const Entry& a, const Entry& b) { return a.tick < b.tick; });
  }
  *place = last_;
}

void CheckpointStats::wanted(PathHash path, std::uint64_t tick) {
  const Entry* const found = find(path);
  if (found == nullptr) return;
  Entry& entry = found == &last_ ? last_ : entries_[static_cast<std::size_t>(found - entries_.data())];
  const std::uint64_t age = tick - entry.tick;
  const float uses = faded(entry.uses, age);
  entry.uses = uses + 1;
  entry.tick = tick;
  used(entry.kind, uses, age);
}

void CheckpointStats::missed(PathHash path, std::uint64_t tick) {
  const Entry* const found = find(path);
  if (found == nullptr) return;
  const std::uint64_t age = tick - found->tick;
  used(found->kind, faded(found->uses, age), age);
}

float CheckpointStats::uses_of(PathHash path, std::uint64_t tick) const {
  const Entry* const found = find(path);
  return found == nullptr ? 0 : faded(found->uses, tick - found->tick);
}

}  // namespace larder
