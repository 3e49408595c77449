// SPDX-License-Identifier: Apache-2.0
// A running request alone: pools, a tree, and a room that evicts nothing.
#include "controller/running_request.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "pool/pool_test_util.h"

namespace larder {
namespace {

constexpr std::uint64_t kPage = 64;

class Bench : public SlotSink, public StepRoom {
 public:
  explicit Bench(const std::string& preset, ComponentCounts slots)
      : model(pool_test::preset(preset)),
        device(pool_test::take(DevicePools::create(model, slots, host_memory_source()))),
        tree(tree_config_for(model, EvictionPolicy::kLru, false), *this),
        parts{model, config, *device, tree, counters, *this, in_limbo, 2} {
    config.max_open_steps = 3;
    text.space = tree.spaces().open({}, {}, PathHash());
  }

  // Slots for the prompt alone; nothing is cached.
  std::unique_ptr<RunningRequest> started(std::uint64_t prompt, std::uint64_t max_new) {
    for (std::uint64_t i = 0; i < prompt; ++i) text.tokens.push_back(static_cast<TokenId>(i % 50));
    text.prompt = prompt;
    text.max_new = max_new;
    return again(std::make_unique<RunningRequest>(parts));
  }
  std::unique_ptr<RunningRequest> again(std::unique_ptr<RunningRequest> run) {
    PageTable table;
    for (std::uint64_t i = 0; i < (text.tokens.size() + kPage - 1) / kPage; ++i) {
      table.full.push_back(*device->allocate(ComponentKind::kFull));
    }
    if (model.has(ComponentKind::kSwa)) table.swa.resize(table.full.size());
    if (model.has(ComponentKind::kMamba)) table.state = *device->allocate(ComponentKind::kMamba);
    run->begin(text, std::move(table), 0, {});
    run->set_lock(tree.lock(tree.spaces().root(text.space), Tier::kDevice, LockParts{.mamba = false}));
    return run;
  }
  // One step to `until`, all of it.
  Status step(RunningRequest& run, std::uint64_t until) {
    LARDER_ASSIGN_OR_RETURN(const StepGrant grant, run.prepare(text, until));
    return run.complete(text, grant.token.number, tokens(until));
  }
  std::span<const TokenId> tokens(std::uint64_t count) {
    while (words.size() < count) words.push_back(static_cast<TokenId>(words.size() % 50));
    return std::span<const TokenId>(words).first(count);
  }
  // Slots that are taken are the request's or the tree's.
  void expect_balance(const RunningRequest& run) {
    for (const ComponentKind c : kAllComponents) {
      EXPECT_EQ(device->slots(c).counts().live, tree.counts(c, Tier::kDevice).resident + run.slots()[index_of(c)])
          << component_name(c);
    }
    EXPECT_EQ(tree.check_invariants().to_string(), "ok");
    EXPECT_EQ(run.ledger().in_limbo(), in_limbo);
  }

  Status make_room(RoomSeeker&, ComponentKind c, std::uint32_t count, bool) override {
    return promises || count <= device->free_slots(c) ? Status::ok() : overloaded("full");
  }
  bool is_room_coming(ComponentKind) override { return is_coming; }
  void give_back(ComponentKind c, DeviceSlot slot) override { EXPECT_TRUE(device->free(c, slot).is_ok()); }
  Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request, StepLedger* keeper) override {
    keeper_ = keeper;
    Result<InsertResult> result = refuses ? Result<InsertResult>(conflict("later")) : tree.extend(held, request);
    keeper_ = nullptr;
    return result;
  }
  void committed(NodeId, std::uint64_t) override { ++commits; }
  void free_device(ComponentKind c, std::span<const DeviceSlot> slots) override {
    for (const DeviceSlot slot : slots) keeper_ != nullptr ? keeper_->keep(c, slot) : give_back(c, slot);
  }
  void free_host(ComponentKind, std::span<const HostSlot>) override {}

  ModelSpec model;
  CacheConfig config;
  CacheCounters counters;
  ComponentCounts in_limbo{};
  std::unique_ptr<DevicePools> device;
  RadixTree tree;
  RunningParts parts;
  RequestText text;
  std::vector<TokenId> words;
  bool refuses = false, is_coming = false;
  bool promises = false;  // room that is not there
  int commits = 0;

 private:
  StepLedger* keeper_ = nullptr;
};

TEST(RunningRequest, FromBeginToRelease) {
  Bench b("gqa-tiny", {16, 0, 0});
  const auto run = b.started(2 * kPage, 100);
  EXPECT_EQ(run->state(), RunState::kRunning);
  EXPECT_TRUE(b.step(*run, kPage).is_ok());
  EXPECT_TRUE(b.step(*run, 2 * kPage).is_ok());
  EXPECT_EQ(b.commits, 2);  // whole pages of the prompt at once
  b.expect_balance(*run);
  for (std::uint64_t until = 2 * kPage + 1; until < 3 * kPage + 20; ++until) EXPECT_TRUE(b.step(*run, until).is_ok());
  EXPECT_EQ(b.commits, 2);  // a chunk is two pages
  EXPECT_EQ(run->computed(), 3 * kPage + 19);
  run->hand_over(b.text);
  EXPECT_EQ(b.commits, 3);
  b.expect_balance(*run);
  run->release(false);
  EXPECT_EQ(run->state(), RunState::kIdle);
  EXPECT_EQ(run->slots(), ComponentCounts{});
  EXPECT_EQ(b.tree.counts(ComponentKind::kFull, Tier::kDevice).resident, 3u);
  EXPECT_EQ(b.tree.counts(ComponentKind::kFull, Tier::kDevice).locked, 0u);
  b.expect_balance(*run);
  run->release(false);  // again: nothing
}

// What was computed on pages that never came is nobody's.
TEST(RunningRequest, AFailedOneKeepsNothing) {
  Bench b("gqa-tiny", {16, 0, 0});
  const auto run = b.started(2 * kPage, 10);
  run->loaded(unavailable("the load-back failed"));
  const Result<StepGrant> grant = run->prepare(b.text, kPage);
  ASSERT_TRUE(grant.is_ok());
  ASSERT_NE(grant->gate, nullptr);
  EXPECT_FALSE(grant->gate->wait(0, Nanos{0}).is_ok());
  EXPECT_TRUE(run->complete(b.text, grant->token.number, b.tokens(kPage)).is_ok());
  run->hand_over(b.text);
  EXPECT_EQ(b.commits, 0);
  run->release(false);
  EXPECT_EQ(run->state(), RunState::kIdle);
}

TEST(RunningRequest, AConflictOnlyPostpones) {
  Bench b("gqa-tiny", {16, 0, 0});
  const auto run = b.started(2 * kPage, 10);
  b.refuses = true;
  EXPECT_TRUE(b.step(*run, kPage).is_ok());
  EXPECT_EQ(b.commits, 0);
  b.refuses = false;
  EXPECT_TRUE(run->prepare(b.text, 2 * kPage).is_ok());
  EXPECT_EQ(b.commits, 1);
  EXPECT_EQ(b.counters.internal_errors, 0u);
  b.expect_balance(*run);
}

TEST(RunningRequest, GrowsAndStarves) {
  Bench b("gqa-tiny", {4, 0, 0});
  const auto run = b.started(2 * kPage, 1000);
  const DeviceSlot other = *b.device->allocate(ComponentKind::kFull);  // somebody else's
  EXPECT_TRUE(b.step(*run, 2 * kPage).is_ok());
  EXPECT_TRUE(b.step(*run, 3 * kPage).is_ok());
  EXPECT_EQ(b.counters.grown, 1u);
  EXPECT_EQ(b.step(*run, 3 * kPage + 1).code(), StatusCode::kOverloaded);
  EXPECT_TRUE(run->is_starved());
  b.is_coming = true;
  EXPECT_EQ(b.step(*run, 3 * kPage + 1).code(), StatusCode::kOverloaded);
  EXPECT_FALSE(run->is_starved());
  b.is_coming = false;
  ASSERT_TRUE(b.device->add_lease(ComponentKind::kFull, other).is_ok());
  const Generation generation = b.device->generation(ComponentKind::kFull, other);
  b.give_back(ComponentKind::kFull, other);
  EXPECT_EQ(b.step(*run, 3 * kPage + 1).code(), StatusCode::kOverloaded);
  EXPECT_FALSE(run->is_starved()) << "a copy that ends will make room";
  ASSERT_TRUE(b.device->drop_lease(ComponentKind::kFull, other, generation).is_ok());
  EXPECT_TRUE(b.step(*run, 3 * kPage + 1).is_ok());
}

// There is room for a part: it takes that, and starves only when there is none.
TEST(RunningRequest, GrowsByWhatIsFree) {
  for (const char* model : {"gqa-tiny", "swa-tiny"}) {
    Bench b(model, {4, std::string(model) == "swa-tiny" ? 8u : 0u, 0});
    const auto run = b.started(2 * kPage, 1000);
    const DeviceSlot other = *b.device->allocate(ComponentKind::kFull);  // somebody else's, still being copied
    ASSERT_TRUE(b.device->add_lease(ComponentKind::kFull, other).is_ok());
    const Generation generation = b.device->generation(ComponentKind::kFull, other);
    b.give_back(ComponentKind::kFull, other);
    EXPECT_TRUE(b.step(*run, 2 * kPage).is_ok());
    const Result<StepGrant> grant = run->prepare(b.text, 4 * kPage);
    EXPECT_FALSE(run->is_starved());
    ASSERT_TRUE(grant.is_ok()) << grant.status().to_string();
    EXPECT_EQ(grant->until, 3 * kPage);
    EXPECT_TRUE(run->complete(b.text, grant->token.number, b.tokens(3 * kPage)).is_ok());
    b.expect_balance(*run);
    EXPECT_EQ(run->prepare(b.text, 4 * kPage).status().code(), StatusCode::kOverloaded);
    EXPECT_FALSE(run->is_starved()) << "one page is missing, and one is coming";
    EXPECT_EQ(run->prepare(b.text, 5 * kPage).status().code(), StatusCode::kOverloaded);
    EXPECT_TRUE(run->is_starved()) << "two are missing";
    ASSERT_TRUE(b.device->drop_lease(ComponentKind::kFull, other, generation).is_ok());
    const Result<StepGrant> rest = run->prepare(b.text, 5 * kPage);
    ASSERT_TRUE(rest.is_ok()) << rest.status().to_string();
    EXPECT_EQ(rest->until, 4 * kPage);
    EXPECT_TRUE(run->cancel(rest->token.number).is_ok());
    run->release(false);
    b.expect_balance(*run);
  }
}

// A refusal that has nothing to do with pages says nothing of them.
TEST(RunningRequest, StarvesOnlyForPages) {
  Bench b("gqa-tiny", {2, 0, 0});
  const auto run = b.started(2 * kPage, 1000);
  EXPECT_TRUE(b.step(*run, 2 * kPage).is_ok());
  EXPECT_EQ(run->prepare(b.text, 2 * kPage + 1).status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(run->is_starved());
  EXPECT_EQ(run->prepare(b.text, kPage).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(run->is_starved());
  run->release(false);
}

// Room that was promised is not all there: the table of the window is as long as that of full all the same.
TEST(RunningRequest, GrowsByAPartWithAWindow) {
  Bench b("swa-tiny", {4, 8, 0});
  const auto run = b.started(2 * kPage, 1000);
  EXPECT_TRUE(b.step(*run, 2 * kPage).is_ok());
  b.promises = true;
  const Result<StepGrant> grant = run->prepare(b.text, 5 * kPage);
  ASSERT_TRUE(grant.is_ok()) << grant.status().to_string();
  EXPECT_EQ(grant->until, 4 * kPage);
  ASSERT_EQ(grant->pages->full.size(), 4u);
  ASSERT_EQ(grant->pages->swa.size(), 4u);
  EXPECT_TRUE(grant->pages->swa[2].valid() && grant->pages->swa[3].valid());
  EXPECT_TRUE(run->complete(b.text, grant->token.number, b.tokens(4 * kPage)).is_ok());
  b.expect_balance(*run);
  run->hand_over(b.text);
  run->release(false);
  b.expect_balance(*run);
}

// A decode step alone takes the checkpoint's slot again; one that may be rolled back takes another.
TEST(RunningRequest, TracksTheEndOfTheOutput) {
  for (const bool has_drafts : {false, true}) {
    Bench b("gdn-tiny", {16, 0, 3});
    const auto run = b.started(kPage, 1000);
    EXPECT_TRUE(b.step(*run, kPage).is_ok());
    const DeviceSlot other = has_drafts ? DeviceSlot{} : *b.device->allocate(ComponentKind::kMamba);
    EXPECT_TRUE(b.step(*run, 2 * kPage).is_ok());
    EXPECT_EQ(run->slots()[index_of(ComponentKind::kMamba)], 2u);  // working, tracked
    EXPECT_TRUE(b.step(*run, 3 * kPage - 1).is_ok());
    const Result<StepGrant> grant = run->prepare(b.text, 3 * kPage + (has_drafts ? 5 : 0));
    ASSERT_TRUE(grant.is_ok());
    ASSERT_EQ(grant->checkpoints.size(), 1u);
    EXPECT_EQ(grant->checkpoints[0].position, 3 * kPage);
    EXPECT_EQ(run->slots()[index_of(ComponentKind::kMamba)], has_drafts ? 3u : 2u);
    if (has_drafts) {
      EXPECT_TRUE(run->cancel(grant->token.number).is_ok());
    } else {
      EXPECT_TRUE(run->complete(b.text, grant->token.number, b.tokens(3 * kPage)).is_ok());
      b.give_back(ComponentKind::kMamba, other);
    }
    EXPECT_EQ(run->slots()[index_of(ComponentKind::kMamba)], 2u);
    run->hand_over(b.text);
    run->release(false);
    EXPECT_EQ(b.tree.counts(ComponentKind::kMamba, Tier::kDevice).resident, 1u);
    EXPECT_EQ(b.tree.match(b.text.space, b.tokens(4 * kPage)).device.at.pages, has_drafts ? 2u : 3u);
    b.expect_balance(*run);
  }
}

// Whatever is called while steps are open: the books balance, and nothing is free before they end.
TEST(RunningRequest, LetsGoBeneathOpenSteps) {
  Bench b("swa-tiny", {16, 16, 0});
  auto run = b.started(3 * kPage, 100);
  const std::uint64_t first = run->prepare(b.text, kPage)->token.number;
  const std::uint64_t second = run->prepare(b.text, 2 * kPage)->token.number;
  EXPECT_TRUE(run->prepare(b.text, 3 * kPage).is_ok());
  EXPECT_EQ(run->prepare(b.text, 3 * kPage + 1).status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(run->complete(b.text, first, b.tokens(kPage)).is_ok());
  b.expect_balance(*run);
  const std::uint32_t free_before = b.device->free_slots(ComponentKind::kFull);
  run->hand_over(b.text);
  run->release(false);
  EXPECT_EQ(run->state(), RunState::kIdle);
  EXPECT_EQ(b.device->free_slots(ComponentKind::kFull), free_before);
  EXPECT_EQ(b.tree.counts(ComponentKind::kFull, Tier::kDevice).locked, 1u) << "read by an open step";
  b.expect_balance(*run);
  run = b.again(std::move(run));  // it runs again, beside its old steps
  const std::uint64_t third = run->prepare(b.text, kPage)->token.number;
  EXPECT_EQ(run->complete(b.text, second, b.tokens(2 * kPage)).code(), StatusCode::kConflict);
  EXPECT_TRUE(run->cancel(3).is_ok());
  b.expect_balance(*run);
  EXPECT_EQ(b.in_limbo, ComponentCounts{});
  EXPECT_TRUE(run->complete(b.text, third, b.tokens(kPage)).is_ok()) << "not built on what was cancelled";
  run->release(false);
  EXPECT_EQ(b.tree.counts(ComponentKind::kFull, Tier::kDevice).locked, 0u);
  b.expect_balance(*run);
}

// ---- what changed in the page table

using pool_test::StaleTable;

TEST(RunningRequest, AGrantTellsWhatChangedInTheTable) {
  Bench b("swa-tiny", {64, 64, 0});
  const auto run = b.started(3 * kPage, 1000);
  StaleTable copy;
  const auto uploaded_by = [&](std::uint64_t until) {
    const Result<StepGrant> grant = run->prepare(b.text, until);
    EXPECT_TRUE(grant.is_ok());
    const std::size_t before = copy.uploaded;
    copy.update(*grant->pages);
    EXPECT_EQ(copy.difference(*grant->pages), "");
    EXPECT_TRUE(run->complete(b.text, grant->token.number, b.tokens(until)).is_ok());
    return copy.uploaded - before;
  };
  EXPECT_EQ(uploaded_by(2 * kPage), 6u) << "everything";
  EXPECT_EQ(uploaded_by(3 * kPage), 1u) << "a window page";
  EXPECT_EQ(uploaded_by(3 * kPage + 1), 3u) << "a page of each, and one that had no window page";
  EXPECT_EQ(uploaded_by(3 * kPage + 2), 0u);
  run->hand_over(b.text);
  run->release(false);
}

// Another request has computed the same pages: the tree keeps those, and the table names them from then on.
TEST(RunningRequest, ADuplicateChangesTheTable) {
  Bench b("gqa-tiny", {64, 0, 0});
  const auto first = b.started(2 * kPage, 100);
  const auto second = b.again(std::make_unique<RunningRequest>(b.parts));
  StaleTable copy;
  const Result<StepGrant> grant = second->prepare(b.text, 2 * kPage);
  ASSERT_TRUE(grant.is_ok());
  copy.update(*grant->pages);
  EXPECT_TRUE(b.step(*first, 2 * kPage).is_ok());
  EXPECT_TRUE(second->complete(b.text, grant->token.number, b.tokens(2 * kPage)).is_ok());
  EXPECT_NE(copy.difference(second->table()), "");
  const Result<StepGrant> next = second->prepare(b.text, 2 * kPage + 1);
  ASSERT_TRUE(next.is_ok());
  copy.update(*next->pages);
  EXPECT_EQ(copy.difference(*next->pages), "");
  EXPECT_EQ(first->table().full[0], next->pages->full[0]);
  for (RunningRequest* run : {first.get(), second.get()}) run->release(false);
}

// Over any story: growth, drafts that are rejected, steps that are cancelled, duplicates, requests that let everything
// go and begin again. Copies that are brought up to date now and then, each at its own times, are the table.
TEST(RunningRequest, StaleTablesCatchUpOverAnyStory) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    constexpr const char* kModels[] = {"gqa-tiny", "swa-tiny", "gdn-tiny"};
    const std::string model = kModels[seed % 3];
    Bench b(model, {96, model == "swa-tiny" ? 96u : 0u, model == "gdn-tiny" ? 16u : 0u});
    std::vector<std::unique_ptr<RunningRequest>> runs;
    runs.push_back(b.started(rng.between(1, 4 * kPage), 1000));
    runs.push_back(b.again(std::make_unique<RunningRequest>(b.parts)));
    std::vector<std::vector<StaleTable>> copies(runs.size(), std::vector<StaleTable>(3));
    std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> open(runs.size());  // number, until
    for (int turn = 0; turn < 150; ++turn) {
      const std::size_t who = rng.below(runs.size());
      RunningRequest& run = *runs[who];
      if (rng.chance(1, 30)) {
        run.hand_over(b.text);
        run.release(false);
        for (const auto& [number, until] : open[who]) EXPECT_TRUE(run.cancel(number).is_ok());
        open[who].clear();
        runs[who] = b.again(std::move(runs[who]));
      } else if (!open[who].empty() && rng.chance(1, 2)) {
        const auto [number, until] = open[who].front();
        open[who].erase(open[who].begin());
        const std::uint64_t computed = run.computed();
        const std::uint64_t done = rng.chance(3, 4) ? until : rng.between(computed + 1, until);
        const bool is_cancelled = rng.chance(1, 8);
        EXPECT_TRUE((is_cancelled ? run.cancel(number) : run.complete(b.text, number, b.tokens(done))).is_ok());
        if (is_cancelled || done < until) {
          for (const auto& [later, at] : open[who]) EXPECT_TRUE(run.cancel(later).is_ok());
          open[who].clear();
        }
      } else {
        const std::uint64_t from = open[who].empty() ? run.computed() : open[who].back().second;
        const Result<StepGrant> grant = run.prepare(b.text, from + rng.between(1, rng.chance(1, 2) ? 4 : 2 * kPage));
        if (!grant.is_ok()) continue;
        open[who].emplace_back(grant->token.number, grant->until);
        StaleTable& copy = copies[who][rng.below(copies[who].size())];
        copy.update(*grant->pages);
        ASSERT_EQ(copy.difference(*grant->pages), "") << "turn " << turn;
      }
    }
    for (std::size_t who = 0; who < runs.size(); ++who) {
      for (const auto& [number, until] : open[who]) EXPECT_TRUE(runs[who]->cancel(number).is_ok());
      runs[who]->release(false);
    }
  }
}

}  // namespace
}  // namespace larder
