// SPDX-License-Identifier: Apache-2.0
// An engine that waits in an event loop of its own: what rings for it, and when it has to poll though nothing rings.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "controller/rank_group.h"
#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

class TestBell final : public Bell {
 public:
  void ring() noexcept override { rings_ = true; }
  void silence() noexcept override { rings_ = false; }
  [[nodiscard]] bool rings() const { return rings_; }

 private:
  std::atomic<bool> rings_{false};
};

// No wait of its polls is above 0, and its copies run when the test says so.
class ConnectorBell : public ::testing::Test {
 protected:
  ConnectorBell() { open(); }
  ~ConnectorBell() override {
    if (connector_) connector_->detach_storage();
    connector_.reset();
    while (storage_.run()) {}
  }
  void open(double lease_share = 0.5) {
    ConnectorParts parts;
    parts.model = &model_;
    parts.host = host_.get();
    parts.clock = &clock_;
    parts.executor = &copies_;
    parts.bell = bell_;
    ConnectorConfig config;
    config.tiers.prefetch_threshold = 1;
    config.lease_share = lease_share;
    connector_ = Connector::create(config, parts).value();
  }
  void attach() {
    ASSERT_TRUE(connector_->attach_storage(*storage_.backend).is_ok());
    quieten();
  }
  // Polls as long as it says that it has something to do.
  void quieten() {
    for (int i = 0; i < 1000 && (bell_->rings() || connector_->until_due() == Nanos{0}); ++i) {
      (void)connector_->poll(Nanos{0});
    }
    EXPECT_FALSE(bell_->rings());
  }
  TransferId begin_save() {
    memory_.emplace(model_, HostLayout::kPageFirst);
    memory_->compute(tokens_, {0, 6, 6, {}});
    return connector_->save({.tokens = tokens_, .to = 6, .places = memory_->places()}).value();
  }
  void save() {
    const TransferId id = begin_save();
    (void)copies_.run_all();
    quieten();
    EXPECT_TRUE(connector_->save_result(id).is_ok());
  }

  const ModelSpec model_ = rig_model("full");
  const Tokens tokens_ = tokens_from(1, 6 * std::size_t{model_.page_size} + 1);
  sim::SimClock clock_;
  std::unique_ptr<HostPools> host_ =
      HostPools::create(model_, HostLayout::kPageFirst, std::size_t{4} << 20, host_memory_source()).value();
  ManualExecutor copies_;
  Storage storage_{1, {.is_holding = true}};
  std::optional<EngineMemory> memory_;
  std::shared_ptr<TestBell> bell_ = std::make_shared<TestBell>();
  std::unique_ptr<Connector> connector_;
};

TEST_F(ConnectorBell, WhatEndsRingsUntilAPollHasTakenIt) {
  const TransferId id = begin_save();
  EXPECT_FALSE(bell_->rings());
  EXPECT_EQ(connector_->until_due(), std::nullopt) << "only the copy is waited for";
  (void)copies_.run_all();
  EXPECT_TRUE(bell_->rings());
  EXPECT_EQ(connector_->save_result(id).status().code(), StatusCode::kOverloaded) << "it ends in a poll";
  EXPECT_TRUE(connector_->poll(Nanos{0}));
  EXPECT_FALSE(bell_->rings());
  EXPECT_EQ(connector_->until_due(), std::nullopt);
  EXPECT_TRUE(connector_->save_result(id).is_ok());
  connector_->wake();
  EXPECT_TRUE(bell_->rings());
  quieten();
}

// What the others answer rings nothing here.
TEST_F(ConnectorBell, IsRefusedWithRanks) {
  const auto group = make_in_process_rank_group(1, clock_, 1024);
  ConnectorParts parts;
  parts.model = &model_;
  parts.host = host_.get();
  parts.clock = &clock_;
  parts.ranks = group[0].get();
  EXPECT_TRUE(Connector::create({}, parts).is_ok());
  parts.bell = bell_;
  EXPECT_EQ(Connector::create({}, parts).status().code(), StatusCode::kInvalidArgument);
}

// The defect: it was due once, and never again.
TEST_F(ConnectorBell, WhoIsReadyAgainIsDueAgain) {
  connector_.reset();
  open(1e-6);  // one lease at a time
  save();
  const LookupId first = connector_->lookup({.tokens = tokens_}).value();
  const LookupId a = connector_->lookup({.tokens = tokens_}).value(),
                 b = connector_->lookup({.tokens = tokens_}).value();
  ASSERT_TRUE(connector_->points(first).is_ok());
  for (const LookupId id : {a, b}) ASSERT_EQ(connector_->points(id).status().code(), StatusCode::kOverloaded);
  quieten();
  connector_->release(first);
  EXPECT_EQ(connector_->until_due(), Nanos{0});
  std::array<ConnectorEvent, 1> event;
  ASSERT_EQ(connector_->take_events(event), 1u);
  EXPECT_EQ(event[0].id, a.v);
  ASSERT_TRUE(connector_->points(a).is_ok());
  EXPECT_EQ(connector_->take_events(event), 0u) << "there is no room for b";
  quieten();
  connector_->release(a);
  EXPECT_EQ(connector_->until_due(), Nanos{0}) << "b has room again";
  ASSERT_EQ(connector_->take_events(event), 1u);
  EXPECT_EQ(event[0].id, b.v);
  connector_->release(b);
}

// They come with no completion.
TEST_F(ConnectorBell, AnAnswerThatCameWithTheCallIsDueAtOnceUntilItIsTold) {
  const LookupId id = connector_->lookup({.tokens = tokens_}).value();
  EXPECT_FALSE(bell_->rings());
  EXPECT_EQ(connector_->until_due(), Nanos{0});
  EXPECT_EQ(connector_->until_due(), Nanos{0}) << "asking tells of nothing";
  EXPECT_TRUE(connector_->poll(Nanos{0}));
  EXPECT_EQ(connector_->until_due(), std::nullopt);
  EXPECT_FALSE(connector_->poll(Nanos{0}));
  connector_->release(id);

  const LookupId next = connector_->lookup({.tokens = tokens_}).value();
  EXPECT_EQ(connector_->until_due(), Nanos{0});
  std::array<ConnectorEvent, 4> events;
  EXPECT_EQ(connector_->take_events(events), 1u);
  EXPECT_EQ(connector_->until_due(), std::nullopt) << "events have told of it";
  connector_->release(next);
}

TEST_F(ConnectorBell, AStoreThatIsAttachedIsDueAtOnce) {
  save();
  EXPECT_EQ(connector_->until_due(), std::nullopt);
  ASSERT_TRUE(connector_->attach_storage(*storage_.backend).is_ok());
  EXPECT_EQ(connector_->until_due(), Nanos{0}) << "it is offered what the host has";
  (void)connector_->poll(Nanos{0});
  EXPECT_EQ(storage_.backend->held(), 1u);
  while (storage_.run()) {}
  EXPECT_TRUE(bell_->rings());
  quieten();
  EXPECT_EQ(connector_->counters().stored, 6u);
}

// Nothing comes from a store that hangs: the lookup has an answer when its wait is over.
TEST_F(ConnectorBell, AWaitForStorageThatIsOverIsDue) {
  attach();
  const LookupId id = connector_->lookup({.tokens = tokens_}).value();
  quieten();
  const std::optional<Nanos> left = connector_->until_due();
  ASSERT_TRUE(left);
  EXPECT_GT(*left, Nanos{0});
  EXPECT_LE(*left, std::chrono::seconds(2));
  clock_.advance(*left - Nanos{1});
  EXPECT_EQ(connector_->until_due(), Nanos{1});
  clock_.advance(Nanos{1});
  EXPECT_EQ(connector_->until_due(), Nanos{0});
  quieten();
  EXPECT_TRUE(connector_->points(id).is_ok());
  connector_->release(id);
}

TEST_F(ConnectorBell, AWriteThatFailedIsDueWhenItIsTriedAgain) {
  attach();
  storage_.backend->set_plan({.fail_percent = 100});
  save();
  for (int i = 0; i < 10; ++i) {
    while (storage_.run()) {}
    quieten();
  }
  const std::optional<Nanos> left = connector_->until_due();
  ASSERT_TRUE(left) << "the write waits for another try";
  EXPECT_GT(*left, Nanos{0});
  EXPECT_LE(*left, CacheConfig{}.backup_retry_delay);
  storage_.backend->set_plan({});
  for (int i = 0; i < 100 && connector_->counters().stored < 6; ++i) {
    clock_.advance(connector_->until_due().value_or(Nanos{0}));
    quieten();
    while (storage_.run()) {}
    quieten();
  }
  EXPECT_EQ(connector_->counters().stored, 6u);
}

// A store may answer when the connector has gone.
TEST_F(ConnectorBell, ALateEndRingsABellThatIsStillThere) {
  attach();
  save();
  EXPECT_GT(storage_.backend->held(), 0u);
  connector_->detach_storage();
  connector_.reset();
  const std::weak_ptr<TestBell> bell = std::exchange(bell_, nullptr);
  EXPECT_FALSE(bell.expired()) << "the store may ring it";
  while (storage_.run()) {}
  EXPECT_TRUE(bell.expired());
}

}  // namespace
}  // namespace larder::connector_test
