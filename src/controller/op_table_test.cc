// SPDX-License-Identifier: Apache-2.0
// The table of operations without a cache: what is counted, what ends when, and in which order ranks see it.
#include "controller/op_table.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "sim/sim_clock.h"
#include "tests/support/follower_of_one.h"

namespace larder {
namespace {

OpTable::OutcomeOf all_well() {
  return [](Op&) { return OutcomeBits{1}; };
}

class OpTableTest : public ::testing::Test {
 protected:
  static std::vector<std::uint64_t> ids_of(const std::vector<AgreedEvent>& events) {
    std::vector<std::uint64_t> ids;
    for (const AgreedEvent& event : events) ids.push_back(event.op.v);
    return ids;
  }
  std::vector<std::uint64_t> ended(OpTable& table) {
    (void)table.collect(Nanos{0});
    table.agree();
    return ids_of(table.take_ended());
  }
  void settle(OpTable& table) {
    for (const std::uint64_t id : ended(table)) table.erase(OpId(id));
  }

  sim::SimClock clock_;
  const OpTable::Limits limits_{.max_operations = 16, .max_explains = 2};
  OpTable table_{limits_, clock_, nullptr, all_well()};
};

TEST_F(OpTableTest, AnOperationEndsOnceWhenItsCompletionArrives) {
  Op& first = table_.add(OpKind::kLoad);
  Op& second = table_.add(OpKind::kBackup);
  EXPECT_EQ(second.id.v, first.id.v + 1);
  auto post_first = table_.completion_for(first.id), post_second = table_.completion_for(second.id);
  EXPECT_TRUE(ended(table_).empty());
  post_second(TransferDone{second.id, Status::ok(), {}, {}});
  post_first(TransferDone{first.id, Status::ok(), {}, {}});
  EXPECT_EQ(ended(table_), (std::vector<std::uint64_t>{second.id.v, first.id.v}));
  EXPECT_TRUE(ended(table_).empty());
  EXPECT_EQ(table_.places().open(OpKind::kLoad), 1u);  // until its owner has applied it
  table_.erase(first.id);
  table_.erase(second.id);
  EXPECT_TRUE(table_.empty());
}

// What the budget of a poll does not reach keeps its order, and nobody waits while it is there.
TEST_F(OpTableTest, EventsEndWithTheBudgetOfThePoll) {
  OpTable table({.max_operations = 16, .max_explains = 2, .poll_budget = 8}, clock_, nullptr, all_well());
  std::vector<std::uint64_t> expected, applied;
  for (int i = 0; i < 11; ++i) {
    const OpId id = table.add(i % 4 == 3 ? OpKind::kExplain : OpKind::kLoad).id;
    expected.push_back(id.v);
    table.completion_for(id)(TransferDone{id, Status::ok(), {}, {}});
  }
  std::vector<std::size_t> of_poll;
  for (int poll = 0; poll < 4; ++poll) {
    EXPECT_EQ(table.collect(std::chrono::minutes(1)), poll == 0);
    table.agree();
    of_poll.push_back(0);
    while (const std::optional<AgreedEvent> event = table.next_ended()) {
      applied.push_back(event->op.v);
      table.erase(event->op);
      ++of_poll.back();
    }
    table.budget().end_poll();
    if (!table.budget().is_short()) break;
  }
  EXPECT_EQ(applied, expected);
  EXPECT_EQ(of_poll, (std::vector<std::size_t>{5, 5, 1})) << "four of eight units, and explanations are free";
  EXPECT_EQ(table.budget().most(), 4u);
}

// Events may take a half, each of the others a quarter and what was left before it.
TEST(WorkBudgetTest, EachShareGetsItsPart) {
  WorkBudget budget(16);
  budget.spend(100);
  EXPECT_EQ(budget.most(), 0u) << "not in a poll";
  const auto take = [&] {
    std::uint64_t units = 0;
    for (; budget.has_left() && units < 100; ++units) budget.spend(1);
    return units;
  };
  budget.begin_poll();
  EXPECT_EQ(take(), 8u);
  budget.begin_share(WorkBudget::Share::kFetches);
  EXPECT_EQ(take(), 4u);
  budget.begin_share(WorkBudget::Share::kWrites);
  EXPECT_EQ(take(), 4u);
  budget.end_poll();
  EXPECT_EQ(budget.most(), 16u);
  budget.begin_poll();
  budget.begin_share(WorkBudget::Share::kWrites);
  EXPECT_EQ(take(), 16u) << "nobody else had anything to do";
  EXPECT_FALSE(budget.is_short());
}

TEST_F(OpTableTest, ACompletionOfAnErasedOperationIsNobodys) {
  const OpId id = table_.add(OpKind::kLoad).id;
  auto post = table_.completion_for(id);
  table_.erase(id);
  post(TransferDone{id, Status::ok(), {}, {}});
  EXPECT_TRUE(ended(table_).empty());
}

TEST_F(OpTableTest, TimersEndInTheOrderOfTheirTimes) {
  const TimePoint now = clock_.now();
  const OpId late = table_.add_timer(now + Nanos(30)).id, early = table_.add_timer(now + Nanos(10)).id;
  const OpId moved = table_.add_timer(now + Nanos(99)).id, gone = table_.add_timer(now + Nanos(5)).id;
  table_.set_due(*table_.find(moved), now + Nanos(20));
  table_.erase(gone);
  EXPECT_TRUE(ended(table_).empty());
  clock_.advance(Nanos(10));
  EXPECT_EQ(ended(table_), std::vector<std::uint64_t>{early.v});
  clock_.advance(Nanos(90));
  EXPECT_EQ(ended(table_), (std::vector<std::uint64_t>{moved.v, late.v}));
  EXPECT_TRUE(ended(table_).empty());
}

TEST_F(OpTableTest, ATimerThatGuardsNothingEndsBeforeItsTimeAndOnce) {
  Op& timer = table_.add_timer(clock_.now() + Nanos(10));
  table_.end(timer);
  table_.set_due(timer, clock_.now() + Nanos(20));  // too late: it has ended
  EXPECT_EQ(ended(table_), std::vector<std::uint64_t>{timer.id.v});
  clock_.advance(Nanos(100));
  EXPECT_TRUE(ended(table_).empty());
}

TEST_F(OpTableTest, StorageTakesItsShareAndCopiesAlwaysFindPlaces) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(table_.places().has_room(OpKind::kStore));
    (void)table_.add(OpKind::kStore);
  }
  EXPECT_FALSE(table_.places().has_room(OpKind::kStore));
  for (int i = 0; i < 4; ++i) (void)table_.add(i % 2 == 0 ? OpKind::kExists : OpKind::kRead);
  EXPECT_FALSE(table_.places().has_room(OpKind::kExists));
  EXPECT_TRUE(table_.places().has_room(OpKind::kLoad, 8));
  EXPECT_FALSE(table_.places().has_room(OpKind::kLoad, 9));
  for (int i = 0; i < 8; ++i) (void)table_.add(OpKind::kBackup);
  EXPECT_FALSE(table_.places().has_room(OpKind::kStateCopy));
  EXPECT_TRUE(table_.places().has_room(OpKind::kTimer));
}

TEST_F(OpTableTest, AbandonedWritesLeaveTheNextStorageItsPlaces) {
  for (int i = 0; i < 4; ++i) (void)table_.add(OpKind::kStore);
  for (auto& [id, op] : table_.all()) EXPECT_TRUE(table_.abandon(op));
  for (auto& [id, op] : table_.all()) EXPECT_FALSE(table_.abandon(op));
  EXPECT_EQ(table_.places().live(OpKind::kStore), 0u);
  EXPECT_EQ(table_.places().live(), 0u);
  EXPECT_TRUE(table_.places().has_room(OpKind::kStore, 4));
  EXPECT_TRUE(table_.places().has_room(OpKind::kLoad, 16));
  for (int i = 0; i < 4; ++i) (void)table_.add(OpKind::kStore);
  EXPECT_FALSE(table_.places().has_room(OpKind::kStore));
}

// Queries and reads share a quarter. Those of a storage that hangs are aside; those of two have all that there are.
TEST_F(OpTableTest, AbandonedReadsLeaveTheNextStorageItsPlaces) {
  std::vector<std::function<void(Completion)>> posts;
  const auto fill_and_detach = [&] {
    ASSERT_TRUE(table_.places().has_room(OpKind::kRead, 4));
    for (const OpKind kind : {OpKind::kExists, OpKind::kRead, OpKind::kRead, OpKind::kRead}) {
      posts.push_back(table_.completion_for(table_.add(kind).id));
    }
    EXPECT_FALSE(table_.places().has_room(OpKind::kExists));
    for (auto& [id, op] : table_.all()) (void)table_.abandon(op);
  };
  fill_and_detach();
  fill_and_detach();
  EXPECT_FALSE(table_.places().has_room(OpKind::kExists));
  EXPECT_FALSE(table_.places().has_room(OpKind::kRead));
  EXPECT_FALSE(table_.places().has_room(OpKind::kLoad, 13));
  EXPECT_TRUE(table_.places().has_room(OpKind::kLoad, 12));
  for (int i = 0; i < 12; ++i) posts.push_back(table_.completion_for(table_.add(OpKind::kLoad).id));
  for (auto& post : posts) post(ExistsResult{});
  EXPECT_EQ(ended(table_).size(), 20u) << "the inbox has a place for each";
}

TEST_F(OpTableTest, ExplanationsHaveIdsAndPlacesOfTheirOwn) {
  const OpId first = table_.add(OpKind::kExplain).id;
  EXPECT_EQ(table_.add(OpKind::kLoad).id.v, 1u);
  EXPECT_GT(first.v, std::uint64_t{1} << 62);
  (void)table_.add(OpKind::kExplain);
  EXPECT_FALSE(table_.places().has_room(OpKind::kExplain));
  EXPECT_TRUE(table_.places().has_room(OpKind::kLoad, 15));
}

// Those of a storage that hangs leave the next one its places; those of two have all that there are.
TEST_F(OpTableTest, AbandonedExplanationsLeaveTheNextStorageItsPlaces) {
  std::vector<std::function<void(Completion)>> posts;
  const auto ask_twice_and_detach = [&] {
    ASSERT_TRUE(table_.places().has_room(OpKind::kExplain, 2));
    for (int i = 0; i < 2; ++i) posts.push_back(table_.completion_for(table_.add(OpKind::kExplain).id));
    EXPECT_FALSE(table_.places().has_room(OpKind::kExplain));
    for (auto& [id, op] : table_.all()) (void)table_.abandon(op);
  };
  ask_twice_and_detach();
  ask_twice_and_detach();
  EXPECT_FALSE(table_.places().has_room(OpKind::kExplain));
  EXPECT_TRUE(table_.places().has_room(OpKind::kLoad, 16));
  for (int i = 0; i < 16; ++i) posts.push_back(table_.completion_for(table_.add(OpKind::kLoad).id));
  for (auto& post : posts) post(ExistsResult{});
  EXPECT_EQ(ended(table_).size(), 20u) << "the inbox has a place for each";
}

TEST_F(OpTableTest, OperationsOfEarlierAttachmentsAreTold) {
  const OpId before = table_.add(OpKind::kRead).id;
  EXPECT_TRUE(table_.is_of_this_attachment(*table_.find(before)));
  table_.begin_attachment();
  EXPECT_FALSE(table_.is_of_this_attachment(*table_.find(before)));
  EXPECT_TRUE(table_.is_of_this_attachment(table_.add(OpKind::kRead)));
}

TEST_F(OpTableTest, LateCompletionsOutliveTheTable) {
  std::function<void(Completion)> post;
  {
    OpTable table(limits_, clock_, nullptr, all_well());
    const OpId id = table.add(OpKind::kLoad).id;
    post = table.completion_for(id);
  }
  post(TransferDone{});
}

TEST_F(OpTableTest, WaitingEndsWhenSomethingArrivesFromAnotherThread) {
  const OpId id = table_.add(OpKind::kLoad).id;
  ThreadPoolExecutor worker("worker", 1, 1);
  ASSERT_TRUE(worker.post([post = table_.completion_for(id)] { post(TransferDone{}); }).is_ok());
  while (!table_.collect(std::chrono::seconds(1))) {}
  EXPECT_EQ(ended(table_), std::vector<std::uint64_t>{id.v});
}

// Or what the timer guards (a storage that hangs) would wait as long as the caller is willing to.
TEST_F(OpTableTest, WaitingEndsWithTheNextTimer) {
  (void)table_.add_timer(clock_.now() + std::chrono::milliseconds(1));
  EXPECT_FALSE(table_.collect(std::chrono::hours(1)));
}

// Two ranks whose operations end in different orders and with different outcomes apply the same list.
TEST_F(OpTableTest, RanksApplyTheSameEventsWithTheOutcomeOfAll) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    auto group = make_in_process_rank_group(2, clock_, 64);
    const auto outcome = [&](std::uint64_t rank) {
      return [rank](Op& op) { return OutcomeBits{op.id.v % 3 == rank ? 0u : 1u}; };
    };
    OpTable leader(limits_, clock_, group[0].get(), outcome(0)), follower(limits_, clock_, group[1].get(), outcome(1));
    std::vector<std::function<void()>> posts;
    for (std::uint64_t i = 0; i < 8; ++i) {
      for (OpTable* table : {&leader, &follower}) {
        const OpId id = table->add(OpKind::kLoad).id;
        posts.emplace_back([post = table->completion_for(id), id] { post(TransferDone{id, Status::ok(), {}, {}}); });
      }
    }
    std::vector<AgreedEvent> at_leader, at_follower;
    while (at_follower.size() < 8) {
      if (!posts.empty()) {
        const std::size_t next = rng.below(posts.size());
        posts[next]();
        posts.erase(posts.begin() + static_cast<std::ptrdiff_t>(next));
      }
      for (auto [table, into] : {std::pair{&leader, &at_leader}, std::pair{&follower, &at_follower}}) {
        (void)table->collect(Nanos{0});
        table->agree();
        for (AgreedEvent& event : table->take_ended()) {
          table->erase(event.op);
          into->push_back(std::move(event));
        }
      }
    }
    EXPECT_EQ(ids_of(at_leader), ids_of(at_follower));
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(at_leader[i].bits, at_follower[i].bits);
      EXPECT_EQ(at_leader[i].bits, OutcomeBits{at_leader[i].op.v % 3 == 2 ? 1u : 0u});
    }
    EXPECT_TRUE(leader.empty() && follower.empty());
  }
}

TEST_F(OpTableTest, ARankThatLosesTheLeaderPartsAndReportsNothingMore) {
  auto group = make_in_process_rank_group(2, real_clock(), 64);
  const OpTable::Limits short_patience{.max_operations = 16, .rank_plan_limit = std::chrono::milliseconds(20)};
  OpTable follower(short_patience, real_clock(), group[1].get(), all_well());
  Op& load = follower.add(OpKind::kLoad);
  auto post = follower.completion_for(load.id);
  follower.agree();
  EXPECT_NE(follower.parted().message().find("has lost the others"), std::string::npos);
  std::vector<AgreedEvent> events;
  const Status at_leader = group[0]->take(0, true, Nanos(0), events);
  EXPECT_EQ(at_leader.code(), StatusCode::kCancelled) << "the leader waits for outcomes that will not come";
  EXPECT_NE(at_leader.message().find("rank 1 has ended (its cache has lost the others at step 0"), std::string::npos)
      << at_leader.message();
  post(TransferDone{load.id, Status::ok(), {}, {}});
  EXPECT_TRUE(ended(follower).empty());
  Op& explain = follower.add(OpKind::kExplain);  // one rank's own
  follower.end(explain);
  EXPECT_EQ(ended(follower), std::vector<std::uint64_t>{explain.id.v});
}

// An outcome that the group does not take would leave its operation open on every rank for ever.
TEST_F(OpTableTest, ARankWhoseOutcomeIsRefusedParts) {
  test::FollowerOfOne group;
  OpTable table(limits_, clock_, &group, all_well());
  Op& first = table.add(OpKind::kLoad);
  Op& second = table.add(OpKind::kLoad);
  group.refuse_reports(unavailable("not now"));
  table.end(first);
  EXPECT_TRUE(table.parted().is_ok()) << "it may be reported again";
  group.refuse_reports(invalid_argument("too many bits"));
  table.end(second);
  EXPECT_NE(table.parted().message().find("too many bits"), std::string::npos) << table.parted().message();
  EXPECT_NE(group.given_up().find("too many bits"), std::string::npos) << group.given_up();
  table.agree();
  EXPECT_EQ(group.reported(), 0u);
}

}  // namespace
}  // namespace larder
