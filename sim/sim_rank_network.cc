// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_rank_network.h"

#include <algorithm>

namespace larder::sim {
namespace {

constexpr std::size_t kMostOnTheWire = 4096;  // a connection takes no more until some of it has arrived

}  // namespace

void SimRankNetwork::add(ranks::RankMember& member) {
  members_.resize(std::max<std::size_t>(members_.size(), member.rank() + 1));
  members_[member.rank()] = Member{&member, false, {}};
}

void SimRankNetwork::remove(std::uint32_t rank) {
  members_.at(rank).member = nullptr;
  for (Connection& connection : connections_) {
    if (rank == 0) {
      connection.to_follower.is_ended = connection.is_closed_at_leader = true;
    } else if (connection.rank == rank) {
      connection.to_leader.is_ended = connection.is_closed_at_follower = true;
    }
  }
}

ranks::RankMember* SimRankNetwork::awake(std::uint32_t rank) {
  return rank < members_.size() && !members_[rank].is_stopped ? members_[rank].member : nullptr;
}

void SimRankNetwork::stop(std::uint32_t rank, bool is_stopped) { members_.at(rank).is_stopped = is_stopped; }

void SimRankNetwork::cut(std::uint32_t rank) {
  for (Connection& connection : connections_) {
    if (connection.rank != rank) continue;
    connection.to_leader = connection.to_follower = Wire{{}, true};
  }
}

void SimRankNetwork::tick_all() {
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (ranks::RankMember* const member = awake(rank)) member->tick();
  }
}

std::size_t SimRankNetwork::connect_stranger(std::string words) {
  Connection& connection = connections_.emplace_back();
  connection.rank = kNobody;
  connection.stranger = strangers_.size();
  connection.at_leader = members_.at(0).member->open_link("a stranger");
  connection.to_leader.bytes = std::move(words);
  strangers_.push_back({{}, connections_.size() - 1});
  return connection.stranger;
}

bool SimRankNetwork::is_closed(std::size_t stranger) const {
  return connections_.at(strangers_.at(stranger).connection).is_closed_at_leader;
}

void SimRankNetwork::run(std::size_t limit) {
  for (std::size_t i = 0; i < limit && step(); ++i) continue;
}

bool SimRankNetwork::step() {
  // Which connection, and which way: any that can, from a place that the dice choose.
  const std::size_t ways = 2 * connections_.size() + 1;
  const std::size_t first = static_cast<std::size_t>(rng_.below(ways));
  for (std::size_t i = 0; i < ways; ++i) {
    const std::size_t way = (first + i) % ways;
    if (way == ways - 1 ? dial() : move(connections_[way / 2], way % 2 == 0)) return true;
  }
  return false;
}

bool SimRankNetwork::dial() {
  ranks::RankMember* const leader = awake(0);
  for (std::uint32_t rank = 1; rank < members_.size(); ++rank) {
    ranks::RankMember* const follower = awake(rank);
    if (leader == nullptr || follower == nullptr || !follower->wants_link()) continue;
    Connection& connection = connections_.emplace_back();
    connection.rank = rank;
    connection.at_leader = leader->open_link("rank " + std::to_string(rank) + "'s machine");
    connection.at_follower = follower->open_link("the leader's machine");
    return true;
  }
  return false;
}

// One end's bytes go out, or what is on its way comes in.
bool SimRankNetwork::move(Connection& connection, bool is_to_leader) {
  const bool goes_out_first = rng_.chance(1, 2);
  if (goes_out_first && take_output(connection, !is_to_leader)) return true;
  return deliver(connection, is_to_leader) || (!goes_out_first && take_output(connection, !is_to_leader));
}

bool SimRankNetwork::take_output(Connection& connection, bool of_leader) {
  if (!of_leader && connection.rank == kNobody) return false;
  ranks::RankMember* const member = awake(of_leader ? 0 : connection.rank);
  Wire& wire = of_leader ? connection.to_follower : connection.to_leader;
  if (member == nullptr || wire.is_ended || wire.bytes.size() >= kMostOnTheWire) return false;
  const ranks::RankSession::Output output =
      member->take_output(of_leader ? connection.at_leader : connection.at_follower);
  if (output.bytes.empty() && !output.is_last) return false;
  if (rng_.chance(flips_per_million_, 1'000'000) && !output.bytes.empty()) {
    std::string spoilt = output.bytes;
    spoilt[static_cast<std::size_t>(rng_.below(spoilt.size()))] ^= static_cast<char>(1u << rng_.below(8));
    wire.bytes += spoilt;
  } else {
    wire.bytes += output.bytes;
  }
  if (!of_leader) members_[connection.rank].said += output.bytes;
  wire.is_ended = output.is_last;
  if (output.is_last) (of_leader ? connection.is_closed_at_leader : connection.is_closed_at_follower) = true;
  return true;
}

bool SimRankNetwork::deliver(Connection& connection, bool is_to_leader) {
  Wire& wire = is_to_leader ? connection.to_leader : connection.to_follower;
  bool& is_closed = is_to_leader ? connection.is_closed_at_leader : connection.is_closed_at_follower;
  if (wire.bytes.empty() && (!wire.is_ended || is_closed)) return false;
  const bool is_strangers = !is_to_leader && connection.rank == kNobody;
  ranks::RankMember* const member = is_strangers ? nullptr : awake(is_to_leader ? 0 : connection.rank);
  if (member == nullptr && !is_strangers && !is_closed) return false;  // it stands still
  if (wire.bytes.empty()) {
    is_closed = true;
    Wire& back = is_to_leader ? connection.to_follower : connection.to_leader;
    back.is_ended = true;
    if (member != nullptr) {
      member->close_link(is_to_leader ? connection.at_leader : connection.at_follower, "its connection was closed");
    }
    return true;
  }
  const std::size_t size = static_cast<std::size_t>(rng_.between(1, wire.bytes.size()));
  const std::string piece = wire.bytes.substr(0, rng_.chance(1, 2) ? size : wire.bytes.size());
  wire.bytes.erase(0, piece.size());
  if (is_strangers) {
    strangers_[connection.stranger].heard += piece;
  } else if (member != nullptr && !is_closed) {
    member->receive(is_to_leader ? connection.at_leader : connection.at_follower, piece);
  }
  return true;
}

}  // namespace larder::sim
