// SPDX-License-Identifier: Apache-2.0
// The network of a rank group: TCP connections of the followers to the leader, and one thread that serves them.
//
//   rank 0: listens on host:port, takes everybody's connection, and lets its RankMember judge who they are
//   others: connect to host:port, and try again until the leader is there
//
// Threads: open() and the destructor: the owner's; member(): rank_member.h. One thread of its own ("larder-ranks").
// Lifetime: the clock outlives it. The destructor says farewell to the others, and takes kFarewellLimit at most.
// Errors: open(): kInvalidArgument names what to mend: settings, an address of which there is none, one that other
// machines reach while there is no secret; kUnavailable: the address is taken. Later ones end the group, in words
// (RankMember::status()).
// Limits: connections: the ranks', and kMaxStrangers. What a connection does not take waits once for all of them
// (rank_session.h).
// Cost: a plan or an outcome wakes the thread once: ~10 us, beside the connection's own time. Idle: one frame per
// connection and alive_interval.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "controller/ranks/rank_member.h"

namespace larder::ranks {

inline constexpr Nanos kFarewellLimit = std::chrono::seconds(1);

struct RankAddress {
  std::string host;
  std::uint16_t port = 0;  // of the leader only: 0 is any free one
};
// "HOST:PORT", "[IPv6]:PORT". kInvalidArgument: anything else.
[[nodiscard]] Result<RankAddress> parse_rank_address(std::string_view text);

class TcpRankGroup {
 public:
  // settings.draw may be empty: then numbers come from the system.
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
