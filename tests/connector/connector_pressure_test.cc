// SPDX-License-Identifier: Apache-2.0
// The connector under pressure: a host that is too small, leases, limits, bad input, and an engine that leaves.
#include <gtest/gtest.h>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

std::size_t bytes_for(const std::string& name, std::uint64_t pages, std::uint64_t states) {
  const ModelSpec model = sim::simulated_model(name).value();
  const auto bytes = [&](ComponentKind c) { return model.has(c) ? host_slot_bytes(model, c) : 0; };
  return pages * (bytes(ComponentKind::kFull) + bytes(ComponentKind::kSwa)) + states * bytes(ComponentKind::kMamba);
}

TEST(ConnectorPressure, TheOldestPromptsGo) {
  const std::string name = "full_mamba";
  Rig rig(name, {.host_bytes = bytes_for(name, 40, 12)});
  std::vector<Tokens> prompts;
  for (std::uint64_t i = 0; i < 20; ++i) {
    prompts.push_back(rig.prompt(100 + i, 5));
    EXPECT_EQ(rig.save_all(prompts.back(), 5).stop, SaveStop::kNone) << i;
    EXPECT_EQ(rig.hit(prompts.back()), 5u) << i;
  }
  EXPECT_EQ(rig.hit(prompts.front()), 0u);
  EXPECT_GT(rig.connector->counters().host_evicted, 0u);
}

// A state that a save gives again is known, and counts as kept: room for the rest is not made of it, although it is the
// least recently used.
TEST(ConnectorPressure, ASaveDoesNotPushOutTheStatesThatItGives) {
  const std::string name = "full_mamba";
  Rig rig(name, {.host_bytes = bytes_for(name, 24, 5)});
  const Tokens tokens = rig.prompt(1, 8);
  EXPECT_EQ(rig.save(tokens, 0, 8, 0, {4}).new_states, 1u);
  std::uint64_t others = 0;
  for (; rig.connector->counters().host_evicted == 0 && others < 40; ++others) {
    if (rig.host->free_blocks() < rig.host->blocks_per_slot(ComponentKind::kMamba)) break;
    (void)rig.save(rig.prompt(100 + others, 1), 0, 1, 0, {1});
  }
  ASSERT_GT(others, 1u);
  const SaveResult saved = rig.save(tokens, 8, 8, 0, {4, 8});
  EXPECT_EQ(saved.stop, SaveStop::kNone);
  EXPECT_EQ(saved.known_states, 1u);
  EXPECT_EQ(saved.new_states, 1u);
  EXPECT_GT(rig.connector->counters().host_evicted, 0u) << "room was made";
  LookupId id;
  std::vector<std::uint64_t> points;
  for (const LoadPoint& point : rig.look_up(tokens, id).points) points.push_back(point.pages);
  EXPECT_EQ(points, (std::vector<std::uint64_t>{4, 8}));
  rig.connector->release(id);
}

TEST(ConnectorPressure, WhatDoesNotFitIsKeptUpToItsLargestPoint) {
  const std::string name = "full_mamba";
  Rig rig(name, {.host_bytes = bytes_for(name, 20, 4)});
  const Tokens tokens = rig.prompt(1, 60);
  const SaveResult saved = rig.save(tokens, 0, 60, 0, {4, 10, 16, 40, 60});
  EXPECT_EQ(saved.stop, SaveStop::kNoRoom);
  EXPECT_GE(saved.kept, 16u);
  EXPECT_EQ(rig.hit(tokens), saved.kept);
  EXPECT_EQ(saved.new_pages, saved.kept);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
  rig.connector->release(id);
  // Without a point on the way there is nothing to keep.
  const SaveResult none = rig.save(rig.prompt(2, 60), 0, 60, 0, {60});
  EXPECT_EQ(none.stop, SaveStop::kNoRoom);
  EXPECT_EQ(none.kept, 0u);
  EXPECT_EQ(none.bytes, 0u);
}

// A prompt that is longer than the host grows to what fits, chunk by chunk, and its own head does not go for its tail.
TEST(ConnectorPressure, ASaveDoesNotPushOutWhatItContinues) {
  const std::string name = "full";
  Rig rig(name, {.host_bytes = bytes_for(name, 16, 0)});
  const Tokens tokens = rig.prompt(3, 40);
  std::uint64_t kept = 0;
  for (std::uint64_t from = 0; from < 40; from += 5) {
    const SaveResult saved = rig.save(tokens, from, from + 5, 0, {});
    if (saved.stop == SaveStop::kParentMissing) continue;
    kept = saved.kept;
    EXPECT_GE(rig.hit(tokens), kept) << from;
  }
  EXPECT_GE(rig.hit(tokens), 15u);
}

TEST(ConnectorPressure, ALeaseKeepsEveryPointUntilItIsReleased) {
  for (const std::string name : {"full", "full_swa", "full_mamba", "full_swa_mamba"}) {
    SCOPED_TRACE(name);
    Rig rig(name, {.host_bytes = bytes_for(name, 40, 12)});
    const bool has_state = rig.model.has(ComponentKind::kMamba), has_window = rig.model.has(ComponentKind::kSwa);
    const Tokens tokens = rig.prompt(1, 10);
    (void)rig.save(tokens, 0, 10, has_window ? 10 : 0,
                   has_state ? std::vector<std::uint64_t>{4, 8, 10} : std::vector<std::uint64_t>{});
    LookupId id;
    const LookupResult found = rig.look_up(tokens, id);
    ASSERT_GE(found.points.size(), 3u);
    EXPECT_GT(rig.connector->leased_blocks(), 0u);
    for (std::uint64_t i = 0; i < 30; ++i) (void)rig.save_all(rig.prompt(100 + i, 7), 7);
    EXPECT_GT(rig.connector->counters().host_evicted, 0u);
    (void)rig.connector->flush();
    for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "") << point.pages;
    rig.connector->release(id);
    EXPECT_EQ(rig.connector->leased_blocks(), 0u);
    (void)rig.connector->flush();
    EXPECT_EQ(rig.hit(tokens), 0u);
    EXPECT_EQ(rig.host->free_blocks(), rig.host->total_blocks());
  }
}

// The slots that a load reads stay its own, though its lookup is gone and the host is full (rule 3).
void load_and_leave(std::uint64_t seed) {
  const std::string name = "full_swa_mamba";
  RigOptions options{.host_bytes = bytes_for(name, 30, 10), .copies_seed = seed};
  options.config.save_share = 1;
  Rig rig(name, options);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  ASSERT_EQ(last_of(found), 6u);
  EngineMemory memory(rig.model, rig.options.layout);
  memory.reserve(rig.needs_of(found.points.back()));
  const TransferId transfer = rig.connector->load({.lookup = id, .pages = 6, .places = memory.places()}).value();
  rig.connector->release(id);
  (void)rig.connector->flush();
  // Other prompts are given what slots there are, before the copy runs.
  std::vector<std::unique_ptr<EngineMemory>> others;
  for (std::uint64_t i = 0; i < 6; ++i) {
    const Tokens other = rig.prompt(50 + i, 6);
    others.push_back(std::make_unique<EngineMemory>(rig.model, rig.options.layout));
    const std::vector<std::uint64_t> states = {6};
    others.back()->compute(other, {0, 3, 6, states});
    (void)rig.connector->save(
        {.tokens = other, .to = 6, .window_pages = 3, .states = states, .places = others.back()->places()});
  }
  rig.settle();
  ASSERT_TRUE(rig.connector->load_result(transfer)->status.is_ok());
  EXPECT_EQ(memory.difference(tokens), "");
}

TEST(ConnectorPressure, ALoadGoesOnAfterItsLookupWasReleased) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("copies in the order of seed " + std::to_string(seed));
    load_and_leave(seed);
  }
}

TEST(ConnectorPressure, LeasesAndSavesKeepTheirShares) {
  const std::string name = "full";
  RigOptions options{.host_bytes = bytes_for(name, 40, 0), .copies_seed = 1};
  options.config.lease_share = 0.5;
  options.config.save_share = 0.25;
  Rig rig(name, options);
  std::vector<Tokens> prompts;
  for (std::uint64_t i = 0; i < 3; ++i) {
    prompts.push_back(rig.prompt(i, 9));
    (void)rig.save_all(prompts.back(), 9);
  }
  std::vector<LookupId> open;
  for (const Tokens& tokens : prompts) open.push_back(rig.connector->lookup({.tokens = tokens}).value());
  EXPECT_TRUE(rig.connector->points(open[0]).is_ok());
  EXPECT_TRUE(rig.connector->points(open[1]).is_ok());
  EXPECT_EQ(rig.connector->points(open[2]).status().code(), StatusCode::kOverloaded);
  rig.connector->release(open[0]);
  EXPECT_EQ(last_of(rig.connector->points(open[2]).value()), 9u);
  // One that needs nothing waits for nobody.
  const LookupId unknown = rig.connector->lookup({.tokens = rig.prompt(77, 9)}).value();
  std::vector<ConnectorEvent> events(8);
  EXPECT_EQ(rig.connector->take_events(events), 1u);
  EXPECT_EQ(events.front(), (ConnectorEvent{ConnectorEventKind::kLookup, unknown.v}));
  EXPECT_EQ(last_of(rig.connector->points(unknown).value()), 0u);
  rig.connector->release(unknown);
  for (const LookupId id : open) rig.connector->release(id);

  // Not even while one lease, which may, has more than the share.
  const Tokens large = rig.prompt(30, 30);
  (void)rig.save_all(large, 30);
  LookupId lease;
  EXPECT_EQ(last_of(rig.look_up(large, lease)), 30u);
  const LookupId nothing = rig.connector->lookup({.tokens = rig.prompt(78, 9)}).value();
  EXPECT_TRUE(rig.connector->points(nothing).is_ok());
  rig.connector->release(nothing);
  rig.connector->release(lease);

  const Tokens one = rig.prompt(20, 6), two = rig.prompt(21, 6);
  EngineMemory memory(rig.model, rig.options.layout), other(rig.model, rig.options.layout);
  memory.compute(one, {0, 6, 6, {}});
  other.compute(two, {0, 6, 6, {}});
  ASSERT_TRUE(rig.connector->save({.tokens = one, .to = 6, .places = memory.places()}).is_ok());
  const SaveRequest save{.tokens = two, .to = 6, .places = other.places()};
  EXPECT_EQ(rig.connector->save(save).status().code(), StatusCode::kOverloaded);
  rig.settle();
  EXPECT_TRUE(rig.connector->save(save).is_ok());
  rig.settle();  // the memory is lent until the save has ended
}

TEST(ConnectorPressure, TablesAreBounded) {
  RigOptions options;
  options.config.max_lookups = 2;
  options.config.max_transfers = 2;
  options.config.tiers.max_namespaces = 3;
  Rig rig("full", options);
  const Tokens tokens = rig.prompt(1, 3);
  const LookupId a = rig.connector->lookup({.tokens = tokens}).value();
  const LookupId b = rig.connector->lookup({.tokens = tokens}).value();
  EXPECT_EQ(rig.connector->lookup({.tokens = tokens}).status().code(), StatusCode::kOverloaded);
  rig.connector->release(a);
  rig.connector->release(a);
  EXPECT_TRUE(rig.connector->lookup({.tokens = tokens}).is_ok());
  rig.connector->release(b);
  (void)rig.save_all(tokens, 3);
  std::vector<TransferId> kept;
  EngineMemory memory(rig.model, rig.options.layout);
  memory.compute(tokens, {0, 3, 3, {}});
  const SaveRequest save{.tokens = tokens, .to = 3, .places = memory.places()};
  for (int i = 0; i < 2; ++i) kept.push_back(rig.connector->save(save).value());
  EXPECT_EQ(rig.connector->save(save).status().code(), StatusCode::kOverloaded) << "results not taken";
  EXPECT_TRUE(rig.connector->save_result(kept[0]).is_ok()) << "all of it was there: no poll is needed";
  EXPECT_TRUE(rig.connector->save(save).is_ok());
}

TEST(ConnectorPressure, NamespacesThatIdleMakeRoom) {
  RigOptions options;
  options.config.tiers.max_namespaces = 3;
  Rig rig("full", options);
  const Tokens tokens = rig.prompt(1, 3);
  std::vector<LookupId> open;
  for (int i = 0; i < 6; ++i) (void)rig.save_all(tokens, 3, "tenant " + std::to_string(i));
  EXPECT_EQ(rig.hit(tokens, "tenant 5"), 3u);
  EXPECT_EQ(rig.hit(tokens, "tenant 0"), 0u);
  for (int i = 10; i < 13; ++i) {
    open.push_back(rig.connector->lookup({.tokens = tokens, .salt = std::to_string(i)}).value());
  }
  EXPECT_EQ(rig.connector->lookup({.tokens = tokens, .salt = "one more"}).status().code(), StatusCode::kOverloaded);
  for (const LookupId id : open) rig.connector->release(id);
}

class BadInput : public ::testing::Test {
 protected:
  BadInput() : tokens_(rig_.prompt(1, 6)), memory_(rig_.model, rig_.options.layout) {
    (void)rig_.save(tokens_, 0, 3, 3, {3});
    memory_.compute(tokens_, {3, 3, 6, {6}});
    places_.assign(memory_.places().begin(), memory_.places().end());
    save_.tokens = tokens_;
    save_.from = 3;
    save_.to = 6;
    save_.window_pages = 3;
    save_.states = states_;
  }
  void expect_bad(const std::string& words) {
    save_.places = places_;
    const Result<TransferId> id = rig_.connector->save(save_);
    ASSERT_FALSE(id.is_ok()) << words;
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(id.status().message().find(words), std::string::npos) << id.status().message();
    EXPECT_EQ(rig_.connector->operations_in_flight(), 0u);
  }

  Rig rig_{"full_swa_mamba"};
  const Tokens tokens_;
  EngineMemory memory_;
  std::vector<PagePlace> places_;
  std::vector<std::uint64_t> states_ = {6};
  SaveRequest save_;
};

TEST_F(BadInput, WhatASaveSaysMustAddUp) {
  save_.to = 7;
  expect_bad("do not cover");
  save_.to = 2;
  expect_bad("[3, 2 pages) are none");
  save_.to = 6;
  save_.from = 7;
  expect_bad("[7, 6 pages) are none");
  save_.from = 3;
  save_.window_pages = 7;
  expect_bad("7 pages of a window");
  save_.window_pages = 3;
  for (const std::vector<std::uint64_t>& states : {std::vector<std::uint64_t>{0}, {7}, {5, 5}, {5, 4}}) {
    save_.states = states;
    expect_bad("states must ascend");
  }
  save_.states = {};
  save_.from = 6;
  save_.window_pages = 0;
  expect_bad("neither pages nor states");
  Rig plain("full");
  SaveRequest save = save_;
  save.from = 3;
  save.states = states_;
  EXPECT_EQ(plain.connector->save(save).status().code(), StatusCode::kInvalidArgument);
  save.states = {};
  save.window_pages = 1;
  EXPECT_EQ(plain.connector->save(save).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(BadInput, PlacesMustBeExactlyThePages) {
  const std::vector<PagePlace> good = places_;
  places_.pop_back();
  expect_bad("no place is given for page 5 of pool mamba");
  places_ = good;
  places_.push_back(places_.front());
  expect_bad("given twice");
  places_ = good;
  places_.front().page = 2;
  expect_bad("not part of this copy");
  places_ = good;
  places_.front().pool = PoolName::kIndexer;
  expect_bad("the model has no pool indexer");
  places_ = good;
  std::vector<Segment> segments(good.front().segments.begin(), good.front().segments.end());
  segments.back().size -= 1;
  places_.front().segments = segments;
  expect_bad("have 1 less");
  segments.back().size += 2;
  places_.front().segments = segments;
  expect_bad("have more");
  segments.back().size = ~std::size_t{0};
  expect_bad("have more");
  segments.back() = {nullptr, good.front().segments.back().size};
  expect_bad("at null");
  places_ = good;
  save_.reader = [](PoolName, std::uint64_t, std::span<const Segment>) { return Status::ok(); };
  expect_bad("not both");
}

TEST_F(BadInput, LookupsAndLoads) {
  Connector& connector = *rig_.connector;
  EXPECT_EQ(connector.lookup({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(connector.lookup({.tokens = tokens_, .has = {.pages = 7}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(connector.lookup({.tokens = tokens_, .has = {.pages = 1, .window_pages = 2}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(connector.points(LookupId(77)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(connector.load({.lookup = LookupId(77)}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(connector.load_result(TransferId(77)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(connector.save_result(TransferId(77)).status().code(), StatusCode::kNotFound);
  const LookupId id = connector.lookup({.tokens = tokens_}).value();
  EXPECT_EQ(connector.load({.lookup = id, .pages = 3}).status().code(), StatusCode::kInvalidArgument) << "no lease yet";
  ASSERT_EQ(last_of(connector.points(id).value()), 3u);
  EXPECT_EQ(connector.load({.lookup = id, .pages = 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(connector.load({.lookup = id, .pages = 3}).status().code(), StatusCode::kInvalidArgument) << "no places";
  connector.release(id);
  ConnectorParts parts;
  EXPECT_EQ(Connector::create({}, parts).status().code(), StatusCode::kInvalidArgument);
  parts.model = &rig_.model;
  parts.host = rig_.host.get();
  parts.clock = &rig_.clock;
  parts.scope.layout = HostLayout::kLayerFirst;
  EXPECT_EQ(Connector::create({}, parts).status().code(), StatusCode::kInvalidArgument) << "the host's is another";
  ConnectorConfig config;
  config.lease_share = 0;
  EXPECT_EQ(validate_config(config).code(), StatusCode::kInvalidArgument);
  config.lease_share = 0.5;
  config.max_points = 0;
  EXPECT_EQ(validate_config(config).code(), StatusCode::kInvalidArgument);
}

// Copies on real threads, many at once, over a host that evicts all the time.
TEST(ConnectorThreads, ManyCopiesAtOnce) {
  const std::string name = "full_swa_mamba";
  RigOptions options{.host_bytes = bytes_for(name, 60, 20), .copy_threads = 3};
  Rig rig(name, options);
  std::vector<Tokens> prompts;
  for (std::uint64_t i = 0; i < 12; ++i) prompts.push_back(rig.prompt(i, 8));
  const std::vector<std::uint64_t> states = {4, 8};
  std::uint64_t loads = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::pair<std::unique_ptr<EngineMemory>, TransferId>> saves, loading;
    std::vector<const Tokens*> loaded;
    for (std::size_t i = 0; i < 3; ++i) {
      const Tokens& tokens = prompts[(static_cast<std::size_t>(round) * 5 + i * 7) % prompts.size()];
      auto memory = std::make_unique<EngineMemory>(rig.model, rig.options.layout);
      memory->compute(tokens, {0, 0, 8, states});
      const SaveRequest save{
          .tokens = tokens, .to = 8, .window_pages = 8, .states = states, .places = memory->places()};
      if (const Result<TransferId> id = rig.connector->save(save); id.is_ok())
        saves.emplace_back(std::move(memory), *id);
      const Tokens& other = prompts[(static_cast<std::size_t>(round) * 3 + i) % prompts.size()];
      const LookupId lookup = rig.connector->lookup({.tokens = other}).value();
      const Result<LookupResult> found = rig.connector->points(lookup);
      if (found.is_ok() && !found->points.empty()) {
        auto into = std::make_unique<EngineMemory>(rig.model, rig.options.layout);
        into->reserve(rig.needs_of(found->points.back()));
        const LoadRequest load{.lookup = lookup, .pages = found->points.back().pages, .places = into->places()};
        loading.emplace_back(std::move(into), rig.connector->load(load).value());
        loaded.push_back(&other);
      }
      rig.connector->release(lookup);
    }
    rig.settle();
    for (auto& [memory, id] : saves) EXPECT_TRUE(rig.connector->save_result(id)->status.is_ok());
    for (std::size_t i = 0; i < loading.size(); ++i, ++loads) {
      ASSERT_TRUE(rig.connector->load_result(loading[i].second)->status.is_ok());
      ASSERT_EQ(loading[i].first->difference(*loaded[i]), "") << "round " << round;
    }
  }
  EXPECT_GT(loads, 50u);
}

// An engine that leaves with copies that have not begun: they touch nothing any more.
TEST(ConnectorEnd, CopiesThatWaitTouchNothing) {
  Rig rig("full_mamba", {.copies_seed = 1});
  const Tokens tokens = rig.prompt(1, 4);
  (void)rig.save_all(tokens, 4);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  auto memory = std::make_unique<EngineMemory>(rig.model, rig.options.layout);
  memory->reserve(rig.needs_of(found.points.back()));
  ASSERT_TRUE(rig.connector->load({.lookup = id, .pages = 4, .places = memory->places()}).is_ok());
  rig.connector.reset();
  memory.reset();
  EXPECT_EQ(rig.copies->run_all(), 1u);
}

TEST(ConnectorEnd, AnExecutorThatIsFullFailsTheTransfer) {
  Rig rig("full", {.copies_seed = 1});
  std::size_t filled = 0;
  while (rig.copies->post([] {}).is_ok()) ++filled;
  const Tokens tokens = rig.prompt(1, 2);
  EngineMemory memory(rig.model, rig.options.layout);
  memory.compute(tokens, {0, 2, 2, {}});
  const TransferId id = rig.connector->save({.tokens = tokens, .to = 2, .places = memory.places()}).value();
  rig.settle();
  const SaveResult result = rig.connector->save_result(id).value();
  EXPECT_EQ(result.stop, SaveStop::kCopyFailed);
  EXPECT_EQ(result.status.code(), StatusCode::kOverloaded);
  EXPECT_EQ(rig.save_all(tokens, 2).kept, 2u);
}

}  // namespace
}  // namespace larder::connector_test
