// SPDX-License-Identifier: Apache-2.0
// What a connector says by itself: which lookups and transfers have an answer.
#include <gtest/gtest.h>

#include <array>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

using Kind = ConnectorEventKind;

std::vector<ConnectorEvent> events_of(Connector& connector, std::size_t room = 8) {
  std::vector<ConnectorEvent> events(room);
  events.resize(connector.take_events(events));
  return events;
}
ConnectorEvent event(LookupId id) { return {Kind::kLookup, id.v}; }
ConnectorEvent event(TransferId id) { return {Kind::kTransfer, id.v}; }
using Events = std::vector<ConnectorEvent>;

RigOptions copies_wait() {
  RigOptions options;
  options.copies_seed = 1;
  options.config.tiers.prefetch_threshold = 1;
  return options;
}

TEST(ConnectorEvents, ALookupIsNamedOnceItHasAnAnswer) {
  Storage storage(1, {.is_holding = true});
  Rig rig("full_mamba", copies_wait());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  (void)rig.connector->flush();
  (void)events_of(*rig.connector);

  const LookupId waits = rig.connector->lookup({.tokens = tokens}).value();
  const LookupId at_once = rig.connector->lookup({.tokens = tokens, .asks_storage = false}).value();
  const LookupId released = rig.connector->lookup({.tokens = tokens, .asks_storage = false}).value();
  rig.connector->release(released);
  EXPECT_EQ(events_of(*rig.connector), Events{event(at_once)});
  EXPECT_EQ(rig.connector->points(waits).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(events_of(*rig.connector), Events{}) << "one has been named, the other still waits";
  rig.settle();
  EXPECT_EQ(events_of(*rig.connector), Events{event(waits)});
  EXPECT_EQ(rig.connector->points(waits)->points.size(), 1u);
  EXPECT_EQ(events_of(*rig.connector), Events{});
  rig.connector->release(waits);
  rig.connector->release(at_once);
}

TEST(ConnectorEvents, ALookupThatLeasesHaveRefusedIsNamedWhenThereIsRoom) {
  RigOptions options = copies_wait();
  options.config.lease_share = 1e-9;  // one at a time
  Rig rig("full", options);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  const LookupId first = rig.connector->lookup({.tokens = tokens}).value();
  const LookupId second = rig.connector->lookup({.tokens = tokens}).value();
  EXPECT_EQ(events_of(*rig.connector), (Events{event(first), event(second)}));
  ASSERT_TRUE(rig.connector->points(first).is_ok());
  EXPECT_EQ(rig.connector->points(second).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(events_of(*rig.connector), Events{}) << "asking again would be in vain";
  rig.connector->release(first);
  EXPECT_EQ(events_of(*rig.connector), Events{event(second)});
  EXPECT_TRUE(rig.connector->points(second).is_ok());
  rig.connector->release(second);
}

TEST(ConnectorEvents, TransfersAreNamedWhenTheyHaveEndedAsManyAsThereIsRoomFor) {
  Rig rig("full_mamba", copies_wait());
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);  // takes its result
  EXPECT_EQ(events_of(*rig.connector), Events{});
  LookupId lookup;
  const LookupResult found = rig.look_up(tokens, lookup);
  ASSERT_FALSE(found.points.empty());
  EXPECT_EQ(events_of(*rig.connector), Events{}) << "its points were asked for";

  EngineMemory memory(rig.model, rig.options.layout, "");
  memory.reserve(rig.needs_of(found.points.back()));
  std::array<TransferId, 3> loads;
  for (TransferId& load : loads) {
    const std::span<const PagePlace> places = memory.places();
    load = rig.connector->load({.lookup = lookup, .pages = found.points.back().pages, .places = places}).value();
  }
  (void)rig.connector->poll(Nanos{0});
  EXPECT_EQ(events_of(*rig.connector), Events{});
  (void)rig.copies->run_all();
  EXPECT_EQ(events_of(*rig.connector), Events{}) << "they end in a poll";
  (void)rig.connector->poll(Nanos{0});
  EXPECT_TRUE(rig.connector->load_result(loads[1]).is_ok());
  EXPECT_EQ(events_of(*rig.connector, 1), Events{event(loads[0])});
  EXPECT_EQ(events_of(*rig.connector, 1), Events{event(loads[2])}) << "the result of the second was taken";
  EXPECT_EQ(events_of(*rig.connector, 1), Events{});
  rig.connector->release(lookup);
}

// Answers that come with no completion end a wait, each of them once. (A wait that does not end answers false.)
constexpr Nanos kPollLimit = std::chrono::seconds(5);

TEST(ConnectorEvents, APollDoesNotWaitForALookupThatWaitsForNothing) {
  Rig rig("full", copies_wait());
  const Tokens tokens = rig.prompt(1, 6);
  const LookupId lookup = rig.connector->lookup({.tokens = tokens}).value();
  EXPECT_TRUE(rig.connector->poll(kPollLimit));
  EXPECT_FALSE(rig.connector->poll(Nanos{0})) << "it was told";
  EXPECT_EQ(events_of(*rig.connector), Events{event(lookup)});
  EXPECT_FALSE(rig.connector->poll(Nanos{0}));
  rig.connector->release(lookup);
}

TEST(ConnectorEvents, APollDoesNotWaitForASaveOfWhatTheHostHas) {
  Rig rig("full", copies_wait());
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  EngineMemory memory(rig.model, rig.options.layout, "");
  memory.compute(tokens, {0, 6, 6, {}});
  const TransferId save = rig.connector->save({.tokens = tokens, .to = 6, .places = memory.places()}).value();
  EXPECT_TRUE(rig.connector->poll(kPollLimit));
  EXPECT_EQ(events_of(*rig.connector), Events{event(save)});
  EXPECT_FALSE(rig.connector->poll(Nanos{0}));
  EXPECT_EQ(rig.connector->save_result(save)->known_pages, 6u);
}

TEST(ConnectorEvents, APollDoesNotWaitForALookupThatAReleaseMadeRoomFor) {
  RigOptions options = copies_wait();
  options.config.lease_share = 1e-9;  // one at a time
  Rig rig("full", options);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  const LookupId first = rig.connector->lookup({.tokens = tokens}).value();
  const LookupId second = rig.connector->lookup({.tokens = tokens}).value();
  ASSERT_TRUE(rig.connector->points(first).is_ok());
  EXPECT_EQ(rig.connector->points(second).status().code(), StatusCode::kOverloaded);
  EXPECT_FALSE(rig.connector->poll(Nanos{0}));
  rig.connector->release(first);
  EXPECT_TRUE(rig.connector->poll(kPollLimit));
  EXPECT_EQ(events_of(*rig.connector), Events{event(second)});
  rig.connector->release(second);
}

TEST(ConnectorEvents, APollDoesNotWaitWhereEventsWereLeft) {
  Rig rig("full", copies_wait());
  const Tokens tokens = rig.prompt(1, 6);
  const LookupId first = rig.connector->lookup({.tokens = tokens}).value();
  const LookupId second = rig.connector->lookup({.tokens = tokens}).value();
  EXPECT_TRUE(rig.connector->poll(kPollLimit));
  EXPECT_EQ(events_of(*rig.connector, 1), Events{event(first)});
  EXPECT_TRUE(rig.connector->poll(kPollLimit));
  EXPECT_EQ(events_of(*rig.connector), Events{event(second)});
  for (const LookupId id : {first, second}) rig.connector->release(id);
}

// A lookup that waits for its turn to read storage has no answer before it has it, and its limit ends that wait.
TEST(ConnectorEvents, WhoWaitsForAPlaceIsNamedWhenThereIsOne) {
  Storage storage(1, {.is_holding = true});
  RigOptions options = copies_wait();
  options.config.tiers.max_operations = 4;  // one of them reads
  options.config.tiers.prefetch_capacity = 1;
  for (const bool by_limit : {false, true}) {
    Rig rig("full", options);
    rig.attach(storage);
    const std::array<Tokens, 2> tokens = {rig.prompt(1, 6), rig.prompt(2, 6)};
    for (const Tokens& each : tokens) (void)rig.save_all(each, 6);
    (void)rig.connector->flush();
    const LookupId first = rig.connector->lookup({.tokens = tokens[0]}).value();
    const LookupId second = rig.connector->lookup({.tokens = tokens[1]}).value();
    EXPECT_EQ(rig.connector->points(second).status().code(), StatusCode::kOverloaded);
    (void)rig.connector->poll(Nanos{0});
    EXPECT_EQ(events_of(*rig.connector), Events{});
    EXPECT_FALSE(rig.connector->poll(Nanos{0})) << "nobody polls in a circle";
    if (by_limit) {
      rig.clock.advance(std::chrono::minutes(1));
      EXPECT_TRUE(rig.connector->poll(kPollLimit));
      EXPECT_EQ(events_of(*rig.connector), (Events{event(first), event(second)}));
      EXPECT_TRUE(rig.connector->points(second)->points.empty());
    } else {
      rig.settle();
      EXPECT_EQ(events_of(*rig.connector), (Events{event(first), event(second)}));
      EXPECT_EQ(rig.connector->points(second).status().code(), StatusCode::kOverloaded) << "it reads now";
      rig.settle();
      EXPECT_EQ(events_of(*rig.connector), Events{event(second)});
      EXPECT_EQ(last_of(rig.connector->points(second).value()), 6u);
    }
    for (const LookupId id : {first, second}) rig.connector->release(id);
  }
}

}  // namespace
}  // namespace larder::connector_test
