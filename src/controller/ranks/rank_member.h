// SPDX-License-Identifier: Apache-2.0
// A rank of a group whose members are processes: a RankGroup for the cache thread, and bytes for a network.
//
//   cache thread ── report(), take() ──►  RankMember  ◄── open_link(), receive(), tick() ... ── a network's thread
//                                             └── wake(): there may be output ──►
//
// Networks: real_tcp_ranks.h; sim/sim_rank_network.h for tests.
// Nothing pending: no message. take() without something pending looks at one flag, which says whether the group is
// over, and at nothing else.
//
// Threads: report(), take() and give_up(): the cache thread; the rest: any. `wake` is called without a lock held, from
// any of them; it must neither block nor call back. Lifetime: the clock outlives it. Errors: as RankGroup; once the
// group is over take() is kCancelled and report() kUnavailable, with the words of RankSession::over(). Cost: one short
// lock each (rank kController). take() of a follower waits for the leader's plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "controller/rank_group.h"
#include "controller/ranks/rank_session.h"

namespace larder::ranks {

class RankMember final : public RankGroup {
 public:
  // Precondition: check_rank_settings().
  RankMember(const RankSettings& settings, Clock& clock, std::function<void()> wake);

  // ---- the cache thread's
  [[nodiscard]] std::uint32_t rank() const override { return rank_; }
  [[nodiscard]] std::uint32_t size() const override { return ranks_; }
  [[nodiscard]] Status report(OpId op, OutcomeBits bits) override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status take(std::uint64_t step, bool pending, Nanos deadline, std::vector<AgreedEvent>& out) override
      LARDER_EXCLUDES(mutex_);
  void give_up(const std::string& why) override { leave(why); }

  // ---- the network's: as RankSession
  // Fails where the settings' draw() fails: the connection is then of no use.
  [[nodiscard]] Result<LinkId> open_link(std::string peer) LARDER_EXCLUDES(mutex_);
  void receive(LinkId link, std::string_view bytes) LARDER_EXCLUDES(mutex_);
  void close_link(LinkId link, const std::string& why) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] RankSession::Output take_output(LinkId link) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool wants_output() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool wants_link() const LARDER_EXCLUDES(mutex_);
  // Call it at least every tick_interval(), after what has arrived was received: what stands in a queue is no silence.
  void tick() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Nanos tick_interval() const { return alive_interval_ / 4; }

  // ---- the owner's
  // Ok once all ranks were there; kDeadlineExceeded: not within `limit`, and what is missing; kCancelled: the group is
  // over.
  [[nodiscard]] Status wait_formed(Nanos limit) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Ok, or kCancelled: the group is over, and why.
  [[nodiscard]] Status status() const LARDER_EXCLUDES(mutex_);
  // This rank ends. The network may still have to send that.
  void leave(const std::string& why) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<RankHealth> health() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] RankTraffic traffic() const LARDER_EXCLUDES(mutex_);

 private:
  // After whatever may have ended the group, under the same lock: who has heard of the end finds it at each call.
  void note_end() LARDER_REQUIRES(mutex_);

  const std::uint32_t rank_, ranks_;
  const Nanos alive_interval_;
  const std::function<Result<Digest256>()> draw_;
  Clock& clock_;
  const std::function<void()> wake_;
  std::uint64_t next_step_ = 0;  // owned by the cache thread

  std::atomic<bool> is_over_{false};  // what session_ says, for who has nothing pending
  mutable RankedMutex mutex_{LockRank::kController};
  RankedCondition changed_;
  const std::unique_ptr<RankSession> session_ LARDER_PT_GUARDED_BY(mutex_);
  TimePoint ticked_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::ranks
