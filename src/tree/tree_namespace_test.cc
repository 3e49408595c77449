// SPDX-License-Identifier: Apache-2.0
// Namespaces that are opened and closed, and what storage declined.
#include <gtest/gtest.h>

#include "tree/tree_test_support.h"

namespace larder::tree_test {
namespace {

PageKey seed_of(std::uint8_t n) {
  PageKey seed;
  seed.bytes[0] = n;
  return seed;
}

TEST(TreeNamespace, ClosedOneIsForgottenAndItsNumberUsedAgain) {
  Fixture f(config_of(2));
  const NamespaceId a = f.tree.spaces().open(seed_of(1), {}, PathHash());
  const NamespaceId b = f.tree.spaces().open(seed_of(2), {}, PathHash());
  f.space = a;
  const Tokens tokens = iota_tokens(8);
  (void)f.insert(tokens);
  EXPECT_EQ(f.tree.spaces().close(a).code(), StatusCode::kConflict);
  EXPECT_TRUE(f.tree.spaces().close(b).is_ok());
  EXPECT_EQ(f.tree.spaces().close(b).code(), StatusCode::kNotFound);
  EXPECT_EQ(f.tree.match(b, tokens).walked.pages, 0u);
  EXPECT_EQ(f.tree.check_invariants().to_string(), "ok");
  EXPECT_EQ(f.tree.node_count(), 1u);

  const NamespaceId c = f.tree.spaces().open(seed_of(3), {}, PathHash());
  EXPECT_EQ(c, b);
  EXPECT_EQ(f.tree.match(c, tokens).walked.pages, 0u);
  EXPECT_EQ(f.tree.keys().last(f.tree.spaces().root(c)), seed_of(3));
  EXPECT_NE(f.tree.spaces().open(seed_of(2), {}, PathHash()), c) << "the seed of the closed one names a new one";
  EXPECT_EQ(f.tree.spaces().open(seed_of(1), {}, PathHash()), a);
  EXPECT_EQ(f.tree.match(a, tokens).walked.pages, 4u);
  EXPECT_EQ(f.tree.flush(), 0u);
  EXPECT_TRUE(f.tree.spaces().close(a).is_ok());
  EXPECT_EQ(f.tree.check_invariants().to_string(), "ok");
  EXPECT_TRUE(f.tree.backlog().unstored(1, 100).empty());
}

TEST(TreeNamespace, FlushDoesNotCountClosedOnes) {
  Fixture f(config_of(2));
  ASSERT_TRUE(f.tree.spaces().close(f.tree.spaces().open(seed_of(1), {}, PathHash())).is_ok());
  EXPECT_EQ(f.tree.flush(), 0u);
  const NodeId node = f.insert(iota_tokens(8)).node;
  LockHandle lock = f.lock(node);
  EXPECT_EQ(f.tree.flush(), 1u) << "the one in use";
  EXPECT_EQ(f.tree.node_count(), 1u);
  f.tree.unlock(lock);
  EXPECT_EQ(f.tree.flush(), 0u);
}

TEST(TreeNamespace, FlushOfOneLeavesTheOthers) {
  Fixture f(config_of(2, 4, true));
  const NamespaceId a = f.space, b = f.tree.spaces().open(seed_of(2), {}, PathHash());
  (void)f.insert(iota_tokens(8), {.checkpoints = {4}});
  (void)f.insert(iota_tokens(4) + iota_tokens(4, 90));
  f.space = b;
  const NodeId node = f.insert(iota_tokens(8), {.checkpoints = {4}}).node;
  (void)f.insert(iota_tokens(4) + iota_tokens(4, 90));
  EXPECT_FALSE(f.tree.spaces().is_claimed(b));
  LockHandle lock = f.lock(node);
  EXPECT_TRUE(f.tree.spaces().is_claimed(b));
  EXPECT_FALSE(f.tree.spaces().is_claimed(a));
  EXPECT_EQ(f.tree.spaces().flush(b), 2u) << "the path that is locked";
  f.check();
  EXPECT_EQ(f.device_pages(iota_tokens(8)), 4u);
  f.tree.unlock(lock);
  EXPECT_FALSE(f.tree.spaces().is_claimed(b));
  f.tree.cover(OpId(1), node);
  EXPECT_TRUE(f.tree.spaces().is_claimed(b));
  EXPECT_NE(f.tree.spaces().flush(b), 0u);
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_FALSE(f.tree.spaces().is_claimed(b));
  EXPECT_EQ(f.tree.spaces().flush(b), 0u);
  f.check();
  EXPECT_TRUE(f.tree.spaces().close(b).is_ok());
  EXPECT_FALSE(f.tree.spaces().is_claimed(b));
  EXPECT_EQ(f.tree.spaces().flush(b), 0u) << "there is no such namespace";
  f.space = a;
  EXPECT_EQ(f.device_pages(iota_tokens(8)), 4u);
}

// What an observer of pages has been told of.
class Told final : public PageObserver {
 public:
  void came(const PageChange& change) override { pages += change.keys.size(); }
  void went(const PageChange& change) override { pages -= change.keys.size(); }
  std::size_t pages = 0;
};

TEST(TreeNamespace, RetiredOneIsOnlyThereForWhoHoldsIt) {
  Fixture f(config_of(2, 4, true));
  Told told;
  f.tree.observers().set_pages(&told);
  f.tree.backlog().track(1);
  const NamespaceId old = f.space = f.tree.spaces().open(seed_of(1), {}, PathHash());
  const Tokens tokens = iota_tokens(8);
  const NodeId node = f.insert(tokens, {.checkpoints = {4}}).node;
  ASSERT_TRUE(f.tree.attach_host(OpId(1), node, kFull, f.ledger.host(kFull, 4)).is_ok());
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_EQ(f.tree.backlog().unstored(1, 100).size(), 1u);
  EXPECT_GT(told.pages, 8u);
  LockHandle lock = f.lock(node);
  f.tree.spaces().retire(old);
  EXPECT_TRUE(f.tree.spaces().is_retired(old));
  EXPECT_EQ(told.pages, 0u);
  EXPECT_TRUE(f.tree.backlog().unstored(1, 100).empty());
  EXPECT_TRUE(f.tree.backlog().unstored(2, 100).empty()) << "also of a storage that is not tracked";
  EXPECT_EQ(f.tree.spaces().retired_pages(kFull, Tier::kHost), 4u);
  EXPECT_EQ(f.tree.spaces().retired_pages(kMamba, Tier::kDevice), 1u);
  EXPECT_EQ(f.tree.match(old, tokens).walked.pages, 4u);
  f.check();

  f.space = f.tree.spaces().open(seed_of(1), {}, PathHash());
  EXPECT_NE(f.space, old);
  EXPECT_EQ(f.tree.match(f.space, tokens).walked.pages, 0u);
  (void)f.insert(tokens);
  const std::size_t fresh = told.pages;
  EXPECT_GT(fresh, 0u);
  f.tree.backlog().track(2);
  EXPECT_TRUE(f.tree.backlog().unstored(2, 100).empty());
  EXPECT_NE(f.tree.spaces().flush(old), 0u) << "it is locked";
  f.tree.unlock(lock);
  EXPECT_EQ(f.tree.spaces().flush(old), 0u);
  EXPECT_EQ(told.pages, fresh) << "they went when it was retired";
  EXPECT_TRUE(f.tree.spaces().close(old).is_ok());
  EXPECT_EQ(f.tree.spaces().open(seed_of(1), {}, PathHash()), f.space);
  EXPECT_EQ(f.tree.spaces().retired_pages(kFull, Tier::kHost), 0u);
  f.check();
  f.tree.observers().set_pages(nullptr);
}

TEST(TreeNamespace, UnseededOneComesBackEmpty) {
  Fixture f(config_of(2));
  const NamespaceId first = f.space;
  (void)f.insert(iota_tokens(4));
  (void)f.tree.flush();
  EXPECT_TRUE(f.tree.spaces().close(first).is_ok());
  EXPECT_EQ(f.tree.spaces().close(NamespaceId(77)).code(), StatusCode::kNotFound);
  f.space = f.tree.spaces().open({}, {}, PathHash());
  EXPECT_EQ(f.tree.keys().last(f.tree.spaces().root(f.space)), std::nullopt);
  (void)f.insert(iota_tokens(4));
  EXPECT_EQ(f.tree.check_invariants().to_string(), "ok");
}

// Passed over under the epoch it was asked in, until something comes that storage was not asked about.
TEST(TreeDeclined, IsNotUnstoredAndNotStored) {
  Fixture f(config_of(2, 0, true));
  const NodeId node = f.insert(iota_tokens(8), {.checkpoints = {4}}).node;
  ASSERT_TRUE(f.tree.attach_host(OpId(1), node, kFull, f.ledger.host(kFull, 4)).is_ok());
  (void)f.tree.finish_op(OpId(1), true);
  EXPECT_EQ(f.tree.backlog().unstored(3, 100).size(), 1u);
  EXPECT_EQ(f.host_victim(kFull), node);
  f.tree.backlog().set_declined(node, 3);
  EXPECT_TRUE(f.tree.backlog().unstored(3, 100).empty());
  EXPECT_EQ(f.tree.backlog().unstored(4, 100).size(), 1u);
  EXPECT_EQ(f.tree.view(node).stored_epoch, 0u);
  EXPECT_EQ(f.tree.view(node).declined_epoch, 3u);
  // Both halves of a split are declined.
  const NodeId head = f.tree.settle({node, 2});
  EXPECT_EQ(f.tree.view(head).declined_epoch, 3u);
  EXPECT_TRUE(f.tree.backlog().unstored(3, 100).empty());
  ASSERT_TRUE(f.tree.attach_host(OpId(2), node, kMamba, f.ledger.host(kMamba, 1)).is_ok());
  (void)f.tree.finish_op(OpId(2), true);
  EXPECT_EQ(f.tree.backlog().unstored(3, 100), std::vector<NodeId>{node});
  f.tree.backlog().set_stored(node, 3);
  EXPECT_EQ(f.tree.view(node).stored_epoch, 3u);
  EXPECT_EQ(f.tree.view(node).declined_epoch, 0u);
  EXPECT_EQ(f.host_victim(kMamba), node);
  EXPECT_EQ(f.host_victim(kSwa), NodeId{});
  EXPECT_EQ(f.tree.check_invariants().to_string(), "ok");
}

}  // namespace
}  // namespace larder::tree_test
