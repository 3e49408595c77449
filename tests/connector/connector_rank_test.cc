// Two ranks of one model: a transfer counts on both or on none.
#include <gtest/gtest.h>

#include "controller/rank_group.h"
#include "tests/connector/connector_rig.h"

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

}  // namespace
}  // namespace larder::connector_test
