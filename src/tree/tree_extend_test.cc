// SPDX-License-Identifier: Apache-2.0
// extend(): a request hands over what it computed, chunk by chunk; and what becomes one edge again.
#include <gtest/gtest.h>

#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

// A request that computes `all` in chunks, and holds what it has handed over.
class Owner {
 public:
  Owner(Fixture& fixture, Tokens all) : f_(fixture), all_(std::move(all)) {
    lock_ = f_.tree.lock(f_.tree.spaces().root(f_.space), kDev, {.full = true, .swa = true, .mamba = false});
  }
  ~Owner() { f_.tree.unlock(lock_); }

  // `state`: a checkpoint at the new end.
  Result<InsertResult> commit(std::size_t tokens, bool state = false) {
    const std::size_t pages = tokens / f_.config.page_size;
    const auto full = f_.ledger.device(kFull, pages);
    const auto swa = f_.ledger.device(kSwa, f_.config.window_tokens != 0 ? pages : 0);
    std::vector<Checkpoint> checkpoints;
    if (state) checkpoints.push_back({(done_ + tokens) / f_.config.page_size, f_.ledger.device(kMamba)});
    const auto result = f_.tree.extend(
        lock_, {done_ / f_.config.page_size, std::span(all_).subspan(done_, tokens), full, swa, checkpoints, 0});
    if (result.is_ok()) {
      done_ += tokens;
      f_.check();
      return result;
    }
    f_.ledger.free_device(kFull, full);
    f_.ledger.free_device(kSwa, swa);
    for (const Checkpoint& at : checkpoints) f_.ledger.free_device(kMamba, {&at.slot, 1});
    return result;
  }
  [[nodiscard]] Tokens done() const { return {all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(done_)}; }
  [[nodiscard]] LockHandle& lock() { return lock_; }

 private:
  Fixture& f_;
  Tokens all_;
  std::size_t done_ = 0;
  LockHandle lock_;
};

TEST(TreeExtend, APromptInChunksBecomesFewEdges) {
  Fixture f(config_of(16));
  Owner owner(f, iota_tokens(40'000));
  for (int i = 0; i < 39; ++i) ASSERT_TRUE(owner.commit(1024).is_ok());
  EXPECT_EQ(f.tree.node_count(), 5u) << "of at most 8,192 tokens";
  EXPECT_EQ(f.device_pages(owner.done()), 39u * 64);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 39u * 64);
  std::vector<PageLocation> where;
  f.tree.locate(owner.lock().node, kFull, 0, 39 * 64, where);
  for (std::uint32_t i = 0; i < where.size(); ++i) ASSERT_EQ(where[i].device, DeviceSlot(i)) << i;
}

TEST(TreeExtend, EdgesThatWereCopiedBetweenJoinWithTheirCopiesAndKeys) {
  Fixture f(config_of(4));
  Owner owner(f, iota_tokens(4000));
  for (int i = 0; i < 20; ++i) {
    const auto end = owner.commit(200);
    ASSERT_TRUE(end.is_ok());
    f.back_up(end->node);
    (void)f.tree.keys().of_edge(end->node);
    f.tree.backlog().set_stored(end->node, 1);
  }
  EXPECT_EQ(f.tree.node_count(), 2u) << "the last one joined nothing yet";
  const NodeId last = owner.lock().node;
  std::vector<PageLocation> where;
  f.tree.locate(last, kFull, 0, 1000, where);
  for (std::uint32_t i = 0; i < where.size(); ++i) ASSERT_EQ(where[i].host, HostSlot(i)) << i;
  std::optional<PageKey> prior;
  const Tokens all = owner.done();
  for (std::size_t i = 0; i < 1000; ++i) prior = page_key(std::span(all).subspan(i * 4, 4), prior);
  EXPECT_EQ(f.tree.keys().last(last), prior);
  EXPECT_TRUE(f.tree.backlog().unstored(1, 10).empty());
  EXPECT_EQ(f.tree.backlog().unstored(2, 10).size(), 2u);
}

TEST(TreeExtend, WhatTellsEdgesApartKeepsThemApart) {
  Fixture f(config_of(1, 0, true));
  Owner owner(f, iota_tokens(100));
  ASSERT_TRUE(owner.commit(10).is_ok());
  LockHandle reader = f.lock(owner.lock().node, kDev, {.full = true, .swa = false, .mamba = false});
  ASSERT_TRUE(owner.commit(10).is_ok());
  EXPECT_EQ(f.tree.node_count(), 2u) << "a lock ends there";
  f.tree.unlock(reader);
  const NodeId covered = owner.lock().node;
  f.tree.cover(OpId(1), covered);
  ASSERT_TRUE(owner.commit(10).is_ok());
  EXPECT_EQ(f.tree.node_count(), 3u) << "an operation uses it: [10, 20) stays, and nothing joins it";
  (void)f.tree.finish_op(OpId(1), true);
  ASSERT_TRUE(owner.commit(10, true).is_ok());
  EXPECT_EQ(f.tree.node_count(), 2u) << "[0, 30), and [30, 40) with its state";
  ASSERT_TRUE(owner.commit(10).is_ok());
  ASSERT_TRUE(owner.commit(10).is_ok());
  EXPECT_EQ(f.tree.node_count(), 3u) << "a state stands at 40";
  f.insert(iota_tokens(45) + iota_tokens(5, 900), {.owned_from = 40});
  ASSERT_TRUE(owner.commit(10).is_ok());
  EXPECT_EQ(f.device_pages(iota_tokens(45)), 40u);
  EXPECT_EQ(f.match(iota_tokens(45) + iota_tokens(5, 900)).walked.pages, 50u) << "a fork stands at 45";
  f.check();
}

TEST(TreeExtend, TheLockMovesWithTheWindow) {
  Fixture f(config_of(1, 4, true));
  Owner owner(f, iota_tokens(100));
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(owner.commit(10).is_ok());
    EXPECT_EQ(f.counts(kSwa, kDev).locked, 4u);
    EXPECT_EQ(f.counts(kFull, kDev).locked, 10u * (i + 1));
  }
  EXPECT_EQ(f.tree.evict_device(kFull, 5, VictimRule::kDrop).freed, 0u);
  EXPECT_EQ(f.tree.evict_device(kSwa, 100, VictimRule::kDrop).freed, 86u);
  f.check();
  f.tree.unlock(owner.lock());
  EXPECT_EQ(f.counts(kSwa, kDev).locked, 0u);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 0u);
  EXPECT_EQ(f.tree.flush(), 0u);
}

// Pages that leave the window go one by one, and none of them stays a node.
// A window that leaves page by page cuts its edge in pieces; the next pages of the path join them.
TEST(TreeExtend, WindowsThatLeaveDoNotShredThePath) {
  Fixture f(config_of(1, 4));
  Owner owner(f, iota_tokens(3000));
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(owner.commit(50).is_ok());
    ASSERT_LE(f.tree.node_count(), 12u) << i;
    while (f.counts(kSwa, kDev).evictable() > 7) ASSERT_GE(f.tree.evict_device(kSwa, 1, VictimRule::kDrop).freed, 1u);
    f.check();
  }
  EXPECT_EQ(f.match(owner.done()).full_device_pages, 3000u);
}

TEST(TreeExtend, PagesThatOthersHaveComeBackAndTheLockMovesOn) {
  Fixture f(config_of(2));
  const Tokens tokens = iota_tokens(40);
  f.insert(tokens);
  Owner owner(f, tokens);
  const auto first = owner.commit(20);
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(first->duplicate_pages, 10u);
  EXPECT_EQ(f.counts(kFull, kDev).locked, 10u);
  const auto rest = owner.commit(20);
  ASSERT_TRUE(rest.is_ok());
  EXPECT_EQ(rest->duplicate_pages, 10u);
  EXPECT_EQ(f.tree.node_count(), 1u) << "the split at its first end is undone";
}

TEST(TreeExtend, ARefusalLeavesTheLockAsItWas) {
  Fixture f(config_of(2));
  Owner owner(f, iota_tokens(40));
  ASSERT_TRUE(owner.commit(10).is_ok());
  EXPECT_EQ(owner.commit(0).status().code(), StatusCode::kOk) << "nothing new is no mistake";
  const LockHandle before = owner.lock();
  const Tokens odd = iota_tokens(3);
  EXPECT_EQ(f.tree.extend(owner.lock(), {.from = 5, .tokens = odd}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.extend(owner.lock(), {.from = 4}).status().code(), StatusCode::kInvalidArgument);
  const NodeId node = owner.lock().node;
  const Tokens beyond = iota_tokens(20);
  const auto adopted = f.adopt(beyond, 5);  // on the host, and on its way to the device
  const auto slots = f.ledger.device(kFull, 5);
  ASSERT_TRUE(f.tree.attach_device(OpId(1), adopted.node, kFull, 5, slots).is_ok());
  EXPECT_EQ(owner.commit(10).status().code(), StatusCode::kConflict);
  EXPECT_EQ(owner.lock().node, node);
  EXPECT_EQ(owner.lock().window_from, before.window_from);
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_TRUE(owner.commit(10).is_ok());
  LockHandle none, host = f.lock(owner.lock().node, kHst);
  EXPECT_EQ(f.tree.extend(none, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.tree.extend(host, {}).status().code(), StatusCode::kInvalidArgument);
  f.tree.unlock(host);
}

// What one policy tells apart by age stays apart.
TEST(TreeExtend, FifoKeepsTheAgesOfChunks) {
  Fixture f(config_of(1, 0, false, EvictionPolicy::kFifo));
  Owner owner(f, iota_tokens(30));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(owner.commit(10).is_ok());
  EXPECT_EQ(f.tree.node_count(), 3u);
}

}  // namespace
}  // namespace larder::tree_test
