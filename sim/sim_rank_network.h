// SPDX-License-Identifier: Apache-2.0
// A network between the ranks of one group, in one process: it delays, splits, mixes the order of what goes on
// different connections, cuts, stops and listens to strangers, all by a seed.
//
// What goes on one connection in one direction keeps its order, as with TCP. Which byte moves next, and how many with
// it, is the dice's choice. Nothing moves but in step(); time passes only in tick_all(), on the members' clock.
//
// Threads: confined; the members' other calls may come from other threads. Lifetime: the members outlive it, or are
// taken out before (remove()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/rng.h"
#include "controller/ranks/rank_member.h"

namespace larder::sim {

class SimRankNetwork {
 public:
  explicit SimRankNetwork(std::uint64_t seed) : rng_(seed) {}

  // The member of rank 0 is the leader of the others.
  void add(ranks::RankMember& member);
  // Its process is gone: its connections are closed at the other end, once what it had said has arrived.
  void remove(std::uint32_t rank);

  // One thing happens, if anything can: a connection is made, or a piece of bytes goes in or comes out.
  bool step();
  // Until nothing can happen; at most `limit` things.
  void run(std::size_t limit = 1'000'000);
  // Every member that is not stopped learns that time has passed.
  void tick_all();

  // Its process stands still: it takes and says nothing, and its clock does not tick; or goes on.
  void stop(std::uint32_t rank, bool is_stopped = true);
  // The connection of a follower breaks; what was on its way is lost.
  void cut(std::uint32_t rank);
  // From now on each piece has this chance, in a million, to have a bit turned.
  void flip_bits(std::uint64_t per_million) { flips_per_million_ = per_million; }
  // Somebody connects to the leader, says this, and waits; what he hears is kept: heard(). Returns his number.
  std::size_t connect_stranger(std::string words);
  [[nodiscard]] const std::string& heard(std::size_t stranger) const { return strangers_.at(stranger).heard; }
  // The leader has closed a stranger's connection.
  [[nodiscard]] bool is_closed(std::size_t stranger) const;
  // What a follower's connection carries from now on is kept; and may be said again by a stranger (replay).
  [[nodiscard]] const std::string& said_by(std::uint32_t rank) const { return members_.at(rank).said; }

 private:
  // One direction.
  struct Wire {
    std::string bytes;
    bool is_ended = false;  // no more comes after these
  };
  struct Connection {
    std::uint32_t rank = 0;  // of the follower; of a stranger: kNobody
    std::size_t stranger = 0;
    ranks::LinkId at_leader = 0, at_follower = 0;
    Wire to_leader, to_follower;
    bool is_closed_at_leader = false, is_closed_at_follower = false;
  };
  struct Member {
    ranks::RankMember* member = nullptr;  // null: gone, or was never there
    bool is_stopped = false;
    std::string said;
  };
  struct Stranger {
    std::string heard;
    std::size_t connection = 0;
  };
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};

  [[nodiscard]] ranks::RankMember* awake(std::uint32_t rank);
  bool dial();
  bool move(Connection& connection, bool is_to_leader);
  bool take_output(Connection& connection, bool of_leader);
  bool deliver(Connection& connection, bool is_to_leader);

  Rng rng_;
  std::vector<Member> members_;  // by rank
  std::deque<Connection> connections_;
  std::vector<Stranger> strangers_;
  std::uint64_t flips_per_million_ = 0;
};

}  // namespace larder::sim
