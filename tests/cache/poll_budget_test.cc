// SPDX-License-Identifier: Apache-2.0
// What one poll does is bounded by a count of work, whatever arrives: here prompts of a million tokens, in pages of 64
// tokens and of one.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "controller/cache.h"
#include "tests/support/passing_backend.h"

namespace larder {
namespace {

constexpr std::uint64_t kTokens = 1'000'000;

// Copies nothing, at once.
class InstantCopies final : public TransferEngine {
 public:
  explicit InstantCopies(std::uint32_t layers) : layers_(layers) {}
  [[nodiscard]] Status submit(TransferRequest request, Done done) override {
    if (request.gate) request.gate->arrive(layers_ - 1);
    done(TransferDone{request.id, Status::ok(), {}, {}});
    return Status::ok();
  }
  [[nodiscard]] std::size_t in_flight() const override { return 0; }

 private:
  const std::uint32_t layers_;
};

// Has the first `has` pages of every prompt, and takes what it is given; all at once, and moves no bytes.
class InstantStorage final : public support::StubBackend {
 public:
  std::uint64_t has = ~std::uint64_t{0};
  bool hangs = false;                    // what is read
  std::uint64_t asked = 0, written = 0;  // pages
  std::uint64_t most_items = 0;          // in one read or write
  std::vector<ReadDone> hanging;

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    const std::size_t there = has > asked ? std::min<std::uint64_t>(request.keys.size(), has - asked) : 0;
    asked += request.keys.size();
    ExistsResult result;
    for (const PoolName pool : request.pools) result.presence.push_back({pool, Presence(there, true)});
    done(std::move(result));
    return Status::ok();
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    most_items = std::max<std::uint64_t>(most_items, request.items.size());
    if (hangs) {
      hanging.push_back(std::move(done));
      return Status::ok();
    }
    done(ReadResult{std::vector<Status>(request.items.size(), Status::ok())});
    return Status::ok();
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    std::uint64_t items = 0;
    for (const PageGroup& group : request.groups) items += group.items.size();
    written += items;
    most_items = std::max(most_items, items);
    done(WriteResult{std::vector<Status>(request.groups.size(), Status::ok())});
    return Status::ok();
  }
};

ModelSpec paged_model(std::uint32_t page_size) {
  ModelSpec model;
  model.id = "small-pages";
  model.page_size = page_size;
  model.dims.q_heads = model.dims.kv_heads = model.dims.hidden = 1;
  model.dims.head_dim = 2;
  model.layers = {LayerKind::kAttention};
  EXPECT_TRUE(finalize_model(model).is_ok());
  return model;
}

class LongPrompt {
 public:
  explicit LongPrompt(std::uint32_t page_size, std::uint64_t batch_bytes = std::uint64_t{8} << 20)
      : model_(paged_model(page_size)), copies_(model_.layer_count()) {
    const std::uint64_t pages = kTokens / page_size + 64;
    device_ = std::move(DevicePools::create(model_, {static_cast<std::uint32_t>(pages), 0, 0}, memory_)).value();
    constexpr std::size_t kLeastSlot = 64;  // bytes: a block's
    const std::size_t budget = 2 * pages * std::max(kLeastSlot, host_slot_bytes(model_, ComponentKind::kFull));
    host_ = std::move(HostPools::create(model_, HostLayout::kPageFirst, budget, memory_)).value();
    config_.prefetch_policy = PrefetchPolicy::kWaitComplete;
    config_.prefetch_capacity = 1;
    config_.prefetch_batch_bytes = batch_bytes;
    config_.chunked_prefill_tokens = 8192;
    CacheParts parts;
    parts.model = &model_;
    parts.device = device_.get();
    parts.host = host_.get();
    parts.transfer = &copies_;
    parts.clock = &clock;
    cache = std::move(Cache::create(config_, parts)).value();
    prompt.resize(kTokens + 1);
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 7919 % 65536);
  }
  ~LongPrompt() {
    EXPECT_TRUE(cache->check_invariants().is_ok()) << cache->check_invariants().to_string();
    // The budget, and the piece of work that went beyond it: a quarter, with what belongs to it.
    EXPECT_LE(cache->counters().most_poll_work, config_.poll_budget + config_.poll_budget / 2);
    EXPECT_GT(cache->counters().most_poll_work, config_.poll_budget / 2) << "nothing here was long";
  }
  // Polls until nothing is left to do; how often. A poll that says so has more to do at once.
  std::uint64_t work() {
    std::uint64_t polls = 0;
    for (int quiet = 0; quiet < 3 && polls < 100'000; ++polls) quiet = cache->poll(Nanos{0}) ? 0 : quiet + 1;
    return polls;
  }
  [[nodiscard]] std::uint64_t pages() const { return kTokens / model_.page_size; }
  void compute() {
    const RequestId id = cache->begin({prompt, 1}).value();
    EXPECT_TRUE(cache->start(id).is_ok());
    for (std::uint64_t done = 0; done < prompt.size();) {
      done = std::min<std::uint64_t>(done + 8192, prompt.size());
      const Result<StepGrant> grant = cache->prepare_step(id, done);
      ASSERT_TRUE(grant.is_ok()) << grant.status().to_string();
      ASSERT_TRUE(cache->complete_step(grant->token, std::span<const TokenId>(prompt).first(done)).is_ok());
      (void)cache->poll(Nanos{0});
    }
    cache->finish(id);
  }

  std::vector<TokenId> prompt;
  InstantStorage storage;
  ManualClock clock;

 private:
  const ModelSpec model_;
  MemorySource& memory_ = host_memory_source();
  InstantCopies copies_;
  std::unique_ptr<DevicePools> device_;
  std::unique_ptr<HostPools> host_;
  CacheConfig config_;

 public:
  std::unique_ptr<Cache> cache;  // goes before all it works with
};

TEST(PollBudget, APromptThatStorageHasComesInPieces) {
  for (const std::uint32_t page_size : {64u, 1u}) {
    LongPrompt h(page_size);
    ASSERT_TRUE(h.cache->attach_storage(h.storage).is_ok());
    const RequestId id = h.cache->begin({h.prompt, 1}).value();
    EXPECT_EQ(h.cache->phase(id), RequestPhase::kPrefetching);
    EXPECT_EQ(h.storage.asked, 0u) << "a call hashes a little of a prompt at most";
    EXPECT_GT(h.work(), h.pages() / 2048);
    EXPECT_EQ(h.storage.asked, h.pages());
    EXPECT_EQ(h.cache->phase(id), RequestPhase::kReady);
    const Result<CachedTokens> cached = h.cache->start(id);
    ASSERT_TRUE(cached.is_ok()) << cached.status().to_string();
    EXPECT_EQ(cached->storage, kTokens / page_size * page_size);
    EXPECT_LE(h.storage.most_items, 1024u);
    h.cache->finish(id);
    (void)h.work();
    EXPECT_EQ(h.storage.written, 0u) << "it came from there";
  }
}

// Pages that are larger than a batch: there are as many batches as pages.
TEST(PollBudget, BatchesArePlannedInPieces) {
  LongPrompt h(64, 1);
  ASSERT_TRUE(h.cache->attach_storage(h.storage).is_ok());
  const RequestId id = h.cache->begin({h.prompt, 1}).value();
  (void)h.work();
  EXPECT_EQ(h.storage.most_items, 1u);
  const Result<CachedTokens> cached = h.cache->start(id);
  ASSERT_TRUE(cached.is_ok()) << cached.status().to_string();
  EXPECT_EQ(cached->storage, kTokens / 64 * 64);
  h.cache->finish(id);
  (void)h.work();
}

TEST(PollBudget, ManyBatchesThatAreNotNeededAnyMoreGoAtOnce) {
  LongPrompt h(64, 1);
  h.storage.hangs = true;
  ASSERT_TRUE(h.cache->attach_storage(h.storage).is_ok());
  const RequestId id = h.cache->begin({h.prompt, 1}).value();
  (void)h.work();
  EXPECT_EQ(h.cache->phase(id), RequestPhase::kPrefetching);
  h.clock.advance(std::chrono::hours(1));
  (void)h.work();
  EXPECT_EQ(h.cache->phase(id), RequestPhase::kReady);
  h.cache->abort(id);
  for (const StorageBackend::ReadDone& done : std::exchange(h.storage.hanging, {})) done(ReadResult{});
  (void)h.work();
}

TEST(PollBudget, WhatStorageLacksIsNotHashed) {
  LongPrompt h(1);
  h.storage.has = 3000;
  ASSERT_TRUE(h.cache->attach_storage(h.storage).is_ok());
  const RequestId id = h.cache->begin({h.prompt, 1}).value();
  (void)h.work();
  EXPECT_LE(h.storage.asked, 3000u + 5 * 1024);
  const Result<CachedTokens> cached = h.cache->start(id);
  ASSERT_TRUE(cached.is_ok()) << cached.status().to_string();
  EXPECT_EQ(cached->storage, 3000u);
  h.cache->finish(id);
  (void)h.work();
}

TEST(PollBudget, AMillionTokensAreStoredInPieces) {
  for (const std::uint32_t page_size : {64u, 1u}) {
    LongPrompt h(page_size);
    h.compute();
    (void)h.work();
    ASSERT_TRUE(h.cache->attach_storage(h.storage).is_ok());
    EXPECT_EQ(h.storage.written, 0u) << "a call is not a poll";
    (void)h.cache->poll(std::chrono::hours(1));  // there is work at once
    EXPECT_GT(h.storage.written, 0u);
    EXPECT_GT(h.work(), h.pages() / 4096);
    const std::uint64_t whole = h.prompt.size() / page_size;
    EXPECT_EQ(h.storage.written, whole);
    EXPECT_EQ(h.cache->counters().stored, whole);
    EXPECT_LE(h.storage.most_items, 2048u);
  }
}

// None of them waits for the other: each of the two gets its share of every poll.
TEST(PollBudget, APrefetchAndTheBacklogShareIt) {
  LongPrompt h(1);
  h.compute();
  (void)h.work();
  ASSERT_TRUE(h.cache->attach_storage(h.storage).is_ok());
  std::vector<TokenId> other = h.prompt;
  other.front() += 1;
  const RequestId id = h.cache->begin({other, 1}).value();
  for (int i = 0; i < 40; ++i) (void)h.cache->poll(Nanos{0});
  EXPECT_GT(h.storage.asked, 10'000u);
  EXPECT_GT(h.storage.written, 10'000u);
  h.cache->abort(id);
  (void)h.work();
}

}  // namespace
}  // namespace larder
