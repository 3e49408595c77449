// SPDX-License-Identifier: Apache-2.0
// A network between the ranks of one group, in one process: it delays, splits, mixes the order of what goes on
// different connections, cuts, stops, lets dials hang and listens to strangers, all by a seed.
//
// What goes on one connection in one direction keeps its order, as with TCP. Which byte moves next, and how many with
// it, is the dice's choice. Nothing moves but in step(); time passes only in tick_all(), on the members' clock.
//
// An end does what the real link does (real_tcp_ranks.h): it keeps what the network has not taken; it closes at once
// where it is owed no words, and else shuts its direction, reads on, and closes when the other has closed or after
// kLingerTicks; it tells its member of each end of a connection. An end that closes before it has read all resets the
// connection: what it had said and the other has not read may be lost. A leader's process takes no connection once its
// group is over.
//
// Threads: confined; the members' other calls may come from other threads. Lifetime: the members outlive it, or are
// taken out before (remove()).
#pragma once

#include <array>
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

  // One thing happens, if anything can: a connection is made, taken or closed, or a piece of bytes goes in or comes
  // out.
  bool step();
  // Until nothing can happen; at most `limit` things.
  void run(std::size_t limit = 1'000'000);
  // Every member that is not stopped learns that time has passed, and may dial once more.
  void tick_all();

  // Its process stands still: it takes and says nothing, and its clock does not tick; or goes on.
  void stop(std::uint32_t rank, bool is_stopped = true);
  // The connection of a follower breaks; what was on its way is lost.
  void cut(std::uint32_t rank);
  // From now on each piece has this chance, in a million, to have a bit turned.
  void flip_bits(std::uint64_t per_million) { flips_per_million_ = per_million; }
  // From now on each dial has this chance, in a million, to get no answer for kDialTicks.
  void hang_dials(std::uint64_t per_million) { hangs_per_million_ = per_million; }
  // Somebody connects to the leader, says this, reads what comes, and never closes. What he hears is kept: heard().
  // Returns his number.
  std::size_t connect_stranger(std::string words);
  [[nodiscard]] const std::string& heard(std::size_t stranger) const { return strangers_.at(stranger).heard; }
  // The leader has closed a stranger's connection, or shut its direction.
  [[nodiscard]] bool is_closed(std::size_t stranger) const;
  // What a follower's connection carries from now on is kept; and may be said again by a stranger (replay).
  [[nodiscard]] const std::string& said_by(std::uint32_t rank) const { return members_.at(rank).said; }

  static constexpr int kLingerTicks = 4, kDialTicks = 8;

 private:
  // One end of a connection, and the direction that leads away from it.
  struct End {
    ranks::LinkId link = 0;  // 0: its member does not know it yet
    std::string output;      // what the network has not taken yet
    std::string wire;        // what is on its way to the other end
    bool is_last = false;    // `output` and `wire` are the last words
    bool is_shut = false;    // nothing comes behind `wire`
    bool is_closed = false;  // nobody holds it any more
    int ticks_left = 0;      // with is_shut, until it is closed
  };
  struct Connection {
    std::uint32_t rank = 0;  // of the follower; of a stranger: kNobody
    std::size_t stranger = 0;
    std::array<End, 2> ends;  // the leader's, and the follower's or the stranger's
    bool is_broken = false;   // nothing moves on it; who reads or writes learns that
  };
  struct Member {
    ranks::RankMember* member = nullptr;  // null: gone, or was never there
    bool is_stopped = false;
    bool may_dial = true;  // once in a tick
    int dial_hangs = 0;    // ticks until it gives up
    std::string said;
  };
  struct Stranger {
    std::string heard;
    std::size_t connection = 0;
  };
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  static constexpr std::size_t kLeader = 0, kOther = 1;

  [[nodiscard]] ranks::RankMember* awake(std::uint32_t rank);
  [[nodiscard]] ranks::RankMember* owner(const Connection& connection, std::size_t end);
  bool dial();
  bool dial_of(std::uint32_t rank);
  bool move(Connection& connection, std::size_t end);
  bool accept(Connection& connection);
  bool send(Connection& connection, std::size_t end);
  bool receive(Connection& connection, std::size_t end);
  void put_on_wire(Connection& connection, std::size_t end);
  void close(Connection& connection, std::size_t end, const std::string& why);

  Rng rng_;
  std::vector<Member> members_;  // by rank
  std::deque<Connection> connections_;
  std::vector<Stranger> strangers_;
  std::uint64_t flips_per_million_ = 0, hangs_per_million_ = 0;
};

}  // namespace larder::sim
