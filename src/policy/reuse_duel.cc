// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse_duel.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "base/mix.h"

namespace larder {
namespace {

// Pages of fewer tokens are looked at together: a page of one token is named by it and its place, which many share.
constexpr std::uint32_t kLeastUnit = 64;  // tokens

// Whether a piece of a prompt is looked at follows from three of its tokens, so that the others need not be read.
std::uint32_t sample_of(std::span<const TokenId> unit, std::uint64_t place) {
  const std::uint64_t some = mix64(place ^ unit.front()) ^ (std::uint64_t{unit[unit.size() / 2]} << 32 | unit.back());
  return static_cast<std::uint32_t>(mix64(some));
}

}  // namespace

OrderKey ReuseMiniature::key_of(const Entry& entry, const Moment& now) const {
  constexpr std::uint64_t kMostPlaces = (1u << 20) - 1;
  const std::uint64_t request = way_ == ReuseWay::kMru ? ~now.request : now.request;
  const std::uint64_t age = request << 20 | (kMostPlaces - std::min(now.place, kMostPlaces));
  return {way_ == ReuseWay::kLfu ? entry.hits : 0, age};
}

bool ReuseMiniature::use(std::uint64_t name, const Moment& now, std::size_t most) {
  while (size() > most) remove_first();  // the tier's part has shrunk; also where nothing new comes
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) {
    Entry& entry = entries_[known->second];
    ++entry.hits;
    heap_.update(entry.at, key_of(entry, now), note_place());
    return true;
  }
  if (size() == most) remove_first();
  auto id = static_cast<std::uint32_t>(entries_.size());
  if (unused_.empty()) {
    entries_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  entries_[id] = {name, 0, 0};
  by_name_.emplace(name, id);
  heap_.push({key_of(entries_[id], now), id}, note_place());
  return false;
}

void ReuseMiniature::remove_first() { remove(heap_.front().id); }

void ReuseMiniature::remove(std::uint32_t id) {
  heap_.remove(entries_[id].at, note_place());
  by_name_.erase(entries_[id].name);
  unused_.push_back(id);
}

void ReuseMiniature::keep(std::uint64_t mask) {
  std::vector<std::uint32_t> others;
  for (std::size_t at = 0; at < heap_.size(); ++at) {
    if ((entries_[heap_[at].id].name & mask) != 0) others.push_back(heap_[at].id);
  }
  for (const std::uint32_t id : others) remove(id);
}

ReuseDuel::ReuseDuel(const ReuseParameters& parameters)
    : parameters_(parameters),
      fade_(1 - 0.693147180559945 / parameters.half_life),  // and no exp2(), which processors round as they like
      miniatures_{ReuseMiniature(ReuseWay::kLru), ReuseMiniature(ReuseWay::kLfu), ReuseMiniature(ReuseWay::kMru)} {}

void ReuseDuel::set_capacity(std::uint64_t units) {
  std::uint64_t mask = mask_;  // never fewer bits: what was not looked at is not known
  while (units / (mask + 1) > parameters_.most_names) mask = 2 * mask + 1;
  if (mask != mask_) {
    mask_ = mask;
    seen_ = sampled_ = 0;
    for (ReuseMiniature& miniature : miniatures_) miniature.keep(mask);
  }
  // The part that was sampled is a little more or less than 1 / (mask + 1), and so is what stands for the tier: a load
  // that is a little larger than the tier would fit its miniature otherwise, by chance.
  constexpr double kPrior = 1024;  // units
  const double share = (sampled_ + kPrior / static_cast<double>(mask_ + 1)) / (seen_ + kPrior);
  most_ = std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(units) * share));
  if (seen_ < 16.0 * static_cast<double>(units) + kPrior) return;
  seen_ /= 2;
  sampled_ /= 2;
}

void ReuseDuel::use(NamespaceId space, std::span<const TokenId> tokens, std::uint32_t page_tokens,
                    std::uint64_t capacity_tokens) {
  const std::uint32_t unit = page_tokens >= kLeastUnit ? page_tokens : kLeastUnit / page_tokens * page_tokens;
  set_capacity(capacity_tokens / unit);
  ++requests_;
  Outcomes outcomes;
  const std::uint64_t seed = mix64(space.v + 1);
  seen_ += static_cast<double>(tokens.size() / unit);
  for (std::uint64_t place = 0; place < tokens.size() / unit; ++place) {
    const std::span<const TokenId> piece = tokens.subspan(place * unit, unit);
    const std::uint32_t sample = sample_of(piece, seed + place);
    if ((sample & mask_) != 0) continue;
    sampled_ += 1;
    const std::uint64_t content = XXH3_64bits_withSeed(piece.data(), piece.size_bytes(), seed + place);
    use((content << 32) | sample, place, outcomes);
  }
  count(outcomes);
  decide();
}

void ReuseDuel::use(std::uint64_t name, std::uint64_t place, Outcomes& outcomes) {
  for (std::size_t way = 0; way < kReuseWays; ++way) {
    const bool was_there = miniatures_[way].use(name, {requests_, place}, most_);
    outcomes[way].is_whole = outcomes[way].is_whole && was_there;
    outcomes[way].hits += outcomes[way].is_whole ? 1 : 0;
  }
}

void ReuseDuel::count(const Outcomes& outcomes) {
  for (std::size_t a = 0; a < kReuseWays; ++a) {
    hits_[a] = hits_[a] * fade_ + outcomes[a].hits;
    for (std::size_t b = 0; b < kReuseWays; ++b) {
      const double difference = outcomes[a].hits - outcomes[b].hits;
      ahead_by_[a][b] = ahead_by_[a][b] * fade_ + difference;
      squares_[a][b] = squares_[a][b] * fade_ + difference * difference;
    }
  }
}

void ReuseDuel::decide() {
  const auto now = static_cast<std::size_t>(ahead_);
  std::size_t best = now;
  for (std::size_t way = 0; way < kReuseWays; ++way) {
    if (hits_[way] > hits_[best]) best = way;
  }
  const auto way = static_cast<ReuseWay>(best);
  const double sigmas = way == ReuseWay::kMru ? parameters_.sigmas_of_mru : parameters_.sigmas;
  const bool is_sure = ahead_by_[best][now] > sigmas * std::sqrt(squares_[best][now]);
  if (is_sure && hits_[best] > parameters_.lead * hits_[now]) ahead_ = way;
}

}  // namespace larder
