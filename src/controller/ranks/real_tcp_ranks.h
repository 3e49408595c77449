// SPDX-License-Identifier: Apache-2.0
// The network of a rank group: TCP connections of the followers to the leader, and one thread that serves them.
//
//   rank 0: listens on host:port, takes everybody's connection, and lets its RankMember judge who they are; it listens
//           until the group is over, so that a new leader finds the port free
//   others: connect to host:port, and try again until the leader is there; each time the next address of that name
//
// Threads: open() and the destructor: the owner's; member(): rank_member.h. One thread of its own ("larder-ranks").
// Lifetime: the clock outlives it. The destructor says farewell to the others, and takes kFarewellLimit at most; of a
// follower that is just looking up the leader's name, as long as the system's resolver takes besides.
// Errors: open(): kInvalidArgument names what to mend: settings, an address of which there is none, one that other
// machines reach while there is no secret; kUnavailable: the address is taken. Later ones end the group, in words
// (RankMember::status()).
// Limits: connections: the ranks', kMaxStrangers, as many again that are told why they are refused, and those of one
// round, kAcceptsAtOnce. A connection that is owed no words is closed at once, another within kFarewellLimit. A dial
// has kDialLimit. What a connection does not take waits once for all of them (rank_session.h).
// Cost: a plan or an outcome wakes the thread once: ~10 us, beside the connection's own time. Idle: one frame per
// connection and alive_interval, and four looks at the clock in that time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "controller/ranks/rank_member.h"
#include "controller/ranks/real_rank_sockets.h"

namespace larder::ranks {

inline constexpr Nanos kFarewellLimit = std::chrono::seconds(1);
inline constexpr Nanos kDialLimit = std::chrono::seconds(5);
inline constexpr int kAcceptsAtOnce = 16;

class TcpRankGroup {
 public:
  // settings.draw may be empty: then numbers come from the system. settings.address: said here.
  [[nodiscard]] static Result<std::unique_ptr<TcpRankGroup>> open(const RankAddress& address, RankSettings settings,
                                                                  Clock& clock);
  virtual ~TcpRankGroup() = default;
  TcpRankGroup(const TcpRankGroup&) = delete;
  TcpRankGroup& operator=(const TcpRankGroup&) = delete;

  [[nodiscard]] virtual RankMember& member() = 0;
  // Where the leader listens, or a follower connects to.
  [[nodiscard]] virtual std::uint16_t port() const = 0;

 protected:
  TcpRankGroup() = default;
};

}  // namespace larder::ranks
