// SPDX-License-Identifier: Apache-2.0
#include "controller/rank_group.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "base/ranked_mutex.h"
#include "controller/ranks/rank_agreement.h"

namespace larder {
namespace {

// How far the leader may run ahead of its slowest follower: bounds the table of plans (16 bytes each).
constexpr std::size_t kMaxPlansAhead = 4096;
// How long a follower waits before it looks at the injected clock again: a manual clock does not end a real wait.
constexpr Nanos kClockLookInterval = std::chrono::milliseconds(2);

// What the members share: the agreement and the plans of the leader.
// Threads: all methods, any thread. Limits: max_outstanding events per rank, kMaxPlansAhead plans.
class GroupState {
 public:
  GroupState(std::uint32_t ranks, std::size_t max_outstanding) : ranks_(ranks), agreement_(ranks, max_outstanding) {}

  [[nodiscard]] std::uint32_t size() const { return ranks_; }

  Status report(std::uint32_t rank, OpId op, const OutcomeBits& bits) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    if (!over_.is_ok()) return unavailable(over_.message());
    return agreement_.report(rank, op, bits);
  }

  // The leader's plan for `step`: all that is agreed by now.
  Status plan(std::uint64_t step, std::vector<AgreedEvent>& out) LARDER_EXCLUDES(mutex_) {
    {
      LockGuard guard(mutex_);
      if (!over_.is_ok()) return over_;
      if (ranks_ > 1 && plans_.size() >= kMaxPlansAhead) {
        return overloaded("rank group: a follower is " + std::to_string(kMaxPlansAhead) + " steps behind");
      }
      const std::uint64_t count = agreement_.promote();
      if (ranks_ > 1) plans_.emplace(step, count);
      collect(0, step, count, out);
    }
    changed_.notify_all();
    return Status::ok();
  }

  // Waits for the leader's plan for `step` until `limit` on `clock` is over.
  Status follow(std::uint32_t rank, std::uint64_t step, Clock& clock, Nanos limit, std::vector<AgreedEvent>& out)
      LARDER_EXCLUDES(mutex_) {
    const TimePoint start = clock.now();
    LockGuard guard(mutex_);
    for (;;) {
      if (!over_.is_ok()) return over_;
      const auto plan = plans_.find(step);
      if (plan != plans_.end()) {
        collect(rank, step, plan->second, out);
        return Status::ok();
      }
      const Nanos waited = clock.now() - start;
      if (waited >= limit) {
        return deadline_exceeded("rank group: rank " + std::to_string(rank) + " has no plan for step " +
                                 std::to_string(step) + " from the leader yet; call again with the same step");
      }
      (void)changed_.wait_for(mutex_, std::min(kClockLookInterval, limit - waited));
    }
  }

  void end(const std::string& why) LARDER_EXCLUDES(mutex_) {
    {
      LockGuard guard(mutex_);
      if (!over_.is_ok()) return;
      over_ = cancelled("rank group: " + why);
      is_over_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool is_over() const { return is_over_.load(std::memory_order_acquire); }

 private:
  // Hands the events up to `count` that `rank` has not had to it, and drops the plans that nobody needs any more.
  void collect(std::uint32_t rank, std::uint64_t step, std::uint64_t count, std::vector<AgreedEvent>& out)
      LARDER_REQUIRES(mutex_) {
    for (std::uint64_t i = agreement_.applied(rank); i < count; ++i) out.push_back(agreement_.event(i));
    agreement_.applied(rank, count);
    next_steps_[rank] = step + 1;
    std::uint64_t oldest_step = step + 1;
    for (std::size_t r = 1; r < ranks_; ++r) oldest_step = std::min(oldest_step, next_steps_[r]);  // all but the leader
    plans_.erase(plans_.begin(), plans_.lower_bound(oldest_step));
  }

  const std::uint32_t ranks_;

  std::atomic<bool> is_over_{false};  // what over_ says, for who has nothing pending
  RankedMutex mutex_{LockRank::kController};
  RankedCondition changed_;                // a plan was added, or the group is over
  Status over_ LARDER_GUARDED_BY(mutex_);  // not ok: it is over, and why
  ranks::RankAgreement agreement_ LARDER_GUARDED_BY(mutex_);
  // By rank: plans for steps below it are of no use to that rank.
  std::vector<std::uint64_t> next_steps_ LARDER_GUARDED_BY(mutex_) = std::vector<std::uint64_t>(ranks_);
  std::map<std::uint64_t, std::uint64_t> plans_ LARDER_GUARDED_BY(mutex_);  // step -> events to have applied before it
};

class InProcessRank final : public RankGroup {
 public:
  InProcessRank(std::shared_ptr<GroupState> group, std::uint32_t rank, Clock& clock)
      : group_(std::move(group)), rank_(rank), clock_(clock) {}

  [[nodiscard]] std::uint32_t rank() const override { return rank_; }
  [[nodiscard]] std::uint32_t size() const override { return group_->size(); }
  [[nodiscard]] Status report(OpId op, OutcomeBits bits) override { return group_->report(rank_, op, bits); }

  [[nodiscard]] Status take(std::uint64_t step, bool pending, Nanos deadline, std::vector<AgreedEvent>& out) override {
    // A rank that gave a step up may go on with a later one: it gets the events of both.
    if (step < next_step_) {
      return invalid_argument("rank group: rank " + std::to_string(rank_) + " asks for step " + std::to_string(step) +
                              " again, the next one is " + std::to_string(next_step_));
    }
    if (pending || group_->is_over()) {
      LARDER_RETURN_IF_ERROR(rank_ == 0 ? group_->plan(step, out) : group_->follow(rank_, step, clock_, deadline, out));
    }
    next_step_ = step + 1;
    return Status::ok();
  }

  void give_up(const std::string& why) override {
    group_->end("rank " + std::to_string(rank_) + " has ended (" + why + ")");
  }

 private:
  const std::shared_ptr<GroupState> group_;  // shared: members may die in any order
  const std::uint32_t rank_;
  Clock& clock_;
  std::uint64_t next_step_ = 0;  // owned by this rank's cache thread
};

}  // namespace

std::vector<std::unique_ptr<RankGroup>> make_in_process_rank_group(std::uint32_t ranks, Clock& clock,
                                                                   std::size_t max_outstanding) {
  std::vector<std::unique_ptr<RankGroup>> members;
  const auto group = std::make_shared<GroupState>(std::max(ranks, 1u), std::max<std::size_t>(max_outstanding, 1));
  for (std::uint32_t rank = 0; rank < group->size(); ++rank) {
    members.push_back(std::make_unique<InProcessRank>(group, rank, clock));
  }
  return members;
}

}  // namespace larder
