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

}  // namespace
}  // namespace larder::connector_test
