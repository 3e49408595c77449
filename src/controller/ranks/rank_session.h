// SPDX-License-Identifier: Apache-2.0
// One rank's side of the protocol between ranks: bytes and time go in, bytes and agreed events come out.
//
//              calls of the cache thread              calls of the network
//   report(), take() ──►  RankSession  ◄── open(), receive(), closed(), tick()
//                                      ──► take_output(), wants_link()
//
// A star: the followers (ranks 1, 2, ...) connect to the leader (rank 0), and say who they are. Once all are there, the
// leader says so to all: the group is formed. What one says who has not shown that he knows the secret ends nothing: a
// follower tries again until forming_limit. Silence ends with a genuine frame, not with any byte. A connection that
// breaks afterwards, a rank that is not heard for silence_limit, one that says what makes no sense, and one that ends:
// each is the end of the group. The leader then says farewell to the others, in words that name that rank; over() keeps
// the words. There is no way back: a rank that missed a message can never be sure again that it decides as the others
// do.
//
// The leader keeps outcomes and plans once, however many followers there are, and makes a frame of them when a
// connection has room (take_output()); so a slow connection costs no memory.
//
// Threads: confined (RankMember has the lock). No clock, no sockets, no randomness.
// Limits: RankAgreement's; kMaxPlansAhead plans; kMaxStrangers connections that have not said who they are.
// Errors: bytes of a peer never do more than end its connection, or the group if the peer belongs to it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/rank_group.h"
#include "controller/ranks/rank_agreement.h"
#include "controller/ranks/rank_wire.h"

namespace larder::ranks {

// How far the leader may run ahead of its slowest follower: bounds the table of plans (16 bytes each).
inline constexpr std::size_t kMaxPlansAhead = 4096;
inline constexpr std::size_t kMaxStrangers = 16;

struct RankSettings {
  std::uint32_t rank = 0, ranks = 1;
  std::size_t max_outstanding = 4096;  // rank_group.h
  // The leader refuses a rank that differs in one. At most kMaxFacts with those that are there anyway: max_outstanding,
  // alive_interval, silence_limit. No name twice.
  std::vector<Fact> facts;
  std::string secret;  // who does not know it is refused; empty: anybody may say that he is a rank
  // Gives a number that nobody can guess and that never comes twice; or fails, and the connection with it. Threads:
  // the network's, without a lock.
  std::function<Result<Digest256>()> draw;
  std::string address;  // where the leader listens or a follower connects to, for messages; may be empty
  Nanos alive_interval = std::chrono::seconds(1);   // a connection on which nothing went for that long says so
  Nanos silence_limit = std::chrono::seconds(10);   // a rank that was not heard for that long is lost
  Nanos greeting_limit = std::chrono::seconds(5);   // who has connected says who it is within this
  Nanos forming_limit = std::chrono::seconds(300);  // all ranks are there within this
};
// kInvalidArgument: no such rank, no place for so many facts, one of them twice, a silence that is shorter than three
// intervals, a limit of nothing.
[[nodiscard]] Status check_rank_settings(const RankSettings& settings);

using LinkId = std::uint64_t;  // a connection; never given twice

// What one rank knows of another.
struct RankHealth {
  std::uint32_t rank = 0;
  bool is_here = false;
  std::string address;          // where it connected from, or where it listens
  Nanos silent{};               // since something of it came
  std::uint64_t next_step = 0;  // the step that it comes to next, as far as it has said so; of followers
  RankAgreement::Owed owed;     // outcomes that others have reported and it has not; of followers
};

// Since the beginning. By Kind.
struct RankTraffic {
  std::array<std::uint64_t, kKindCount> frames_sent{}, frames_received{};
  std::uint64_t bytes_sent = 0;
  std::uint64_t strangers_refused = 0;  // connections that did not become a rank's
  std::uint64_t links_open = 0;         // connections that are there now, whoever has them
  [[nodiscard]] std::uint64_t sent(Kind kind) const { return frames_sent[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::uint64_t received(Kind kind) const { return frames_received[static_cast<std::size_t>(kind)]; }
};

class RankSession {
 public:
  // Precondition: check_rank_settings().
  [[nodiscard]] static std::unique_ptr<RankSession> make(const RankSettings& settings);
  virtual ~RankSession() = default;
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  // ---- the cache thread's; precondition: over() is ok
  // As RankGroup::report().
  [[nodiscard]] virtual Status report(OpId op, const OutcomeBits& bits) = 0;
  // As RankGroup::take() with something pending, but never waits. kDeadlineExceeded: the plan has not come yet.
  [[nodiscard]] virtual Status take(std::uint64_t step, std::vector<AgreedEvent>& out) = 0;

  // ---- the network's
  // A connection is there; `peer`: an address, for messages; `nonce`: drawn for it alone. Once the group is over it is
  // given nothing, and is to be closed.
  [[nodiscard]] virtual LinkId open(std::string peer, const Digest256& nonce) = 0;
  // Any bytes that came on it. Of one that is closed: nothing happens.
  virtual void receive(LinkId link, std::string_view bytes) = 0;
  // It is closed, whoever has closed it and why; or it could not be made (link 0). Called once for each that is open.
  virtual void closed(LinkId link, const std::string& why) = 0;
  // So much time has passed. As silence of others no more than half an alive_interval of it counts: a process that
  // stood still has heard nobody in that time, and must not lay it to the others' charge.
  virtual void tick(Nanos elapsed) = 0;
  struct Output {
    std::string bytes;
    bool is_last = false;  // close the connection after these
  };
  // What is to be sent next on a connection; no bytes: nothing now.
  [[nodiscard]] virtual Output take_output(LinkId link) = 0;
  // take_output() of some connection would give bytes, or say for the first time that they were the last.
  [[nodiscard]] virtual bool wants_output() const = 0;
  // A follower that has no connection to its leader, and needs one.
  [[nodiscard]] virtual bool wants_link() const = 0;

  // ---- the owner's
  // This rank ends: says so to the others.
  virtual void leave(const std::string& why) = 0;
  [[nodiscard]] virtual std::vector<RankHealth> health() const = 0;
  // All ranks are there, as far as this one knows.
  [[nodiscard]] bool is_formed() const { return is_formed_; }
  // What the group still waits for to be formed, in words.
  [[nodiscard]] virtual std::string missing_text() const = 0;
  // Not ok (kCancelled): the group is over, and why.
  [[nodiscard]] const Status& over() const { return over_; }
  [[nodiscard]] const RankTraffic& traffic() const { return traffic_; }

 protected:
  explicit RankSession(const RankSettings& settings);
  void count_sent(Kind kind) { ++traffic_.frames_sent[static_cast<std::size_t>(kind)]; }
  void count_received(Kind kind) { ++traffic_.frames_received[static_cast<std::size_t>(kind)]; }
  // Whether the log gets a line about the `count`th of many of a kind: whoever causes them writes no log of any length.
  [[nodiscard]] static bool is_logged(std::uint64_t count) { return count <= 16 || std::has_single_bit(count); }
  // kInvalidArgument: more than the wire carries.
  [[nodiscard]] Status check_outcome(OpId op, const OutcomeBits& bits) const;
  // Of `elapsed`, what may count as silence of others.
  [[nodiscard]] Nanos silence_of(Nanos elapsed) const { return std::min(elapsed, settings_.alive_interval / 2); }

  const RankSettings settings_;  // with the facts that are there anyway
  bool is_formed_;
  Status over_;
  RankTraffic traffic_;
  Nanos forming_{};  // time that went by before all ranks were there
};

// "1.5 s"
[[nodiscard]] std::string seconds_text(Nanos time);

}  // namespace larder::ranks
