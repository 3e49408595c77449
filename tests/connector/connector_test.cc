// SPDX-License-Identifier: Apache-2.0
// The connector by hand: what a save makes restorable, what a load brings, what a lease keeps, what is refused.
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

std::vector<std::string> all_models() {
  std::vector<std::string> names = sim::small_model_names();
  for (const std::string& name : sim::tiny_model_names()) names.push_back(name);
  return names;
}

std::vector<std::uint64_t> pages_of(const LookupResult& result) {
  std::vector<std::uint64_t> pages;
  for (const LoadPoint& point : result.points) pages.push_back(point.pages);
  return pages;
}

using Pages = std::vector<std::uint64_t>;

// What the engine saved comes back, whatever the model and the layout; and on the host it lies as the layout says.
TEST(Connector, WhatIsSavedComesBackForEveryModelAndLayout) {
  for (const std::string& name : all_models()) {
    for (const HostLayout layout : kAllHostLayouts) {
      SCOPED_TRACE(name + " " + std::string(host_layout_name(layout)));
      Rig rig(name, {.layout = layout, .host_bytes = std::size_t{32} << 20});
      const Tokens tokens = rig.prompt(1, 6);
      EXPECT_EQ(rig.hit(tokens), 0u);
      const SaveResult saved = rig.save_all(tokens, 6);
      EXPECT_EQ(saved.stop, SaveStop::kNone);
      EXPECT_EQ(saved.new_pages, 6u);
      LookupId id;
      const LookupResult found = rig.look_up(tokens, id);
      ASSERT_EQ(last_of(found), 6u);
      for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
      rig.connector->release(id);

      const EngineMemory truth(rig.model, layout);
      const RadixTree& tree = rig.connector->tree();
      const MatchResult match = tree.match(NamespaceId(0), tokens);
      std::vector<PageLocation> full;
      tree.locate(match.walked.node, ComponentKind::kFull, 0, 6, full);
      for (const PoolSpec* pool : rig.model.pools_of(ComponentKind::kFull)) {
        if (pool->page_bytes() == 0) continue;
        std::vector<Segment> segments;
        rig.host->append_page(pool->name, full[5].host, segments);
        std::vector<std::byte> bytes;
        for (const Segment& s : segments) bytes.insert(bytes.end(), s.data, s.data + s.size);
        EXPECT_EQ(bytes, truth.host_page(tokens, *pool, 5)) << pool_name(pool->name);
      }
    }
  }
}

TEST(Connector, ChunksOfAPromptAddUpAndEachStateIsAPoint) {
  Rig rig("full_swa_mamba");
  const Tokens tokens = rig.prompt(2, 12);
  EXPECT_EQ(rig.save(tokens, 0, 5, 3, {5}).kept, 5u);
  EXPECT_EQ(rig.save(tokens, 5, 9, 4, {}).kept, 9u);
  EXPECT_EQ(rig.save(tokens, 9, 12, 3, {11, 12}).kept, 12u);
  EXPECT_EQ(rig.save(tokens, 9, 9, 0, {9}).new_states, 1u) << "a state alone";
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  EXPECT_EQ(pages_of(found), (Pages{5, 9, 11, 12}));
  EXPECT_EQ(found.reason, StopReason::kNone);
  for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
  rig.connector->release(id);
  const Tokens shorter(tokens.begin(), tokens.end() - 1);
  EXPECT_EQ(rig.hit(shorter), 11u) << "the last token is computed";
}

TEST(Connector, ForksShareTheirPrefix) {
  Rig rig("full_mamba");
  const Tokens first = rig.prompt(3, 8);
  Tokens second = first;
  for (std::size_t i = 5 * rig.model.page_size; i < second.size(); ++i) second[i] = 77;
  EXPECT_EQ(rig.save(first, 0, 8, 0, {5, 8}).new_pages, 8u);
  EXPECT_EQ(rig.hit(second), 5u);
  const SaveResult saved = rig.save(second, 0, 8, 0, {5, 8});
  EXPECT_EQ(saved.known_pages, 5u);
  EXPECT_EQ(saved.new_pages, 3u);
  EXPECT_EQ(saved.known_states, 1u);
  EXPECT_EQ(saved.new_states, 1u);
  for (const Tokens& tokens : {first, second}) {
    LookupId id;
    const LookupResult found = rig.look_up(tokens, id);
    EXPECT_EQ(pages_of(found), (Pages{5, 8}));
    for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
    rig.connector->release(id);
  }
}

TEST(Connector, WhatIsThereIsNotCopiedAgain) {
  Rig rig("full_swa_mamba");
  const Tokens tokens = rig.prompt(4, 6);
  EXPECT_GT(rig.save_all(tokens, 6).bytes, 0u);
  const SaveResult again = rig.save_all(tokens, 6);
  EXPECT_EQ(again.bytes, 0u);
  EXPECT_EQ(again.kept, 6u);
  EXPECT_EQ(again.known_pages, 6u);
  EXPECT_EQ(again.known_window, rig.model.window_pages_at(6));
  EXPECT_EQ(again.known_states, 1u);
  EXPECT_EQ(again.new_pages + again.new_window + again.new_states, 0u);
}

TEST(Connector, OnlyWhatTheEngineLacksIsLoaded) {
  Rig rig("full_swa_mamba");
  const Tokens tokens = rig.prompt(5, 10);
  (void)rig.save(tokens, 0, 10, 10, {4, 5, 9, 10});
  const std::uint64_t w = rig.model.window_pages_at(10);
  LookupId id;
  LookupResult found = rig.look_up(tokens, id, {.pages = 5});
  EXPECT_EQ(pages_of(found), (Pages{5, 9, 10})) << "at what it has, there is a state for it";
  EXPECT_EQ(found.points[0].full_from, 5u);
  EXPECT_EQ(found.points[0].window_from, 5 - rig.model.window_pages_at(5));
  EXPECT_EQ(found.points[2].full_from, 5u);
  EXPECT_EQ(found.points[2].window_from, 10 - w);
  for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
  rig.connector->release(id);
  found = rig.look_up(tokens, id, {.pages = 9, .window_pages = 3});
  EXPECT_EQ(found.points.back().full_from, 9u);
  EXPECT_EQ(found.points.back().window_from, 9u) << "its own window reaches into that of the point";
  EXPECT_EQ(found.points.front().window_from, 9u);
  for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
  rig.connector->release(id);
  found = rig.look_up(tokens, id, {.pages = 9, .window_pages = 1});
  EXPECT_EQ(found.points.back().window_from, 10 - w) << "half a window of its own is none";
  rig.connector->release(id);
}

// Where full alone is a restore point, points are told by the last few, and an engine may take any.
TEST(Connector, AnyLengthMayBeLoadedWhereEveryPageIsAPoint) {
  RigOptions options;
  options.config.max_points = 2;
  Rig rig("full", options);
  const Tokens tokens = rig.prompt(5, 10);
  (void)rig.save_all(tokens, 10);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id, {.pages = 3});
  EXPECT_EQ(pages_of(found), (Pages{9, 10}));
  const std::uint64_t page_bytes = found.points.front().bytes / 6;
  for (std::uint64_t pages = 3; pages <= 10; ++pages) {
    const LoadPoint point{.pages = pages, .full_from = 3, .window_from = pages, .bytes = page_bytes * (pages - 3)};
    EXPECT_EQ(rig.load(id, point, tokens), "") << pages;
  }
  EXPECT_EQ(rig.connector->load({.lookup = id, .pages = 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.connector->load({.lookup = id, .pages = 11}).status().code(), StatusCode::kInvalidArgument);
  rig.connector->release(id);
}

TEST(Connector, TenantsAndAdaptersDoNotMeet) {
  Rig rig("full_mamba");
  const Tokens tokens = rig.prompt(6, 4);
  (void)rig.save_all(tokens, 4, "one");
  EXPECT_EQ(rig.hit(tokens, "two"), 0u);
  (void)rig.save_all(tokens, 4, "two");
  for (const char* const tenant : {"one", "two"}) {
    LookupId id;
    const LookupResult found = rig.look_up(tokens, id, {}, tenant);
    ASSERT_EQ(last_of(found), 4u);
    EXPECT_EQ(rig.load(id, found.points.back(), tokens, tenant), "");
    rig.connector->release(id);
  }
}

TEST(Connector, CallbacksStreamTheSameBytes) {
  Rig rig("full_swa_mamba");
  const Tokens tokens = rig.prompt(7, 4);
  const EngineMemory truth(rig.model, rig.options.layout);
  SaveRequest save;
  save.tokens = tokens;
  save.to = 4;
  save.window_pages = rig.model.window_pages_at(4);
  const std::vector<std::uint64_t> states = {4};
  save.states = states;
  std::size_t asked = 0;
  save.reader = [&](PoolName pool, std::uint64_t page, std::span<const Segment> bytes) {
    const std::vector<std::byte> content = truth.host_page(tokens, *rig.model.find_pool(pool), page);
    std::size_t at = 0;
    for (const Segment& s : bytes) at += (std::copy_n(content.begin() + static_cast<long>(at), s.size, s.data), s.size);
    ++asked;
    return at == content.size() ? Status::ok() : internal_error("sizes differ");
  };
  const TransferId saved = rig.connector->save(save).value();
  rig.settle();
  EXPECT_EQ(rig.connector->save_result(saved)->kept, 4u);
  EXPECT_GT(asked, 0u);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  ASSERT_EQ(last_of(found), 4u);
  EXPECT_EQ(rig.load(id, found.points.back(), tokens), "") << "the same through memory";
  std::vector<std::pair<PoolName, std::uint64_t>> seen;
  LoadRequest load;
  load.lookup = id;
  load.pages = 4;
  load.writer = [&](PoolName pool, std::uint64_t page, std::span<const ConstBytes> bytes) {
    std::vector<std::byte> content;
    for (const ConstBytes& piece : bytes) content.insert(content.end(), piece.begin(), piece.end());
    seen.emplace_back(pool, page);
    return content == truth.host_page(tokens, *rig.model.find_pool(pool), page) ? Status::ok() : corrupt("other bytes");
  };
  const TransferId loaded = rig.connector->load(load).value();
  rig.settle();
  EXPECT_TRUE(rig.connector->load_result(loaded)->status.is_ok());
  EXPECT_EQ(seen.size(), asked);
  rig.connector->release(id);
}

// Without an executor it runs inside the call.
TEST(Connector, ACallbackMayBeginAnotherTransfer) {
  Rig rig("full");
  const Tokens tokens = rig.prompt(12, 2), others = rig.prompt(13, 3);
  SaveRequest inner, outer;
  inner.tokens = others;
  inner.to = 3;
  inner.reader = [](PoolName, std::uint64_t, std::span<const Segment>) { return Status::ok(); };
  outer.tokens = tokens;
  outer.to = 2;
  std::optional<TransferId> begun;
  outer.reader = [&](PoolName, std::uint64_t, std::span<const Segment>) {
    if (!begun) begun = rig.connector->save(inner).value();
    return Status::ok();
  };
  const TransferId id = rig.connector->save(outer).value();
  rig.settle();
  EXPECT_EQ(rig.connector->save_result(id)->kept, 2u);
  EXPECT_EQ(rig.connector->save_result(begun.value())->kept, 3u);
  EXPECT_TRUE(rig.connector->check_invariants().is_ok());
}

TEST(Connector, AFailedCopyKeepsNothing) {
  Rig rig("full_mamba");
  const Tokens tokens = rig.prompt(8, 4);
  SaveRequest save;
  save.tokens = tokens;
  save.to = 4;
  const auto run = [&](PageReader reader) {
    save.reader = std::move(reader);
    const TransferId id = rig.connector->save(save).value();
    EXPECT_EQ(rig.connector->save_result(id).status().code(), StatusCode::kOverloaded) << "before a poll";
    rig.settle();
    SaveResult result = rig.connector->save_result(id).value();
    EXPECT_EQ(rig.connector->save_result(id).status().code(), StatusCode::kNotFound) << "a result is given once";
    return result;
  };
  SaveResult result = run([](PoolName, std::uint64_t page, std::span<const Segment>) {
    return page == 2 ? unavailable("the engine's memory is gone") : Status::ok();
  });
  EXPECT_EQ(result.stop, SaveStop::kCopyFailed);
  EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(result.kept, 0u);
  result = run([](PoolName, std::uint64_t, std::span<const Segment>) -> Status { throw std::runtime_error("oops"); });
  EXPECT_EQ(result.status.code(), StatusCode::kInternal);
  EXPECT_EQ(rig.host->counts(ComponentKind::kFull).live, 0u);
  EXPECT_EQ(rig.connector->tree().node_count(), 0u);
}

TEST(Connector, AChunkWhosePagesBeforeAreMissingIsToldFromWhereItWouldBeTaken) {
  Rig rig("full", {.copies_seed = 1});
  const Tokens tokens = rig.prompt(9, 9);
  EXPECT_EQ(rig.save(tokens, 0, 2, 0, {}).kept, 2u);
  const SaveResult parted = rig.save(tokens, 3, 6, 0, {});
  EXPECT_EQ(parted.stop, SaveStop::kParentMissing);
  EXPECT_EQ(parted.kept, 0u);
  EXPECT_EQ(parted.path_pages, 2u);
  EXPECT_EQ(rig.save(tokens, 2, 6, 0, {}).kept, 6u);
}

TEST(Connector, AChunkWhosePagesBeforeAreMissingIsRefused) {
  Rig rig("full", {.copies_seed = 1});
  const Tokens tokens = rig.prompt(9, 9);
  EXPECT_EQ(rig.save(tokens, 3, 6, 0, {}).stop, SaveStop::kParentMissing);
  // On its way is another matter.
  EngineMemory first(rig.model, rig.options.layout), second(rig.model, rig.options.layout);
  first.compute(tokens, {0, 3, 3, {}});
  second.compute(tokens, {3, 6, 6, {}});
  const SaveRequest one{.tokens = tokens, .to = 3, .places = first.places()};
  const SaveRequest two{.tokens = tokens, .from = 3, .to = 6, .places = second.places()};
  const TransferId id = rig.connector->save(one).value();
  EXPECT_EQ(rig.connector->save(two).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(rig.hit(tokens), 3u) << "settles";
  EXPECT_EQ(rig.connector->save_result(id)->kept, 3u);
  EXPECT_EQ(rig.save(tokens, 3, 6, 0, {}).kept, 6u);
}

// Nothing is visible before its bytes are there (rule 2).
TEST(Connector, ASaveUnderWayIsNotVisible) {
  Rig rig("full_swa_mamba", {.copies_seed = 1});
  const Tokens tokens = rig.prompt(10, 4);
  EngineMemory memory(rig.model, rig.options.layout);
  const std::vector<std::uint64_t> states = {4};
  memory.compute(tokens, {0, 1, 4, states});
  const SaveRequest save{.tokens = tokens, .to = 4, .window_pages = 3, .states = states, .places = memory.places()};
  ASSERT_TRUE(rig.connector->save(save).is_ok());
  const LookupId early = rig.connector->lookup({.tokens = tokens}).value();
  EXPECT_TRUE(rig.connector->points(early)->points.empty());
  EXPECT_TRUE(rig.connector->check_invariants().is_ok()) << rig.connector->check_invariants().to_string();
  (void)rig.copies->run_all();
  EXPECT_TRUE(rig.connector->points(early)->points.empty()) << "what was said stays";
  (void)rig.connector->poll(Nanos{0});
  EXPECT_EQ(rig.hit(tokens), 4u);
  rig.connector->release(early);
}

TEST(Connector, TwoSavesOfTheSamePagesKeepThemOnce) {
  Rig rig("full_swa_mamba", {.copies_seed = 3});
  const Tokens tokens = rig.prompt(11, 4);
  EngineMemory memory(rig.model, rig.options.layout);
  const std::vector<std::uint64_t> states = {2, 4};
  memory.compute(tokens, {0, 0, 4, states});
  const SaveRequest save{.tokens = tokens, .to = 4, .window_pages = 4, .states = states, .places = memory.places()};
  const TransferId one = rig.connector->save(save).value(), two = rig.connector->save(save).value();
  rig.settle();
  EXPECT_EQ(rig.connector->save_result(one)->kept, 4u);
  EXPECT_EQ(rig.connector->save_result(two)->kept, 4u);
  EXPECT_EQ(rig.host->counts(ComponentKind::kFull).live, 4u);
  EXPECT_EQ(rig.host->counts(ComponentKind::kMamba).live, 2u);
  EXPECT_EQ(rig.connector->counters().backed_up, 4u);
  EXPECT_EQ(rig.connector->counters().host_evicted, 0u);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  EXPECT_EQ(pages_of(found), (Pages{2, 4}));
  for (const LoadPoint& point : found.points) EXPECT_EQ(rig.load(id, point, tokens), "");
  rig.connector->release(id);
}

}  // namespace
}  // namespace larder::connector_test
