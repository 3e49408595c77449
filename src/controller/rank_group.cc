// SPDX-License-Identifier: Apache-2.0
#include "controller/rank_group.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/defect.h"
#include "base/ranked_mutex.h"

namespace larder {
namespace {

// How far the leader may run ahead of its slowest follower: bounds the table of plans (16 bytes each).
constexpr std::size_t kMaxPlansAhead = 4096;
// How long a follower waits before it looks at the injected clock again: a manual clock does not end a real wait.
constexpr Nanos kClockLookInterval = std::chrono::milliseconds(2);

void and_into(OutcomeBits& sum, const OutcomeBits& bits) {
  const std::size_t common = std::min(sum.size(), bits.size());
  for (std::size_t i = 0; i < common; ++i) sum[i] &= bits[i];
  sum.resize(std::max(sum.size(), bits.size()));
  std::fill(sum.begin() + static_cast<std::ptrdiff_t>(common), sum.end(), 0);
}

// What the members share: the reduction, the agreed list and the plans of the leader.
//
//   report(r) ──► open_[op].bits &= ..., reports + 1       leader's report: op joins leader_order_
//   plan()    ──► ops of leader_order_ with a report of every rank move, in that order, to the end of agreed_
//   collect() ──► events [applied of this rank, n); what every rank has applied leaves the front of agreed_
//
// Threads: all methods, any thread. Limits: max_outstanding events per rank, kMaxPlansAhead plans.
class GroupState {
 public:
  GroupState(std::uint32_t ranks, std::size_t max_outstanding) : max_outstanding_(max_outstanding), members_(ranks) {}

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }

  Status report(std::uint32_t rank, OpId op, const OutcomeBits& bits) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    Member& member = members_[rank];
    if (member.outstanding >= max_outstanding_) {
      return overloaded("rank group: rank " + std::to_string(rank) + " has " + std::to_string(max_outstanding_) +
                        " events outstanding; take() and apply some first");
    }
    const auto [at, added] = open_.try_emplace(op, OpenEvent{bits, std::vector<bool>(members_.size())});
    OpenEvent& event = at->second;
    if (event.reported[rank]) {
      return invalid_argument("rank group: rank " + std::to_string(rank) + " reported operation " +
                              std::to_string(op.v) + " twice");
    }
    if (!added && !defect(Defect::kRanksDecideAlone)) and_into(event.bits, bits);
    event.reported[rank] = true;
    ++event.reports;
    ++member.outstanding;
    if (rank == 0) leader_order_.push_back(op);
    return Status::ok();
  }

  // The leader's plan for `step`: all that is agreed by now.
  Status plan(std::uint64_t step, std::vector<AgreedEvent>& out) LARDER_EXCLUDES(mutex_) {
    {
      LockGuard guard(mutex_);
      if (members_.size() > 1 && plans_.size() >= kMaxPlansAhead) {
        return overloaded("rank group: a follower is " + std::to_string(kMaxPlansAhead) + " steps behind");
      }
      promote_agreed();
      const std::uint64_t count = first_agreed_ + agreed_.size();
      if (members_.size() > 1) plans_.emplace(step, count);
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

 private:
  struct OpenEvent {
    OutcomeBits bits;            // AND of the reports so far
    std::vector<bool> reported;  // by rank
    std::uint32_t reports = 0;
  };
  struct Member {
    std::size_t outstanding = 0;  // reported, and not yet applied by every rank
    std::uint64_t applied = 0;    // events of the agreed list that it took
    std::uint64_t next_step = 0;  // plans below it are of no use to it
  };

  void promote_agreed() LARDER_REQUIRES(mutex_) {
    std::deque<OpId> still_open;
    for (const OpId op : leader_order_) {
      const auto at = open_.find(op);
      if (at->second.reports < members_.size()) {
        still_open.push_back(op);
        continue;
      }
      agreed_.push_back({op, std::move(at->second.bits)});
      open_.erase(at);
    }
    leader_order_.swap(still_open);
  }

  // Hands events [applied, count) to `rank` and drops what nobody needs any more.
  void collect(std::uint32_t rank, std::uint64_t step, std::uint64_t count, std::vector<AgreedEvent>& out)
      LARDER_REQUIRES(mutex_) {
    Member& member = members_[rank];
    for (std::uint64_t i = member.applied; i < count; ++i) {
      out.push_back(agreed_[static_cast<std::size_t>(i - first_agreed_)]);
    }
    member.applied = count;
    member.next_step = step + 1;
    std::uint64_t everywhere = count;
    std::uint64_t oldest_step = step + 1;
    for (std::size_t r = 0; r < members_.size(); ++r) {
      everywhere = std::min(everywhere, members_[r].applied);
      if (r > 0) oldest_step = std::min(oldest_step, members_[r].next_step);  // the leader reads no plans
    }
    for (; first_agreed_ < everywhere; ++first_agreed_) {
      agreed_.pop_front();
      for (Member& m : members_) --m.outstanding;
    }
    plans_.erase(plans_.begin(), plans_.lower_bound(oldest_step));
  }

  // const after construction
  const std::size_t max_outstanding_;

  RankedMutex mutex_{LockRank::kController};
  RankedCondition changed_;      // a plan was added
  std::vector<Member> members_;  // guarded by mutex_, but for its length, which is const
  std::unordered_map<OpId, OpenEvent> open_ LARDER_GUARDED_BY(mutex_);
  std::deque<OpId> leader_order_ LARDER_GUARDED_BY(mutex_);   // open events that the leader reported
  std::deque<AgreedEvent> agreed_ LARDER_GUARDED_BY(mutex_);  // events first_agreed_, first_agreed_ + 1, ...
  std::uint64_t first_agreed_ LARDER_GUARDED_BY(mutex_) = 0;
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
    if (pending) {
      LARDER_RETURN_IF_ERROR(rank_ == 0 ? group_->plan(step, out) : group_->follow(rank_, step, clock_, deadline, out));
    }
    next_step_ = step + 1;
    return Status::ok();
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
