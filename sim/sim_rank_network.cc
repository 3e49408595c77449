// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_rank_network.h"

#include <algorithm>

namespace larder::sim {
namespace {

constexpr std::size_t kMostOnTheWire = 4096;  // a connection takes no more until some of it has arrived

}  // namespace

void SimRankNetwork::add(ranks::RankMember& member) {
  members_.resize(std::max<std::size_t>(members_.size(), member.rank() + 1));
  members_[member.rank()] = Member{};
  members_[member.rank()].member = &member;
}

void SimRankNetwork::remove(std::uint32_t rank) {
  members_.at(rank).member = nullptr;
  for (Connection& connection : connections_) {
    if (rank != 0 && connection.rank != rank) continue;
    End& end = connection.ends[rank == 0 ? kLeader : kOther];
    end.output.clear();
    end.is_closed = end.is_shut = true;
  }
}

ranks::RankMember* SimRankNetwork::awake(std::uint32_t rank) {
  return rank < members_.size() && !members_[rank].is_stopped ? members_[rank].member : nullptr;
}

ranks::RankMember* SimRankNetwork::owner(const Connection& connection, std::size_t end) {
  return awake(end == kLeader ? 0 : connection.rank);
}

void SimRankNetwork::stop(std::uint32_t rank, bool is_stopped) { members_.at(rank).is_stopped = is_stopped; }

void SimRankNetwork::cut(std::uint32_t rank) {
  for (Connection& connection : connections_) {
    if (connection.rank != rank) continue;
    connection.is_broken = true;
    for (End& end : connection.ends) end.wire.clear();
  }
}

void SimRankNetwork::tick_all() {
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    ranks::RankMember* const member = awake(rank);
    if (member == nullptr) continue;
    member->tick();
    members_[rank].may_dial = true;
    if (members_[rank].dial_hangs > 0 && --members_[rank].dial_hangs == 0) {
      member->close_link(0, "no answer from the leader's machine");
    }
  }
  for (Connection& connection : connections_) {
    for (const std::size_t at : {kLeader, kOther}) {
      End& end = connection.ends[at];
      if (!end.is_shut || end.is_closed || owner(connection, at) == nullptr) continue;
      if (--end.ticks_left <= 0) close(connection, at, "it was not closed in time");
    }
  }
}

std::size_t SimRankNetwork::connect_stranger(std::string words) {
  Connection& connection = connections_.emplace_back();
  connection.rank = kNobody;
  connection.stranger = strangers_.size();
  connection.ends[kOther].wire = std::move(words);
  strangers_.push_back({{}, connections_.size() - 1});
  return connection.stranger;
}

bool SimRankNetwork::is_closed(std::size_t stranger) const {
  const End& leader = connections_.at(strangers_.at(stranger).connection).ends[kLeader];
  return leader.is_closed || leader.is_shut;
}

void SimRankNetwork::run(std::size_t limit) {
  for (std::size_t i = 0; i < limit && step(); ++i) continue;
}

bool SimRankNetwork::step() {
  // Which connection, and which end: any that can do something, from a place that the dice choose.
  const std::size_t ways = 2 * connections_.size() + 1;
  const std::size_t first = static_cast<std::size_t>(rng_.below(ways));
  for (std::size_t i = 0; i < ways; ++i) {
    const std::size_t way = (first + i) % ways;
    if (way == ways - 1 ? dial() : move(connections_[way / 2], way % 2)) return true;
  }
  return false;
}

bool SimRankNetwork::dial() {
  for (std::uint32_t rank = 1; rank < members_.size(); ++rank) {
    if (dial_of(rank)) return true;
  }
  return false;
}

bool SimRankNetwork::dial_of(std::uint32_t rank) {
  ranks::RankMember* const follower = awake(rank);
  Member& member = members_[rank];
  if (follower == nullptr || !member.may_dial || member.dial_hangs > 0 || !follower->wants_link()) return false;
  const bool is_open = std::any_of(connections_.begin(), connections_.end(), [rank](const Connection& connection) {
    return connection.rank == rank && !connection.ends[kOther].is_closed;
  });
  if (is_open) return false;
  member.may_dial = false;
  if (rng_.chance(hangs_per_million_, 1'000'000)) {
    member.dial_hangs = kDialTicks;
    return true;
  }
  // What stands still still takes connections: its machine does.
  const ranks::RankMember* const leader = members_[0].member;
  if (leader == nullptr || leader->is_over()) {
    follower->close_link(0, "connection refused");
    return true;
  }
  Connection& connection = connections_.emplace_back();
  connection.rank = rank;
  const Result<ranks::LinkId> link = follower->open_link("the leader's machine");
  if (link.is_ok()) {
    connection.ends[kOther].link = *link;
  } else {
    connection.ends[kOther].is_closed = connection.ends[kOther].is_shut = true;
    follower->close_link(0, link.status().message());
  }
  return true;
}

bool SimRankNetwork::move(Connection& connection, std::size_t end) {
  if (end == kLeader && accept(connection)) return true;
  const bool sends_first = rng_.chance(1, 2);
  if (sends_first && send(connection, end)) return true;
  return receive(connection, end) || (!sends_first && send(connection, end));
}

bool SimRankNetwork::accept(Connection& connection) {
  End& end = connection.ends[kLeader];
  ranks::RankMember* const leader = awake(0);
  if (end.link != 0 || end.is_closed || leader == nullptr) return false;
  const std::string address =
      connection.rank == kNobody ? "a stranger" : "rank " + std::to_string(connection.rank) + "'s machine";
  const Result<ranks::LinkId> link = leader->open_link(address);
  if (link.is_ok()) {
    end.link = *link;
  } else {
    end.is_closed = end.is_shut = true;
  }
  return true;
}

// What the member has to say goes into the end, and from there on the wire, as far as there is room.
bool SimRankNetwork::send(Connection& connection, std::size_t at) {
  End& end = connection.ends[at];
  ranks::RankMember* const member = owner(connection, at);
  if (member == nullptr || end.link == 0 || end.is_closed || end.is_shut) return false;
  if (end.output.empty() && !end.is_last) {
    const ranks::RankSession::Output said = member->take_output(end.link);
    if (at == kOther) members_[connection.rank].said += said.bytes;
    end.output = said.bytes;
    end.is_last = said.is_last;
    if (end.output.empty()) {
      if (end.is_last) close(connection, at, "nothing was left to say");
      return end.is_last;
    }
  }
  if (end.output.empty()) {
    end.is_shut = true;
    end.ticks_left = kLingerTicks;
    return true;
  }
  if (connection.is_broken || connection.ends[1 - at].is_closed) {
    if (!connection.ends[1 - at].wire.empty()) return receive(connection, at);  // first what was said before
    close(connection, at, "a broken pipe");
    return true;
  }
  if (end.wire.size() >= kMostOnTheWire) return false;
  put_on_wire(connection, at);
  return true;
}

void SimRankNetwork::put_on_wire(Connection& connection, std::size_t at) {
  End& end = connection.ends[at];
  const std::size_t most = std::min(end.output.size(), kMostOnTheWire - end.wire.size());
  const std::size_t size = rng_.chance(1, 2) ? most : static_cast<std::size_t>(rng_.between(1, most));
  std::string piece = end.output.substr(0, size);
  end.output.erase(0, size);
  if (rng_.chance(flips_per_million_, 1'000'000)) {
    piece[static_cast<std::size_t>(rng_.below(size))] ^= static_cast<char>(1u << rng_.below(8));
  }
  end.wire += piece;
}

bool SimRankNetwork::receive(Connection& connection, std::size_t at) {
  End& end = connection.ends[at];
  std::string& wire = connection.ends[1 - at].wire;
  const bool is_strangers = at == kOther && connection.rank == kNobody;
  ranks::RankMember* const member = is_strangers ? nullptr : owner(connection, at);
  if (end.is_closed || (!is_strangers && (member == nullptr || end.link == 0))) return false;
  if (wire.empty() || connection.is_broken) {
    const bool is_over = connection.is_broken || connection.ends[1 - at].is_shut || connection.ends[1 - at].is_closed;
    if (!is_over || is_strangers) return false;
    close(connection, at, connection.is_broken ? "the connection broke" : "its connection was closed");
    return true;
  }
  const std::size_t size = static_cast<std::size_t>(rng_.between(1, wire.size()));
  const std::string piece = wire.substr(0, rng_.chance(1, 2) ? size : wire.size());
  wire.erase(0, piece.size());
  if (is_strangers) {
    strangers_[connection.stranger].heard += piece;
  } else if (!end.is_last) {
    member->receive(end.link, piece);
  }
  return true;
}

void SimRankNetwork::close(Connection& connection, std::size_t at, const std::string& why) {
  End& end = connection.ends[at];
  End& other = connection.ends[1 - at];
  end.is_closed = end.is_shut = true;
  end.output.clear();
  if (!other.wire.empty()) {  // a reset overtakes what was said before it
    other.wire.clear();
    if (rng_.chance(1, 2)) end.wire.clear();
  }
  if (ranks::RankMember* const member = owner(connection, at)) member->close_link(end.link, why);
}

}  // namespace larder::sim
