// SPDX-License-Identifier: Apache-2.0
// What the scheduler says while a step is long.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "engine/scheduler_impl.h"
#include "sim/sim_file_system.h"

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
    Options options;
    options.model = "gqa-tiny";
    options.max_total_tokens = 2048;
    options.chunked_prefill_size = 256;
    options.max_running_requests = 4;
    options.max_queued_requests = 2;
    options.threads = 1;
    Result<std::unique_ptr<Composition>> parts = Composition::create(options, files_, real_clock(), metrics_);
    ASSERT_TRUE(parts.is_ok()) << parts.status().to_string();
    Result<std::unique_ptr<ReferenceEngine>> engine =
        ReferenceEngine::create((*parts)->model, *(*parts)->device_pools, 1);
    ASSERT_TRUE(engine.is_ok()) << engine.status().to_string();
    auto stuck = std::make_unique<StuckEngine>(std::move(engine).value(), door_);
    auto made = std::make_unique<SchedulerImpl>(std::move(parts).value(), std::move(stuck), real_clock(), metrics_);
    ASSERT_TRUE(made->start_thread().is_ok());
    scheduler_ = std::move(made);
  }
  void TearDown() override { let_go(); }

  Status submit() {
    GenerateRequest request;
    request.tokens.assign(50, 7);
    request.max_new_tokens = 1;
    request.ignore_eos = true;
    auto& ended = ended_.emplace_back(std::make_shared<std::promise<Status>>());
    return scheduler_
        ->submit(std::move(request),
                 [ended](const GenerateUpdate& update) {
                   if (update.finish != FinishReason::kRunning) ended->set_value(update.status);
                 })
        .status();
  }
  [[nodiscard]] bool is_in_step() { return door_.reached.get_future().wait_for(kHangs) == std::future_status::ready; }
  void let_go() {
    if (!std::exchange(is_open_, true)) door_.open.set_value();
  }

  sim::SimFileSystem files_{1};
  MetricsRegistry metrics_;
  StuckEngine::Door door_;
  bool is_open_ = false;
  std::vector<std::shared_ptr<std::promise<Status>>> ended_;  // of each that was submitted
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
  for (const auto& ended : ended_) {
    std::future<Status> answer = ended->get_future();
    ASSERT_EQ(answer.wait_for(kHangs), std::future_status::ready);
    EXPECT_TRUE(answer.get().is_ok());
  }
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
