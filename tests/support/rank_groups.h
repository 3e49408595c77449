// SPDX-License-Identifier: Apache-2.0
// A rank group of each kind, for suites that all kinds must pass: in one process, over a simulated network that a
// thread of the test moves, and over TCP.
//
// Threads: confined, but for the members: each may be used from its own thread. Lifetime: members end before it does.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "controller/rank_group.h"
#include "controller/ranks/real_tcp_ranks.h"
#include "sim/sim_rank_network.h"

namespace larder::test {

enum class GroupKind : std::uint8_t { kInProcess, kSimulated, kTcp };
inline std::string group_kind_name(GroupKind kind) {
  return kind == GroupKind::kInProcess ? "InProcess" : kind == GroupKind::kSimulated ? "Simulated" : "Tcp";
}

// Numbers that tests can guess.
inline std::function<Result<Digest256>()> seeded_draw(std::uint64_t seed) {
  return [rng = std::make_shared<Rng>(seed)]() -> Result<Digest256> {
    Digest256 number;
    for (std::uint8_t& byte : number.bytes) byte = static_cast<std::uint8_t>(rng->below(256));
    return number;
  };
}

class RankGroups {
 public:
  RankGroups(GroupKind kind, std::uint32_t ranks, Clock& clock, std::size_t max_outstanding, std::uint64_t seed = 1)
      : network_(seed) {
    if (kind == GroupKind::kInProcess) {
      in_process_ = make_in_process_rank_group(ranks, clock, max_outstanding);
      for (const auto& member : in_process_) members_.push_back(member.get());
      return;
    }
    ranks::RankAddress address{"127.0.0.1", 0};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      ranks::RankSettings settings;
      settings.rank = rank;
      settings.ranks = ranks;
      settings.max_outstanding = max_outstanding;
      settings.draw = seeded_draw(seed * 100 + rank);
      kind == GroupKind::kTcp ? add_tcp(address, settings, clock) : add_simulated(settings, clock);
    }
    if (kind == GroupKind::kSimulated) {
      EXPECT_TRUE(pump_.post([this] { pump(); }).is_ok());
    }
    settle();
  }
  ~RankGroups() { is_over_ = true; }

  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] RankGroup* operator[](std::size_t rank) const { return members_[rank]; }

  // Waits until all that was said has arrived. Of a group that is over: a failure of the test.
  void settle() const {
    for (int quiet = 0; quiet < 3;) {
      for (const ranks::RankMember* const member : remote_) {
        if (member->is_over()) {
          ADD_FAILURE() << "rank " << member->rank() << ": " << member->status().to_string();
          return;
        }
      }
      quiet = is_quiet() ? quiet + 1 : 0;
      std::this_thread::yield();
    }
  }
  // Frames that carried outcomes or plans, of all ranks.
  [[nodiscard]] std::uint64_t messages() const {
    std::uint64_t count = 0;
    for (const ranks::RankMember* const member : remote_) {
      const ranks::RankTraffic traffic = member->traffic();
      count += traffic.sent(ranks::Kind::kReports) + traffic.sent(ranks::Kind::kPlans);
    }
    return count;
  }

 private:
  void add_tcp(ranks::RankAddress& address, const ranks::RankSettings& settings, Clock& clock) {
    auto opened = ranks::TcpRankGroup::open(address, settings, clock);
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    address.port = (*opened)->port();
    remote_.push_back(&(*opened)->member());
    members_.push_back(remote_.back());
    tcp_.push_back(std::move(*opened));
  }
  void add_simulated(const ranks::RankSettings& settings, Clock& clock) {
    simulated_.push_back(std::make_unique<ranks::RankMember>(settings, clock, [] {}));
    remote_.push_back(simulated_.back().get());
    members_.push_back(remote_.back());
    network_.add(*remote_.back());
  }
  void pump() {
    while (!is_over_) {
      if (network_.step()) continue;
      std::this_thread::yield();
      network_.tick_all();
    }
  }
  [[nodiscard]] bool is_quiet() const {
    std::uint64_t sent = 0, received = 0;
    bool is_one_speaking = false;
    for (ranks::RankMember* const member : remote_) {
      if (!member->wait_formed(Nanos(0)).is_ok()) return false;
      const ranks::RankTraffic traffic = member->traffic();
      for (const std::uint64_t frames : traffic.frames_sent) sent += frames;
      for (const std::uint64_t frames : traffic.frames_received) received += frames;
      is_one_speaking = is_one_speaking || member->wants_output();
    }
    return sent == received && !is_one_speaking;
  }

  std::vector<std::unique_ptr<RankGroup>> in_process_;
  std::vector<std::unique_ptr<ranks::RankMember>> simulated_;
  std::vector<ranks::RankMember*> remote_;
  std::vector<RankGroup*> members_;
  sim::SimRankNetwork network_;
  std::atomic<bool> is_over_{false};
  ThreadPoolExecutor pump_{"network", 1, 1};  // before what it moves
  std::vector<std::unique_ptr<ranks::TcpRankGroup>> tcp_;
};

}  // namespace larder::test
