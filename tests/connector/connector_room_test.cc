// SPDX-License-Identifier: Apache-2.0
// Lookups under wait_complete whose prefixes storage has, and for which a full host has no room as yet.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "base/rng.h"
#include "tests/connector/connector_rig.h"
#include "tests/support/passing_backend.h"

namespace larder::connector_test {
namespace {

constexpr std::uint64_t kStored = 6, kLeased = 8, kHost = 10;  // pages

class CountsNames final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  Status submit_exists(ExistsRequest request, ExistsDone done) override {
    names += request.keys.size();
    return PassingBackend::submit_exists(std::move(request), std::move(done));
  }
  std::uint64_t names = 0;  // asked for
};

RigOptions waits_for_all(std::uint64_t pages) {
  RigOptions options;
  options.copies_seed = 1;
  options.host_bytes = pages * host_slot_bytes(rig_model("full"), ComponentKind::kFull);
  options.config.tiers.prefetch_policy = PrefetchPolicy::kWaitComplete;
  options.config.tiers.prefetch_threshold = 1;
  options.config.tiers.prefetch_capacity = 1;
  options.config.tiers.backup_retries = 0;
  return options;
}

// A host of which a lease keeps nearly all, and a lookup whose prefix only storage has: it does not fit beside that.
class ConnectorRoom : public ::testing::Test {
 protected:
  ConnectorRoom() : storage_(1), counted_(*storage_.backend), rig_("full", waits_for_all(kHost)) {
    stored_ = rig_.prompt(1, kStored);
    {
      Rig larger("full", waits_for_all(4 * kHost));
      larger.attach(storage_);
      (void)larger.save_all(stored_, kStored);
    }
    rig_.storages.push_back(&storage_);
    const Tokens leased = rig_.prompt(2, kLeased);
    (void)rig_.save_all(leased, kLeased);
    EXPECT_EQ(last_of(rig_.look_up(leased, lease_)), kLeased);
    EXPECT_TRUE(rig_.connector->attach_storage(counted_).is_ok());
    rig_.settle();
    waits_ = rig_.connector->lookup({.tokens = stored_}).value();
    rig_.settle();
    (void)events();
  }
  ~ConnectorRoom() override {
    for (const LookupId id : {lease_, waits_}) rig_.connector->release(id);
    rig_.settle();
    rig_.connector->detach_storage();
  }
  // Of lookups.
  std::vector<std::uint64_t> events() {
    std::vector<ConnectorEvent> events(8);
    events.resize(rig_.connector->take_events(events));
    std::vector<std::uint64_t> ids;
    for (const ConnectorEvent& event : events) {
      if (event.kind == ConnectorEventKind::kLookup) ids.push_back(event.id);
    }
    return ids;
  }
  StatusCode ask() { return rig_.connector->points(waits_).status().code(); }

  Storage storage_;
  CountsNames counted_;
  Rig rig_;
  Tokens stored_;
  LookupId lease_, waits_;
};

TEST_F(ConnectorRoom, WhoWaitsForRoomAsksStorageAgainOnlyWhenThereMayBeSome) {
  for (const bool asks_at_each_poll : {true, false}) {
    const std::uint64_t before = counted_.names;
    EXPECT_LE(before, 2 * kStored);
    for (int polls = 0; polls < 50; ++polls) {
      ASSERT_TRUE(!asks_at_each_poll || ask() == StatusCode::kOverloaded);
      (void)rig_.run_storages();
      EXPECT_FALSE(rig_.connector->poll(Nanos{0}) && polls > 0) << "nobody polls in a circle";
      EXPECT_EQ(events(), std::vector<std::uint64_t>{}) << "there is no answer yet";
    }
    EXPECT_EQ(counted_.names, before);
  }
  rig_.connector->release(lease_);
  EXPECT_EQ(events(), std::vector<std::uint64_t>{waits_.v}) << "at once, without a poll";
  EXPECT_EQ(ask(), StatusCode::kOverloaded) << "it is read now";
  rig_.settle();
  EXPECT_EQ(events(), std::vector<std::uint64_t>{waits_.v});
  EXPECT_EQ(last_of(rig_.connector->points(waits_).value()), kStored);
}

TEST_F(ConnectorRoom, WhatComesToTheHostOtherwiseIsSeen) {
  const std::uint64_t before = counted_.names;
  (void)rig_.save_all(stored_, 1);  // where a page is free
  EXPECT_EQ(events(), std::vector<std::uint64_t>{waits_.v});
  EXPECT_EQ(ask(), StatusCode::kOverloaded);
  rig_.settle();
  EXPECT_EQ(ask(), StatusCode::kOverloaded) << "there is no room for the rest";
  const std::uint64_t once = counted_.names;
  EXPECT_LE(once, before + kStored);
  (void)rig_.save_all(rig_.prompt(3, 1), 1);  // another's
  EXPECT_EQ(events(), std::vector<std::uint64_t>{});
  EXPECT_EQ(ask(), StatusCode::kOverloaded);
  rig_.settle();
  EXPECT_EQ(counted_.names, once);
}

TEST_F(ConnectorRoom, TheWaitEnds) {
  rig_.clock.advance(rig_.options.config.tiers.prefetch_wait_limit);
  EXPECT_TRUE(rig_.connector->poll(Nanos{0}));
  EXPECT_EQ(events(), std::vector<std::uint64_t>{waits_.v});
  const Result<LookupResult> result = rig_.connector->points(waits_);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  EXPECT_TRUE(result->points.empty());
}

// Lookups come and go, and an engine asks for those alone that it is told of: each of them gets its answer, although no
// time passes that would end a wait.
TEST(ConnectorRoomRandom, WhoGoesByEventsGetsAllAnswers) {
  constexpr std::uint64_t kPrompts = 8;
  std::uint64_t waited = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    Storage storage(seed);
    RigOptions options = waits_for_all(6 * kHost);
    std::vector<Tokens> prompts;
    {
      Rig larger("full", options);
      larger.attach(storage);
      for (std::uint64_t i = 0; i < kPrompts; ++i) prompts.push_back(larger.prompt(i, 1 + rng.below(kHost)));
      for (const Tokens& prompt : prompts) (void)larger.save_all(prompt, larger.pages_in(prompt));
    }
    options.host_bytes = waits_for_all(kHost + rng.below(6)).host_bytes;
    options.config.lease_share = 1;
    Rig rig("full", options);
    rig.attach(storage);
    std::set<std::uint64_t> open, leased;
    const auto hear = [&] {
      std::array<ConnectorEvent, 16> events;
      for (std::size_t i = 0, count = rig.connector->take_events(events); i < count; ++i) {
        if (events[i].kind != ConnectorEventKind::kLookup || !open.contains(events[i].id)) continue;
        const StatusCode code = rig.connector->points(LookupId(events[i].id)).status().code();
        ASSERT_TRUE(code == StatusCode::kOk || code == StatusCode::kOverloaded);
        if (code == StatusCode::kOk) leased.insert(events[i].id);
      }
    };
    const auto release = [&](std::uint64_t id) {
      rig.connector->release(LookupId(id));
      open.erase(id), leased.erase(id);
    };
    for (int move = 0; move < 200; ++move) {
      if (open.size() < 5 && rng.chance(1, 3)) {
        open.insert(rig.connector->lookup({.tokens = prompts[rng.below(kPrompts)]}).value().v);
      }
      if (!leased.empty() && rng.chance(1, 6)) release(*leased.begin());
      if (rng.chance(1, 2)) (void)rig.run_storages();
      (void)rig.connector->poll(Nanos{0});
      hear();
      waited += open.size() - leased.size();
    }
    for (int rounds = 0; rounds < 1000 && !open.empty(); ++rounds) {
      while (!leased.empty()) release(*leased.begin());
      (void)rig.run_storages();
      (void)rig.connector->poll(Nanos{0});
      hear();
    }
    EXPECT_EQ(open, std::set<std::uint64_t>{}) << "nobody told of them";
    for (const std::uint64_t id : std::set(open)) release(id);
  }
  EXPECT_GT(waited, 1000u);
}

}  // namespace
}  // namespace larder::connector_test
