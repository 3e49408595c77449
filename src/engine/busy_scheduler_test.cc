// SPDX-License-Identifier: Apache-2.0
// What the scheduler says while a step is long.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "sim/sim_file_system.h"
#include "tests/support/scheduler_client.h"

namespace larder {
namespace {

constexpr Nanos kHangs = std::chrono::seconds(60);  // what takes longer does

// The real one, whose first step takes until it is let go.
class StuckEngine final : public ReferenceEngine {
 public:
  struct Door {
    std::promise<void> reached, open;
  };
  StuckEngine(std::unique_ptr<ReferenceEngine> real, Door& door)
      : real_(std::move(real)), door_(door), is_open_(door.open.get_future()) {}
  std::vector<StepResult> step(std::span<const SequenceStep> steps) override {
    if (is_open_.valid()) {
      door_.reached.set_value();
      is_open_.get();
    }
    return real_->step(steps);
  }

 private:
  const std::unique_ptr<ReferenceEngine> real_;
  Door& door_;
  std::future<void> is_open_;
};

class BusySchedulerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Options options = support::tiny_options();
    options.max_running_requests = 4;
    options.max_queued_requests = 2;
    auto made = support::wrapped_scheduler(options, files_, metrics_, [this](std::unique_ptr<ReferenceEngine> real) {
      return std::make_unique<StuckEngine>(std::move(real), door_);
    });
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    scheduler_ = std::move(made).value();
  }
  void TearDown() override { let_go(); }

  Status submit() {
    const auto update = ended_.emplace_back().update();
    return scheduler_->submit(support::request_of(std::vector<TokenId>(50, 7), 1), update).status();
  }
  [[nodiscard]] bool is_in_step() { return door_.reached.get_future().wait_for(kHangs) == std::future_status::ready; }
  void let_go() {
    if (!std::exchange(is_open_, true)) door_.open.set_value();
  }

  sim::SimFileSystem files_{1};
  MetricsRegistry metrics_;
  StuckEngine::Door door_;
  bool is_open_ = false;
  std::vector<support::Collector> ended_;  // of each that was submitted
  std::unique_ptr<Scheduler> scheduler_;
};

// Of the two places to wait, those that have started take none, however long their step is.
TEST_F(BusySchedulerTest, WhoHasStartedDoesNotWait) {
  ASSERT_TRUE(submit().is_ok());
  ASSERT_TRUE(is_in_step());
  for (int i = 0; i < 2; ++i) {
    const Status taken = submit();
    EXPECT_TRUE(taken.is_ok()) << taken.to_string();
  }
  const Status refused = submit();
  EXPECT_EQ(refused.code(), StatusCode::kOverloaded);
  EXPECT_NE(refused.message().find("2 requests are waiting"), std::string::npos) << refused.to_string();
  ended_.pop_back();
  let_go();
  for (support::Collector& ended : ended_) EXPECT_TRUE(ended.wait().last.status.is_ok());
}

TEST_F(BusySchedulerTest, WhoLooksGetsTheLastNumbers) {
  const std::uint64_t before = scheduler_->stats().prompt_tokens;
  ASSERT_TRUE(submit().is_ok());
  ASSERT_TRUE(is_in_step());
  EXPECT_EQ(scheduler_->stats().prompt_tokens, before);  // returns, although the loop does not answer
}

TEST(AnswerWait, WhoLooksWaitsNoLongerThanItsLimit) {
  const Nanos limit = std::chrono::seconds(1);
  EXPECT_EQ(answer_wait(limit, CommandKind::kLooks), limit);
  EXPECT_GT(answer_wait(limit, CommandKind::kChanges), limit);
  EXPECT_LT(answer_wait(Nanos::max(), CommandKind::kChanges), std::chrono::hours(25));
}

}  // namespace
}  // namespace larder
