// SPDX-License-Identifier: Apache-2.0
// Two ranks of one model: a transfer counts on both or on none.
#include <gtest/gtest.h>

#include "controller/rank_group.h"
#include "tests/connector/connector_rig.h"
#include "tests/support/follower_of_one.h"

namespace larder::connector_test {
namespace {

class ConnectorRanks : public ::testing::Test {
 protected:
  // The same save on both; the copy of rank 1 ends as `second` says.
  std::array<TransferId, 2> save(const Status& second) {
    std::array<TransferId, 2> ids;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      SaveRequest request;
      request.tokens = tokens_;
      request.to = 4;
      request.states = states_;
      request.reader = [&, rank, second](PoolName, std::uint64_t, std::span<const Segment>) {
        return rank == 1 ? second : Status::ok();
      };
      ids[rank] = rigs_[rank]->connector->save(request).value();
    }
    return ids;
  }
  void poll_all() {
    for (int i = 0; i < 5; ++i) {
      for (const auto& rig : rigs_) (void)rig->connector->poll(Nanos{0});
    }
  }
  [[nodiscard]] std::uint64_t hit(std::size_t rank) {
    const LookupId id = rigs_[rank]->connector->lookup({.tokens = tokens_}).value();
    const LookupResult found = rigs_[rank]->connector->points(id).value();
    rigs_[rank]->connector->release(id);
    return found.points.empty() ? 0 : found.points.back().pages;
  }

  sim::SimClock clock_;
  std::vector<std::unique_ptr<RankGroup>> group_ = make_in_process_rank_group(2, clock_, 4096);
  std::array<std::unique_ptr<Rig>, 2> rigs_ = {
      std::make_unique<Rig>("full_mamba", RigOptions{.ranks = group_[0].get(), .copies_seed = 1}),
      std::make_unique<Rig>("full_mamba", RigOptions{.ranks = group_[1].get(), .copies_seed = 2})};
  const Tokens tokens_ = rigs_[0]->prompt(1, 4);
  const std::vector<std::uint64_t> states_ = {4};
};

TEST_F(ConnectorRanks, ASaveThatFailsOnOneHasFailedOnAll) {
  const auto ids = save(unavailable("no memory"));
  for (const auto& rig : rigs_) (void)rig->copies->run_all();
  poll_all();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Result<SaveResult> result = rigs_[rank]->connector->save_result(ids[rank]);
    ASSERT_TRUE(result.is_ok()) << result.status().to_string();
    EXPECT_EQ(result->stop, SaveStop::kCopyFailed);
    EXPECT_EQ(result->status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(hit(rank), 0u);
  }
}

TEST_F(ConnectorRanks, PagesCountOnceTheyAreThereOnAll) {
  const auto ids = save(Status::ok());
  (void)rigs_[0]->copies->run_all();
  poll_all();
  EXPECT_EQ(rigs_[0]->connector->save_result(ids[0]).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(hit(0), 0u);
  (void)rigs_[1]->copies->run_all();
  poll_all();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(rigs_[rank]->connector->save_result(ids[rank])->kept, 4u);
    EXPECT_EQ(hit(rank), 4u);
  }
}

// A rank that has lost the others decides nothing any more, but its copies end, and with them the claim on the engine's
// memory: until then a result is kOverloaded, from then on kUnavailable, as often as it is asked for.
TEST(ConnectorThatLostItsLeader, SaysWhenTheEnginesMemoryIsFree) {
  test::FollowerOfOne group;
  RigOptions options{.ranks = &group, .copies_seed = 1};
  options.config.tiers.rank_plan_limit = std::chrono::seconds(1);
  Rig rig("full", options);
  const Tokens saved = rig.prompt(1, 4), other = rig.prompt(2, 4);
  (void)rig.save_all(saved, 4);
  LookupId lookup;
  const LookupResult found = rig.look_up(saved, lookup);
  ASSERT_FALSE(found.points.empty());

  EngineMemory from(rig.model, rig.options.layout), to(rig.model, rig.options.layout);
  from.compute(other, {0, 4, 4, {}});
  to.reserve(rig.needs_of(found.points.back()));
  const TransferId load =
      rig.connector->load({.lookup = lookup, .pages = found.points.back().pages, .places = to.places()}).value();
  const TransferId save = rig.connector->save({.tokens = other, .to = 4, .places = from.places()}).value();
  const auto code_of_load = [&] { return rig.connector->load_result(load).status().code(); };
  const auto code_of_save = [&] { return rig.connector->save_result(save).status().code(); };

  group.lose_leader([&](Nanos wait) { rig.clock.advance(wait); });
  (void)rig.connector->poll(Nanos{0});
  ASSERT_EQ(rig.connector->counters().rank_timeouts, 1u);
  EXPECT_EQ(rig.connector->lookup({.tokens = saved}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(code_of_load(), StatusCode::kOverloaded) << "it may still write";
  EXPECT_EQ(code_of_save(), StatusCode::kOverloaded) << "it may still read";
  (void)rig.copies->run_all();
  for (int i = 0; i < 2; ++i) {
    (void)rig.connector->poll(Nanos{0});
    EXPECT_EQ(code_of_load(), StatusCode::kUnavailable);
    EXPECT_EQ(code_of_save(), StatusCode::kUnavailable);
  }
  rig.connector->release(lookup);
  EXPECT_TRUE(rig.connector->check_invariants().is_ok()) << rig.connector->check_invariants().to_string();
  rig.connector.reset();
}

}  // namespace
}  // namespace larder::connector_test
