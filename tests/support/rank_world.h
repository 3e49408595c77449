// SPDX-License-Identifier: Apache-2.0
// A rank group over a simulated network, on one thread and on simulated time.
//
// Threads: confined. Lifetime: members end with the world, or by end().
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "sim/sim_rank_network.h"
#include "tests/support/rank_groups.h"

namespace larder::test {

inline constexpr Nanos kSilence = std::chrono::seconds(10);

inline ranks::RankSettings settings_of(std::uint32_t rank, std::uint32_t ranks, std::uint64_t seed = 1) {
  ranks::RankSettings settings;
  settings.rank = rank;
  settings.ranks = ranks;
  settings.max_outstanding = 64;
  settings.facts = {{"model", "gdn-tiny"}, {"page size", "64"}};
  settings.secret = "the group's secret";
  settings.silence_limit = kSilence;
  settings.draw = seeded_draw(seed * 1000 + rank);
  return settings;
}

// A group on simulated time. Its members may be given other settings before they come.
class RankWorld {
 public:
  RankWorld(std::uint32_t ranks, std::uint64_t seed) : ranks_(ranks), seed_(seed), network_(seed) {
    members_.resize(ranks);
  }
  ranks::RankMember& add(const ranks::RankSettings& settings) {
    auto& member = members_.at(settings.rank);
    member = std::make_unique<ranks::RankMember>(settings, clock_, [] {});
    network_.add(*member);
    return *member;
  }
  void add_all() {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) add(settings_of(rank, ranks_, seed_));
    network_.run();
  }
  // In steps of a quarter of a second, in which all that can arrive arrives.
  void pass(Nanos time) {
    for (; time > Nanos(0); time -= std::chrono::milliseconds(250)) {
      clock_.advance(std::chrono::milliseconds(250));
      network_.run();
      network_.tick_all();
      network_.run();
    }
  }
  [[nodiscard]] ranks::RankMember& operator[](std::uint32_t rank) { return *members_.at(rank); }
  [[nodiscard]] sim::SimRankNetwork& network() { return network_; }
  [[nodiscard]] bool is_formed() {
    return std::all_of(members_.begin(), members_.end(),
                       [](const auto& member) { return member->wait_formed(Nanos(0)).is_ok(); });
  }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] std::string words(std::uint32_t rank) { return members_.at(rank)->status().message(); }
  void end(std::uint32_t rank) {
    network_.remove(rank);
    members_.at(rank).reset();
  }

 private:
  const std::uint32_t ranks_;
  const std::uint64_t seed_;
  ManualClock clock_;
  std::vector<std::unique_ptr<ranks::RankMember>> members_;
  sim::SimRankNetwork network_;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace larder::test
