// SPDX-License-Identifier: Apache-2.0
// Requests alone: who may come, what they hold while they run, and what their steps hold once they are over.
#include "controller/requests.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/cache/room_rig.h"

namespace larder::test {
namespace {

class RequestsTest : public ::testing::Test {
 protected:
  RequestsTest() {
    rig_.config.write_policy = WritePolicy::kWriteBack;  // no copies
    rig_.config.max_requests = 2;
    rig_.config.max_open_steps = 4;
  }
  ~RequestsTest() override {
    EXPECT_TRUE(requests_.check_slots().is_ok()) << requests_.check_slots().to_string();
    requests_.close([](RequestId) {});
  }
  Request& add(const std::string& name, std::uint64_t max_new) {
    tokens_ = rig_.tokens_of(name);
    const BeginRequest request{.tokens = tokens_, .max_new_tokens = max_new, .adapter = "", .salt = "", .priority = 0};
    EXPECT_TRUE(requests_.check(request).is_ok());
    return requests_.add(rig_.space, request);
  }
  // Nothing is cached, and there are slots for the prompt.
  void start(Request& r, RequestPhase phase = RequestPhase::kRunning) {
    PageTable table;
    for (std::size_t i = 0; i * rig_.model.page_size < r.prompt; ++i) {
      table.full.push_back(*rig_.device->allocate(ComponentKind::kFull));
    }
    r.run.begin(r, std::move(table), 0, {});
    r.run.set_lock(
        rig_.tiers->tree().lock(rig_.tiers->tree().spaces().root(rig_.space), Tier::kDevice, {.mamba = false}));
    requests_.run(r, phase);
  }
  [[nodiscard]] std::uint32_t live() const { return rig_.device->slots(ComponentKind::kFull).counts().live; }

  RoomRig rig_{{.model = "full"}};
  std::vector<TokenId> tokens_;
  Requests requests_{rig_.config,
                     {.model = rig_.model,
                      .device = *rig_.device,
                      .tree = rig_.tiers->tree(),
                      .spaces = rig_.tiers->spaces(),
                      .ops = rig_.tiers->ops(),
                      .room = *rig_.room,
                      .events = *rig_.events,
                      .counters = rig_.tiers->counts(),
                      .chunk_pages = 2}};
};

TEST_F(RequestsTest, WhoMayCome) {
  const std::vector<TokenId> tokens = rig_.tokens_of("aaaaaaaab");  // 9 pages of 4; the device has 8
  const auto check = [&](std::size_t prompt, std::uint64_t max_new) {
    return requests_.check({.tokens = std::span(tokens).first(prompt), .max_new_tokens = max_new}).code();
  };
  EXPECT_EQ(check(0, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(check(33, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(check(32, 1), StatusCode::kOk);
  EXPECT_EQ(check(32, 2), StatusCode::kInvalidArgument);
  EXPECT_EQ(check(32, std::numeric_limits<std::uint64_t>::max()), StatusCode::kInvalidArgument);
  const RequestId first = add("a", 1).id, second = add("b", 1).id;
  EXPECT_NE(first, second);
  EXPECT_EQ(check(1, 1), StatusCode::kOverloaded);
  requests_.forget(*requests_.find(first));
  EXPECT_EQ(requests_.find(first), nullptr);
  EXPECT_EQ(check(1, 1), StatusCode::kOk);
  EXPECT_NE(add("c", 1).id, first) << "an id is given once";
}

TEST_F(RequestsTest, StepsNeedARequestThatRuns) {
  Request& r = add("ab", 4);
  EXPECT_EQ(requests_.prepare_step(RequestId(99), 4).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(requests_.prepare_step(r.id, 4).status().code(), StatusCode::kInvalidArgument);
  start(r, RequestPhase::kLoading);
  EXPECT_EQ(requests_.prepare_step(r.id, 4).status().code(), StatusCode::kOverloaded);
  r.phase = RequestPhase::kRunning;
  const Result<StepGrant> grant = requests_.prepare_step(r.id, 8);
  ASSERT_TRUE(grant.is_ok());
  EXPECT_EQ(grant->token.request, r.id);
  EXPECT_TRUE(requests_.complete_step(grant->token, tokens_, nullptr).is_ok());
  EXPECT_EQ(rig_.tiers->tree().counts(ComponentKind::kFull, Tier::kDevice).resident, 2u);
}

// What an earlier call found says nothing of one that was refused for something else.
TEST_F(RequestsTest, ARefusalForSomethingElseIsNoStarvation) {
  Request& r = add("aaaaaaaa", 1);  // all pages of the device
  Request& other = add("b", 8);
  start(r);
  const StepToken step = requests_.prepare_step(r.id, 32)->token;
  other.run.begin(other, PageTable{}, 0, {});
  other.run.set_lock(
      rig_.tiers->tree().lock(rig_.tiers->tree().spaces().root(rig_.space), Tier::kDevice, {.mamba = false}));
  requests_.run(other, RequestPhase::kRunning);
  const auto starve = [&] {
    EXPECT_EQ(requests_.prepare_step(other.id, 4).status().code(), StatusCode::kOverloaded);
    EXPECT_TRUE(other.is_starved);
  };
  starve();
  other.forks = 1;
  EXPECT_EQ(requests_.prepare_step(other.id, 4).status().code(), StatusCode::kOverloaded);
  EXPECT_FALSE(other.is_starved) << "it waits for its fork";
  other.forks = 0;
  starve();
  other.phase = RequestPhase::kLoading;
  EXPECT_EQ(requests_.prepare_step(other.id, 4).status().code(), StatusCode::kOverloaded);
  EXPECT_FALSE(other.is_starved) << "it waits for its copy";
  other.phase = RequestPhase::kRunning;
  EXPECT_TRUE(requests_.cancel_step(step, nullptr).is_ok());
}

// What a step of a request that is over holds is in its namespace, if only the root of it.
TEST_F(RequestsTest, OpenStepsKeepTheirNamespace) {
  const auto is_idle = [&] { return !rig_.tiers->spaces().idle().empty(); };
  EXPECT_TRUE(is_idle());
  Request& r = add("ab", 4);
  start(r);
  EXPECT_FALSE(is_idle());
  const StepToken step = requests_.prepare_step(r.id, 4)->token;
  requests_.forget(r);
  EXPECT_FALSE(is_idle()) << "its lock is unlocked when the step has ended";
  EXPECT_TRUE(requests_.cancel_step(step, nullptr).is_ok());
  EXPECT_TRUE(is_idle());
}

// Its slots stay aside, and it keeps a place, until each step was ended.
TEST_F(RequestsTest, OpenStepsOutliveTheirRequest) {
  Request& r = add("ab", 4);
  start(r);
  const StepToken first = requests_.prepare_step(r.id, 4)->token, second = requests_.prepare_step(r.id, 8)->token;
  requests_.forget(r);
  EXPECT_EQ(requests_.running(), 0u);
  EXPECT_FALSE(requests_.empty());
  EXPECT_EQ(live(), 2u);
  EXPECT_TRUE(requests_.check_slots().is_ok());
  (void)add("c", 1);
  EXPECT_EQ(requests_.check({.tokens = tokens_}).code(), StatusCode::kOverloaded);
  EXPECT_EQ(requests_.complete_step(second, tokens_, nullptr).code(), StatusCode::kConflict);
  EXPECT_EQ(live(), 2u) << "the first may still touch them";
  EXPECT_TRUE(requests_.cancel_step(first, nullptr).is_ok());
  EXPECT_EQ(live(), 0u);
  EXPECT_EQ(requests_.cancel_step(first, nullptr).code(), StatusCode::kNotFound);
  EXPECT_TRUE(requests_.check({.tokens = tokens_}).is_ok());
}

TEST_F(RequestsTest, OnlyWhatIsComputedRightIsHandedOver) {
  Request& r = add("ab", 4);
  start(r);
  const StepToken step = requests_.prepare_step(r.id, 7)->token;
  ASSERT_TRUE(requests_.complete_step(step, std::span(tokens_).first(7), nullptr).is_ok());
  EXPECT_EQ(rig_.tiers->tree().counts(ComponentKind::kFull, Tier::kDevice).resident, 1u);
  const StepToken next = requests_.prepare_step(r.id, 8)->token;
  ASSERT_TRUE(requests_.complete_step(next, tokens_, nullptr).is_ok());
  r.phase = RequestPhase::kLoading;
  requests_.hand_over(r);
  r.phase = RequestPhase::kRunning;
  requests_.hand_over(r);
  requests_.release(r);
  EXPECT_EQ(r.phase, RequestPhase::kReady);
  EXPECT_EQ(requests_.running(), 0u);
  EXPECT_EQ(rig_.tiers->tree().counts(ComponentKind::kFull, Tier::kDevice).resident, 2u);
  EXPECT_EQ(live(), 2u);
  requests_.release(r);  // again: nothing
  EXPECT_EQ(requests_.running(), 0u);
}

TEST_F(RequestsTest, TheEndTellsOfEachAndLeavesNothing) {
  start(add("ab", 4));
  (void)add("d", 1);
  std::vector<RequestId> told;
  requests_.close([&](RequestId id) { told.push_back(id); });
  EXPECT_EQ(told.size(), 2u);
  EXPECT_TRUE(requests_.empty());
  EXPECT_EQ(requests_.running(), 0u);
}

}  // namespace
}  // namespace larder::test
