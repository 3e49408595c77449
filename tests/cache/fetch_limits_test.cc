// SPDX-License-Identifier: Apache-2.0
// Fetches over both lower tiers, without a cache: what they may have under way, and for how long anybody wants them.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "controller/lower_tiers.h"
#include "sim/sim_clock.h"
#include "sim/world/small_models.h"
#include "tests/support/passing_backend.h"

namespace larder {
namespace {

// Has every page, and answers when the test says so.
class HoldingBackend final : public support::StubBackend {
 public:
  std::deque<std::function<void()>> held;  // answers
  std::size_t reads = 0;                   // that were begun
  Status read_status;                      // of each page, when it is answered

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    ExistsResult result;
    for (const PoolName pool : request.pools) result.presence.push_back({pool, Presence(request.keys.size(), true)});
    held.push_back([done, result] { done(result); });
    return Status::ok();
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    ++reads;
    held.push_back(
        [this, done, items = request.items.size()] { done(ReadResult{std::vector<Status>(items, read_status)}); });
    return Status::ok();
  }
  // The oldest one.
  void answer() {
    ASSERT_FALSE(held.empty());
    std::exchange(held.front(), {})();
    held.pop_front();
  }
};

struct FetchOptions {
  PrefetchPolicy policy = PrefetchPolicy::kTimeout;
  std::uint32_t max_operations = 64;
  std::uint32_t poll_budget = 4096;
  std::uint64_t host_pages = 64;
};

class FetchRig {
 public:
  explicit FetchRig(const FetchOptions& options) : model_(sim::simulated_model("full").value()) {
    config_.prefetch_policy = options.policy;
    config_.prefetch_threshold = 1;
    config_.prefetch_capacity = 1;
    config_.prefetch_batch_bytes = 1;  // a batch for each page
    config_.max_operations = options.max_operations;
    config_.poll_budget = options.poll_budget;
    const std::size_t bytes = options.host_pages * host_slot_bytes(model_, ComponentKind::kFull);
    host_ = std::move(HostPools::create(model_, HostLayout::kPageFirst, bytes, host_memory_source())).value();
    tiers = std::make_unique<LowerTiers>(config_, LowerTiers::Parts{.model = model_,
                                                                    .host = host_.get(),
                                                                    .clock = clock,
                                                                    .metrics = nullptr,
                                                                    .ranks = nullptr,
                                                                    .scope = {},
                                                                    .own_done = [](Op&, bool) {},
                                                                    .is_engine_busy = [] { return false; },
                                                                    .free_device = {}});
    space_ = tiers->open_space("", "").value();
    EXPECT_TRUE(tiers->attach_storage(storage).is_ok());
  }
  ~FetchRig() {
    for (const auto& [id, tokens] : prompts_) tiers->prefetcher().leave(RequestId(id));
    for (int i = 0; i < 1000 && !(storage.held.empty() && tiers->idle()); ++i) work();
    EXPECT_TRUE(tiers->idle());
    EXPECT_TRUE(std::as_const(*tiers).check_invariants({}).is_ok());
    EXPECT_EQ(tiers->prefetcher().slots_held(), (std::array<std::uint64_t, kComponentCount>{}));
  }

  // A prompt of its own.
  RequestId enter(std::uint64_t pages) {
    const RequestId id(next_++);
    std::vector<TokenId>& tokens = prompts_[id.v];
    tokens.assign(pages * model_.page_size, static_cast<TokenId>(id.v));
    tiers->prefetcher().enter(id, space_, tokens);
    return id;
  }
  // Prompts that read one page after another, and together take all places of storage.
  void fill_places() {
    while (tiers->ops().places().has_room(OpKind::kExists)) (void)enter(10);
    const std::size_t places = under_way();
    for (std::size_t i = 0; i < places; ++i) work();
    EXPECT_EQ(under_way(), places);
    EXPECT_EQ(tiers->ops().places().open(OpKind::kRead), places);
  }
  // What its start asks, at its turn.
  [[nodiscard]] bool asks_again(RequestId id) { return tiers->prefetcher().asks_again(id, restorable(id)); }
  [[nodiscard]] std::uint64_t restorable(RequestId id) {
    return tiers->tree().match(space_, prompts_.at(id.v)).any.at.pages;
  }
  // Pages that fill the host, of a prompt that nobody fetched.
  void fill_host() {
    const auto pages = static_cast<std::uint32_t>(host_->free_blocks() / host_->blocks_per_slot(ComponentKind::kFull));
    std::array<std::vector<HostSlot>, kComponentCount> slots;
    ASSERT_EQ(tiers->host_room().take({pages, 0, 0}, HostEffort::kAll, slots), HostAnswer::kThere);
    const std::vector<TokenId> tokens(std::size_t{pages} * model_.page_size, 7777);
    ASSERT_TRUE(tiers->tree().insert_host({.space = space_, .tokens = tokens, .full = slots[0], .state = {}}).is_ok());
    tiers->counts().backed_up += pages;
  }
  void poll() { (void)tiers->poll(Nanos{0}); }
  void work() {
    if (!storage.held.empty()) storage.answer();
    poll();
  }
  [[nodiscard]] std::size_t under_way() const {
    return tiers->ops().places().open(OpKind::kExists) + tiers->ops().places().open(OpKind::kRead);
  }

  sim::SimClock clock;
  HoldingBackend storage;

 private:
  const ModelSpec model_;
  CacheConfig config_;
  std::unique_ptr<HostPools> host_;
  NamespaceId space_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::vector<TokenId>> prompts_;

 public:
  std::unique_ptr<LowerTiers> tiers;  // goes before all it works with
};

// Of four operations, one may be storage's. The budget is so small that a fetch goes on in the poll after its answer:
// by then another one has its place.
TEST(FetchLimits, AReadThatBeginsInALaterPollFindsNoPlaceOfItsOwn) {
  FetchRig rig({.max_operations = 4, .poll_budget = 2});
  const RequestId first = rig.enter(1);
  ASSERT_EQ(rig.under_way(), 1u);
  rig.work();
  ASSERT_EQ(rig.under_way(), 0u) << "its answer is known, and what comes of it waits for a poll";
  const RequestId second = rig.enter(1);
  ASSERT_EQ(rig.under_way(), 1u);
  for (int i = 0; i < 10; ++i) {
    rig.poll();
    ASSERT_LE(rig.under_way(), 1u);
  }
  EXPECT_TRUE(rig.tiers->prefetcher().waits_for(first) == Prefetcher::WaitsFor::kStorage);
  EXPECT_FALSE(rig.tiers->idle());
  for (int i = 0; i < 50; ++i) {
    rig.work();
    ASSERT_LE(rig.under_way(), 1u);
  }
  for (const RequestId id : {first, second}) {
    EXPECT_FALSE(rig.tiers->prefetcher().waits_for(id) == Prefetcher::WaitsFor::kStorage);
    EXPECT_EQ(rig.restorable(id), 1u);
  }
}

// Nobody polls in a circle for a place that only an answer makes.
TEST(FetchLimits, WhoWaitsForAPlaceHasNothingToDo) {
  FetchRig rig({.max_operations = 4, .poll_budget = 2});
  (void)rig.enter(1);
  rig.work();
  (void)rig.enter(1);
  int polls = 0;
  while (rig.tiers->poll(Nanos{0}) && polls < 100) ++polls;
  EXPECT_LT(polls, 10);
}

TEST(FetchLimits, WhoLeavesWhileItWaitsForAPlaceLeavesNothingBehind) {
  for (const bool by_limit : {false, true}) {
    FetchRig rig({.max_operations = 4, .poll_budget = 2});
    const RequestId first = rig.enter(1);
    rig.work();
    (void)rig.enter(1);
    for (int i = 0; i < 5; ++i) rig.poll();
    if (by_limit) {
      rig.clock.advance(std::chrono::hours(1));
    } else {
      rig.tiers->prefetcher().leave(first);
    }
    for (int i = 0; i < 10; ++i) rig.poll();
    EXPECT_FALSE(rig.tiers->prefetcher().waits_for(first) == Prefetcher::WaitsFor::kStorage);
    EXPECT_EQ(rig.tiers->prefetcher().slots_held(), (std::array<std::uint64_t, kComponentCount>{}));
  }
}

// It started without what it asked for: nothing leaves the host for that, and nothing is read.
TEST(FetchLimits, WhatNobodyQueuesForAnyMoreIsNotBegun) {
  FetchRig rig({.policy = PrefetchPolicy::kBestEffort});
  rig.fill_host();
  const RequestId id = rig.enter(8);
  (void)rig.tiers->prefetcher().start(id);
  for (int i = 0; i < 20; ++i) rig.storage.held.empty() ? rig.poll() : rig.work();
  EXPECT_EQ(rig.storage.reads, 0u);
  EXPECT_EQ(rig.tiers->counters().host_evicted, 0u);
  EXPECT_EQ(rig.restorable(id), 0u);
}

// The same between the answer and the poll that would go on with it.
TEST(FetchLimits, NorInAPollAfterTheAnswer) {
  FetchRig rig({.policy = PrefetchPolicy::kBestEffort, .poll_budget = 2});
  rig.fill_host();
  const RequestId id = rig.enter(1);
  rig.work();
  (void)rig.tiers->prefetcher().start(id);
  for (int i = 0; i < 20; ++i) rig.storage.held.empty() ? rig.poll() : rig.work();
  EXPECT_EQ(rig.storage.reads, 0u);
  EXPECT_EQ(rig.tiers->counters().host_evicted, 0u);
}

TEST(FetchLimits, WhatOneOfTwoQueuesForGoesOn) {
  FetchRig rig({.policy = PrefetchPolicy::kBestEffort});
  rig.fill_host();
  const RequestId id = rig.enter(8);
  for (int i = 0; i < 20; ++i) rig.storage.held.empty() ? rig.poll() : rig.work();
  EXPECT_EQ(rig.storage.reads, 8u);
  EXPECT_EQ(rig.restorable(id), 8u);
}

// Each page that comes gives its place to the next one of the same prompt.
TEST(FetchLimits, ANewcomerWaitsWhereAllPlacesAreTaken) {
  for (const PrefetchPolicy policy : {PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    FetchRig rig({.policy = policy, .max_operations = 16});
    rig.fill_places();
    const RequestId next = rig.enter(10);
    EXPECT_TRUE(rig.asks_again(next));
    EXPECT_TRUE(rig.tiers->prefetcher().waits_for(next) == Prefetcher::WaitsFor::kTurn);
    for (int i = 0;
         i < 200 && (rig.tiers->prefetcher().waits_for(next) == Prefetcher::WaitsFor::kStorage || rig.asks_again(next));
         ++i)
      rig.work();
    EXPECT_EQ(rig.restorable(next), 10u);
    EXPECT_EQ(rig.tiers->counters().prefetch_refused, 1u) << "it asked more than once, and is counted once";
  }
}

// What it waits for its place counts like what it waits for the fetch.
TEST(FetchLimits, ANewcomerWaitsAsLongAsItsPolicySays) {
  FetchRig rig({.max_operations = 16});
  rig.fill_places();
  const RequestId next = rig.enter(10);
  EXPECT_TRUE(rig.asks_again(next));
  rig.clock.advance(std::chrono::milliseconds(999));
  rig.poll();
  EXPECT_TRUE(rig.asks_again(next));
  rig.clock.advance(std::chrono::milliseconds(2));
  rig.poll();
  EXPECT_FALSE(rig.tiers->prefetcher().waits_for(next) == Prefetcher::WaitsFor::kTurn);
  EXPECT_FALSE(rig.asks_again(next));
}

TEST(FetchLimits, BestEffortWaitsForNoPlace) {
  FetchRig rig({.policy = PrefetchPolicy::kBestEffort, .max_operations = 16});
  rig.fill_places();
  EXPECT_FALSE(rig.asks_again(rig.enter(10)));
}

// Of sixteen places a fetch leaves two free, so that the next ones can ask, and read one page after another.
TEST(FetchLimits, ALongFetchLeavesPlacesForOthers) {
  FetchRig rig({.max_operations = 64, .host_pages = 256});
  (void)rig.enter(40);
  rig.work();
  ASSERT_GE(rig.under_way(), 12u);
  for (int i = 0; i < 10; ++i) rig.work();
  ASSERT_LE(rig.under_way(), 14u);
  const RequestId second = rig.enter(10);
  EXPECT_TRUE(rig.tiers->prefetcher().waits_for(second) == Prefetcher::WaitsFor::kStorage);
  EXPECT_EQ(rig.tiers->counters().prefetch_refused, 0u);
  for (int i = 0; i < 200 && rig.tiers->prefetcher().waits_for(second) == Prefetcher::WaitsFor::kStorage; ++i)
    rig.work();
  EXPECT_EQ(rig.restorable(second), 10u);
}

// Where the reads' own deadline is what ended them, their answers may come before the timer of the wait.
TEST(FetchLimits, SlowStorageIsNotFailedStorage) {
  for (const bool is_late : {false, true}) {
    FetchRig rig({});
    const RequestId id = rig.enter(10);
    rig.work();
    ASSERT_GT(rig.storage.reads, 0u);
    if (is_late) rig.clock.advance(std::chrono::seconds(2));
    rig.storage.read_status = deadline_exceeded("the wait for it is over");
    while (!rig.storage.held.empty()) rig.storage.answer();
    rig.poll();
    EXPECT_EQ(rig.tiers->prefetcher().fetched(id).trouble, is_late ? FetchTrouble::kLate : FetchTrouble::kFailed);
  }
}

}  // namespace
}  // namespace larder
