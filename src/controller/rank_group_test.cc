// SPDX-License-Identifier: Apache-2.0
// Members on their own threads, events in random order and at random times: same list everywhere, no hang. Of every
// kind of group: in one process, over a simulated network, over TCP.
#include "controller/rank_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "tests/support/rank_groups.h"

namespace larder {
namespace {

using test::GroupKind;
using test::RankGroups;

constexpr Nanos kLong = std::chrono::seconds(60);

// The outcome of `op` at `rank`: known to the test, so that the AND can be recomputed.
OutcomeBits outcome(std::uint64_t seed, std::uint32_t rank, std::uint64_t op) {
  Rng rng(seed * 1'000'003 + op * 64 + rank);
  OutcomeBits bits(rng.between(1, 3));
  for (std::uint64_t& word : bits) word = rng.chance(1, 4) ? 0 : ~(std::uint64_t{1} << rng.below(64));
  return bits;
}

OutcomeBits outcome_of_all(std::uint64_t seed, std::uint32_t ranks, std::uint64_t op) {
  OutcomeBits sum = outcome(seed, 0, op);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    OutcomeBits bits = outcome(seed, rank, op);
    const std::size_t words = std::max(sum.size(), bits.size());
    sum.resize(words);
    bits.resize(words);
    for (std::size_t i = 0; i < words; ++i) sum[i] &= bits[i];
  }
  return sum;
}

// Where each rank is. In a server the model's own collectives keep ranks within a step or two; here this does.
struct Progress {
  static constexpr std::uint64_t kMaxLead = 8;
  std::vector<std::atomic<std::uint64_t>> steps;
  explicit Progress(std::uint32_t ranks) : steps(ranks) {}
  void leader_waits_at(std::uint64_t step) const {
    for (std::size_t r = 1; r < steps.size(); ++r) {
      while (steps[r].load() + kMaxLead < step) std::this_thread::yield();
    }
  }
};

struct RankLog {
  std::vector<std::pair<std::uint64_t, AgreedEvent>> events;  // with the step before which they were applied
  std::uint64_t deadlines = 0;
  std::uint64_t idle_steps = 0;
  bool failed = false;
};

// One rank's life: operations start at steps that are the same everywhere, and complete here when this rank's dice say
// so. Every third dozen of steps starts nothing, so that the group is idle now and then.
RankLog run_rank(RankGroup& group, Progress& progress, std::uint64_t seed, std::uint64_t operations) {
  constexpr std::size_t kWindow = 12;
  RankLog log;
  Rng rng(seed * 31 + group.rank());
  std::uint64_t started = 0;
  std::set<std::uint64_t> running, reported;
  std::size_t waiting = 0;  // started and not applied: the same on all ranks
  for (std::uint64_t step = 0; log.events.size() < operations && !log.failed; ++step) {
    progress.steps[group.rank()] = step;
    if (group.rank() == 0) progress.leader_waits_at(step);
    for (int i = 0; i < 2 && step % 36 < 24 && started < operations && waiting < kWindow; ++i, ++waiting) {
      running.insert(started++);
    }
    for (const std::uint64_t op : std::vector<std::uint64_t>(running.begin(), running.end())) {
      if (!rng.chance(1, 3)) continue;
      running.erase(op);
      if (!group.report(OpId(op), outcome(seed, group.rank(), op))) log.failed = true;
    }
    log.idle_steps += waiting == 0;
    std::vector<AgreedEvent> events;
    for (;;) {
      const Nanos limit = rng.chance(1, 4) ? std::chrono::microseconds(rng.below(200)) : kLong;
      const Status status = group.take(step, waiting > 0, limit, events);
      if (status.is_ok()) break;
      log.deadlines += status.code() == StatusCode::kDeadlineExceeded;
      if (status.code() != StatusCode::kDeadlineExceeded || !events.empty()) log.failed = true;
      if (log.failed) break;
    }
    waiting -= events.size();
    for (AgreedEvent& event : events) log.events.emplace_back(step, std::move(event));
    for (std::uint64_t yields = rng.below(4); yields > 0; --yields) std::this_thread::yield();
  }
  progress.steps[group.rank()] = ~std::uint64_t{0} / 2;
  return log;
}

void report_all(RankGroups& members, OpId op, const OutcomeBits& bits) {
  for (std::size_t rank = 0; rank < members.size(); ++rank) ASSERT_TRUE(members[rank]->report(op, bits));
  members.settle();
}

class EveryRankGroup : public ::testing::TestWithParam<GroupKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryRankGroup,
                         ::testing::Values(GroupKind::kInProcess, GroupKind::kSimulated, GroupKind::kTcp),
                         [](const auto& param_info) { return test::group_kind_name(param_info.param); });

TEST_P(EveryRankGroup, RanksAgreeOnOrderStepsAndOutcomes) {
  constexpr std::uint32_t kRanks = 4;
  constexpr std::uint64_t kOperations = 250;
  std::uint64_t idle_steps = 0;  // over all seeds: how many a seed has is up to the threads
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RankGroups members(GetParam(), kRanks, real_clock(), 64, seed);
    std::vector<RankLog> logs(kRanks);
    Progress progress(kRanks);
    {
      ThreadPoolExecutor threads("rank", kRanks, kRanks);
      for (std::uint32_t r = 0; r < kRanks; ++r) {
        ASSERT_TRUE(threads.post([&, r] { logs[r] = run_rank(*members[r], progress, seed, kOperations); }));
      }
    }
    for (std::uint32_t r = 0; r < kRanks; ++r) {
      ASSERT_FALSE(logs[r].failed);
      ASSERT_EQ(logs[r].events.size(), kOperations);
      EXPECT_EQ(logs[r].idle_steps, logs[0].idle_steps);
    }
    idle_steps += logs[0].idle_steps;
    std::set<std::uint64_t> seen;
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto& [step, event] = logs[0].events[i];
      EXPECT_EQ(event.bits, outcome_of_all(seed, kRanks, event.op.v));
      seen.insert(event.op.v);
      for (std::uint32_t r = 1; r < kRanks; ++r) {
        EXPECT_EQ(logs[r].events[i].first, step);
        EXPECT_EQ(logs[r].events[i].second.op, event.op);
        EXPECT_EQ(logs[r].events[i].second.bits, event.bits);
      }
    }
    EXPECT_EQ(seen.size(), kOperations);
  }
  EXPECT_GT(idle_steps, 0u);
}

TEST_P(EveryRankGroup, NothingPendingTouchesNothingAndNeverWaits) {
  RankGroups members(GetParam(), 2, real_clock(), 4);
  ASSERT_TRUE(members[0]->report(OpId(1), {1}));
  ASSERT_TRUE(members[1]->report(OpId(1), {1}));
  members.settle();
  const std::uint64_t messages = members.messages();
  std::vector<AgreedEvent> events;
  // The follower runs ahead of a leader that never plans: it would wait for a minute if it touched the group.
  for (std::uint64_t step = 0; step < 1000; ++step) ASSERT_TRUE(members[1]->take(step, false, kLong, events));
  EXPECT_TRUE(events.empty());
  for (std::uint64_t step = 0; step < 1000; ++step) ASSERT_TRUE(members[0]->take(step, false, kLong, events));
  EXPECT_TRUE(events.empty());
  members.settle();
  EXPECT_EQ(members.messages(), messages) << "nothing was pending, and something was said";
  ASSERT_TRUE(members[0]->take(1000, true, kLong, events));
  ASSERT_EQ(events.size(), 1u);
  ASSERT_TRUE(members[1]->take(1000, true, kLong, events));
  EXPECT_EQ(events.size(), 2u);
}

TEST_P(EveryRankGroup, StepThatWasGivenUpIsMadeUpForByTheNext) {
  RankGroups members(GetParam(), 2, real_clock(), 4);
  report_all(members, OpId(1), {1});
  std::vector<AgreedEvent> events;
  ASSERT_TRUE(members[0]->take(0, true, kLong, events));
  report_all(members, OpId(2), {1});
  ASSERT_TRUE(members[0]->take(1, true, kLong, events));
  events.clear();
  ASSERT_TRUE(members[1]->take(1, true, kLong, events));  // never asked for step 0
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].op, OpId(1));
  EXPECT_EQ(events[1].op, OpId(2));
}

TEST_P(EveryRankGroup, DeadlineIsKeptAndTheSameStepGoesOn) {
  ManualClock clock;
  RankGroups members(GetParam(), 2, clock, 4);
  report_all(members, OpId(7), {0b110, 1});
  std::vector<AgreedEvent> events;
  EXPECT_EQ(members[1]->take(0, true, Nanos{0}, events).code(), StatusCode::kDeadlineExceeded);

  std::atomic<bool> is_over{false};
  Status status;
  ThreadPoolExecutor thread("rank", 1, 1);
  ASSERT_TRUE(thread.post([&] {
    status = members[1]->take(0, true, std::chrono::seconds(5), events);
    is_over = true;
  }));
  std::uint64_t advances = 0;
  for (; !is_over; ++advances) {
    clock.advance(std::chrono::milliseconds(1));
    std::this_thread::yield();
  }
  thread.wait_idle();
  EXPECT_GE(advances, 5000u);  // not before the injected clock said so
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(events.empty());

  ASSERT_TRUE(members[0]->take(0, true, Nanos{0}, events));  // the leader waits for nobody
  members.settle();
  ASSERT_TRUE(members[1]->take(0, true, Nanos{0}, events));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].op, OpId(7));
  EXPECT_EQ(events[1].bits, (OutcomeBits{0b110, 1}));
}

TEST_P(EveryRankGroup, OutcomesAreTheAndOverRanksPaddedWithZeros) {
  RankGroups members(GetParam(), 3, real_clock(), 4);
  ASSERT_TRUE(members[1]->report(OpId(2), {0b1101}));
  ASSERT_TRUE(members[0]->report(OpId(2), {0b0111, ~0ull}));
  ASSERT_TRUE(members[0]->report(OpId(1), {1}));
  std::vector<AgreedEvent> events;
  ASSERT_TRUE(members[0]->take(0, true, kLong, events));
  EXPECT_TRUE(events.empty());  // rank 2 has not spoken
  members.settle();
  ASSERT_TRUE(members[2]->report(OpId(1), {3}));
  ASSERT_TRUE(members[1]->report(OpId(1), {1}));
  ASSERT_TRUE(members[2]->report(OpId(2), {0b1111, ~0ull}));
  members.settle();
  ASSERT_TRUE(members[0]->take(1, true, kLong, events));
  ASSERT_EQ(events.size(), 2u);  // in the leader's order, not in the order of completion
  EXPECT_EQ(events[0].op, OpId(2));
  EXPECT_EQ(events[0].bits, (OutcomeBits{0b0101, 0}));
  EXPECT_EQ(events[1].op, OpId(1));
  EXPECT_EQ(events[1].bits, (OutcomeBits{1}));
}

TEST_P(EveryRankGroup, IsBoundedAndRefusesWhatItCannotMean) {
  RankGroups members(GetParam(), 2, real_clock(), 2);
  ASSERT_TRUE(members[0]->report(OpId(1), {1}));
  EXPECT_EQ(members[0]->report(OpId(1), {1}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(members[0]->report(OpId(2), {1}));
  EXPECT_EQ(members[0]->report(OpId(3), {1}).code(), StatusCode::kOverloaded);
  std::vector<AgreedEvent> events;
  // Agreed and taken here, but not yet there: still outstanding.
  ASSERT_TRUE(members[1]->report(OpId(1), {1}));
  members.settle();
  ASSERT_TRUE(members[0]->take(0, true, kLong, events));
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ(members[0]->report(OpId(3), {1}).code(), StatusCode::kOverloaded);
  ASSERT_TRUE(members[1]->take(0, true, kLong, events));
  members.settle();
  EXPECT_TRUE(members[0]->report(OpId(3), {1}));

  EXPECT_EQ(members[0]->take(0, true, kLong, events).code(), StatusCode::kInvalidArgument);  // steps only count up

  // A leader whose follower stopped is refused at some point instead of eating memory.
  Status status;
  std::uint64_t step = 1;
  for (; status.is_ok() && step < 100'000; ++step) status = members[0]->take(step, true, kLong, events);
  EXPECT_EQ(status.code(), StatusCode::kOverloaded);
}

TEST_P(EveryRankGroup, WhoGivesUpEndsTheGroupForAll) {
  for (const std::size_t who : {0u, 2u}) {
    RankGroups members(GetParam(), 3, real_clock(), 4);
    ASSERT_TRUE(members[0]->report(OpId(1), {1}));
    members[who]->give_up("its cache waited in vain");
    members[who]->give_up("said again");
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<AgreedEvent> events;
      Status status;
      // A leader has a plan for each step until it is told; a follower waits.
      for (std::uint64_t step = 0; status.code() != StatusCode::kCancelled && step < 1'000'000; ++step) {
        status = members[rank]->take(step, true, std::chrono::milliseconds(1), events);
      }
      ASSERT_EQ(status.code(), StatusCode::kCancelled) << "rank " << rank << ": " << status.to_string();
      EXPECT_NE(status.message().find("its cache waited in vain"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("rank " + std::to_string(who)), std::string::npos) << status.message();
      EXPECT_EQ(status.message().find("said again"), std::string::npos) << status.message();
      EXPECT_EQ(members[rank]->take(2'000'000, false, Nanos(0), events).code(), StatusCode::kCancelled);
      EXPECT_EQ(members[rank]->report(OpId(2), {1}).code(), StatusCode::kUnavailable);
      EXPECT_TRUE(events.empty());
    }
  }
}

TEST_P(EveryRankGroup, OfOneAgreesAtOnce) {
  RankGroups members(GetParam(), 1, real_clock(), 2);
  ASSERT_EQ(members.size(), 1u);
  EXPECT_EQ(members[0]->size(), 1u);
  std::vector<AgreedEvent> events;
  for (std::uint64_t step = 0; step < 10'000; ++step) {
    ASSERT_TRUE(members[0]->report(OpId(step), {step}));
    ASSERT_TRUE(members[0]->take(step, true, Nanos{0}, events));
  }
  EXPECT_EQ(events.size(), 10'000u);
}

}  // namespace
}  // namespace larder
