// SPDX-License-Identifier: Apache-2.0
// The backlog over a real tree and host, without a cache: what is written when, in which order, and what a failure
// costs.
#include "controller/store_backlog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "sim/world/small_models.h"
#include "tests/cache/patient_backend.h"
#include "tree/tree_backlog.h"

namespace larder {
namespace {

class StoreBacklogTest : public ::testing::Test, protected HostRig {
 protected:
  StoreBacklogTest() : HostRig(sim::simulated_model("full").value(), 1 << 20) { config_.backup_retries = 1; }
  ~StoreBacklogTest() override {
    backlog_.detach_storage();
    for (auto& write : std::exchange(backend_.writes, {})) write.done(WriteResult{{cancelled("over")}});
    poll();
    EXPECT_TRUE(tree_.check_invariants().is_ok()) << tree_.check_invariants().to_string();
    EXPECT_TRUE((backlog_.kept() + backlog_.kept_by_abandoned()).is_none());
  }

  void poll() {
    (void)ops_.collect(Nanos{0});
    for (const AgreedEvent& event : ops_.take_ended()) {
      Op* const op = ops_.find(event.op);
      if (op == nullptr) continue;
      if (op->kind == OpKind::kStore) backlog_.done(*op, event.bits);
      if (op->kind == OpKind::kTimer && op->id == backlog_.rest_timer()) backlog_.rest_is_over();
      ops_.erase(event.op);
    }
    backlog_.pump();
  }
  void wait(Nanos time) {
    clock_.advance(time);
    poll();
  }

  // Tokens of a path: one digit a page.
  [[nodiscard]] std::vector<TokenId> tokens_of(const std::string& path) const {
    std::vector<TokenId> tokens;
    for (const char page : path) tokens.insert(tokens.end(), model_.page_size, static_cast<TokenId>(page));
    return tokens;
  }
  // A node with the pages of `path` beyond `from`, on the host.
  NodeId add(const std::string& path, std::size_t from) { return add_pages(tokens_of(path), from); }
  // A page of its own, number `i`, beneath `path`.
  NodeId add_tokens(const std::string& path, TokenId i) {
    std::vector<TokenId> tokens = tokens_of(path);
    tokens.insert(tokens.end(), model_.page_size, 1000 + i);
    return add_pages(tokens, path.size());
  }
  NodeId add_pages(const std::vector<TokenId>& tokens, std::size_t from) {
    std::array<std::vector<HostSlot>, kComponentCount> slots;
    EXPECT_TRUE(host_->reserve({static_cast<std::uint32_t>(tokens.size() / model_.page_size - from), 0, 0}, slots));
    return tree_.insert_host({.space = space_, .tokens = tokens, .from = from, .full = slots[0], .state = {}})->node;
  }
  [[nodiscard]] bool is_stored(NodeId node) const { return tree_.view(node).stored_epoch == backlog_.epoch(); }

  // Answers the oldest write: each group by its pages' count and number.
  void answer(const std::function<Status(const PageGroup&)>& fate = [](const PageGroup&) { return Status::ok(); }) {
    ASSERT_FALSE(backend_.writes.empty());
    PatientBackend::Write write = std::move(backend_.writes.front());
    backend_.writes.erase(backend_.writes.begin());
    WriteResult result;
    for (const PageGroup& group : write.request.groups) result.groups.push_back(fate(group));
    write.done(std::move(result));
    poll();
  }
  // Is `node`'s last page in the group?
  [[nodiscard]] bool holds(const PageGroup& group, NodeId node) {
    const PageKey key = tree_.keys().of_edge(node).back();
    return std::any_of(group.items.begin(), group.items.end(), [&](const WriteItem& item) { return item.key == key; });
  }

  PatientBackend backend_;
};

TEST_F(StoreBacklogTest, WhatWasThereBeforeTheStorageIsWrittenInOneOrder) {
  const NodeId a = add("a", 0), ab = add("ab", 1), abc = add("abc", 2);
  poll();
  EXPECT_EQ(backend_.submitted, 0u);
  backlog_.attach_storage(backend_);
  poll();
  ASSERT_EQ(backend_.writes.size(), 1u);
  const std::vector<PageGroup>& groups = backend_.writes[0].request.groups;
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_TRUE(holds(groups[0], a) && holds(groups[1], ab) && holds(groups[2], abc));
  answer();
  EXPECT_TRUE(is_stored(a) && is_stored(ab) && is_stored(abc));
  EXPECT_EQ(counters_.stored, 3u);
}

TEST_F(StoreBacklogTest, AChildWaitsForItsParentAndOthersDoNot) {
  backlog_.attach_storage(backend_);
  const NodeId a = add("a", 0);
  poll();
  const NodeId ab = add("ab", 1), x = add("x", 0);
  poll();
  ASSERT_EQ(backend_.writes.size(), 2u);
  EXPECT_EQ(backend_.writes[1].request.groups.size(), 1u);
  EXPECT_TRUE(holds(backend_.writes[1].request.groups[0], x));
  answer();
  ASSERT_EQ(backend_.writes.size(), 2u);
  EXPECT_TRUE(holds(backend_.writes[1].request.groups[0], ab));
  EXPECT_TRUE(is_stored(a));
}

TEST_F(StoreBacklogTest, ThePumpGoesOnWhileOneWriteHangs) {
  config_.store_batch_nodes = 1;
  backlog_.attach_storage(backend_);
  std::vector<NodeId> nodes;
  for (char c = 'a'; c <= 'z'; ++c) nodes.push_back(add(std::string(1, c), 0));
  poll();
  EXPECT_EQ(backend_.writes.size(), 16u);
  PatientBackend::Write hung = std::move(backend_.writes.front());
  backend_.writes.erase(backend_.writes.begin());
  while (!backend_.writes.empty()) answer();
  EXPECT_EQ(counters_.stored, nodes.size() - 1);
  hung.done(WriteResult{{Status::ok()}});
  poll();
  EXPECT_EQ(counters_.stored, nodes.size());
}

// Many children of what hangs do not hide what stands behind them.
TEST_F(StoreBacklogTest, WhatWaitsForItsParentHidesNobody) {
  backlog_.attach_storage(backend_);
  (void)add("a", 0);
  poll();
  for (TokenId i = 0; i < 600; ++i) (void)add_tokens("a", i);
  config_.store_batch_nodes = 1;
  for (char c = 'k'; c <= 'z'; ++c) (void)add(std::string(1, c), 0);
  poll();
  EXPECT_EQ(backend_.writes.size(), 16u);
  config_.store_batch_nodes = 64;
  while (!backend_.writes.empty()) answer();
  EXPECT_EQ(counters_.stored, 1u + 600u + 16u);
}

// Storage that does not say which group it refuses: the others are found one by one.
TEST_F(StoreBacklogTest, AWriteThatIsRefusedAsAWholeGoesNodeByNode) {
  const NodeId bad = add("a", 0), good = add("b", 0), better = add("c", 0);
  backlog_.attach_storage(backend_);
  poll();
  const auto refuse_with_bad = [&](const std::vector<PageGroup>& groups) {
    return std::any_of(groups.begin(), groups.end(), [&](const PageGroup& group) { return holds(group, bad); });
  };
  std::size_t writes = 0;
  for (; !backend_.writes.empty(); ++writes) {
    const bool is_refused = refuse_with_bad(backend_.writes.front().request.groups);
    answer([&](const PageGroup&) { return is_refused ? invalid_argument("too large") : Status::ok(); });
  }
  EXPECT_EQ(writes, 4u);
  EXPECT_TRUE(is_stored(good) && is_stored(better));
  EXPECT_FALSE(is_stored(bad));
  EXPECT_EQ(counters_.store_failed, 1u);
  EXPECT_EQ(counters_.stored, 2u);
}

TEST_F(StoreBacklogTest, ANodeThatAlwaysFailsHoldsNobodyUp) {
  const NodeId bad = add("a", 0), good = add("b", 0);
  backlog_.attach_storage(backend_);
  poll();
  const auto fails = [&](const PageGroup& group) { return holds(group, bad) ? unavailable("sick") : Status::ok(); };
  answer(fails);
  wait(config_.backup_retry_delay);
  answer(fails);
  EXPECT_TRUE(is_stored(good));
  const NodeId next = add("c", 0);
  poll();
  ASSERT_EQ(backend_.writes.size(), 1u) << "storage took something: it is not left alone";
  answer(fails);
  EXPECT_TRUE(is_stored(next));
  EXPECT_EQ(counters_.store_failed, 1u);
}

TEST_F(StoreBacklogTest, ALargeNodeGoesInGroupsAndCountsWhenAllOfThemAreThere) {
  config_.store_group_bytes = 2 * model_.anchor(ComponentKind::kFull).page_bytes();
  backlog_.attach_storage(backend_);
  const NodeId node = add("abcde", 0);
  poll();
  ASSERT_EQ(backend_.writes.size(), 1u);
  ASSERT_EQ(backend_.writes[0].request.groups.size(), 3u);
  EXPECT_EQ(backend_.writes[0].request.groups[2].items.size(), 1u);
  answer([&](const PageGroup& group) { return holds(group, node) ? unavailable("last") : Status::ok(); });
  EXPECT_FALSE(is_stored(node));
  wait(config_.backup_retry_delay);
  answer();
  EXPECT_TRUE(is_stored(node));
  EXPECT_EQ(counters_.stored, 5u);
  EXPECT_EQ(counters_.store_failed, 0u);
}

TEST_F(StoreBacklogTest, OnlyWhatFailedIsWrittenAgain) {
  const NodeId a = add("a", 0), b = add("b", 0);
  backlog_.attach_storage(backend_);
  poll();
  answer([&](const PageGroup& group) { return holds(group, b) ? overloaded("now") : Status::ok(); });
  EXPECT_TRUE(is_stored(a));
  wait(config_.backup_retry_delay);
  ASSERT_EQ(backend_.writes.size(), 1u);
  EXPECT_EQ(backend_.writes[0].request.groups.size(), 1u);
  answer();
  EXPECT_TRUE(is_stored(b));
  EXPECT_EQ(counters_.store_failed, 0u);
}

TEST_F(StoreBacklogTest, WhatCanNeverBeTakenIsNotTriedAgainAndStopsNobody) {
  const NodeId bad = add("a", 0);
  backlog_.attach_storage(backend_);
  std::vector<NodeId> good;
  for (char c = 'b'; c <= 'k'; ++c) good.push_back(add(std::string(1, c), 0));
  poll();
  answer([&](const PageGroup& group) { return holds(group, bad) ? invalid_argument("too large") : Status::ok(); });
  for (int i = 0; i < 100; ++i) wait(std::chrono::seconds(10));
  EXPECT_TRUE(backend_.writes.empty());
  EXPECT_TRUE(std::all_of(good.begin(), good.end(), [&](NodeId node) { return is_stored(node); }));
  EXPECT_EQ(counters_.store_failed, 1u);
  EXPECT_EQ(counters_.store_declined, 0u);
  EXPECT_FALSE(is_stored(bad));
}

TEST_F(StoreBacklogTest, WhatFailsToTheLastAttemptRestsAndIsFoundAgain) {
  const NodeId bad = add("a", 0);
  backlog_.attach_storage(backend_);
  poll();
  const auto fails = [&](const PageGroup& group) { return holds(group, bad) ? unavailable("sick") : Status::ok(); };
  answer(fails);
  wait(config_.backup_retry_delay);
  answer(fails);
  EXPECT_EQ(counters_.store_failed, 1u);
  const NodeId other = add("b", 0);
  poll();
  EXPECT_TRUE(backend_.writes.empty()) << "storage took nothing: it is left alone";
  wait(std::chrono::seconds(1));
  ASSERT_EQ(backend_.writes.size(), 1u);
  answer();
  EXPECT_TRUE(is_stored(bad) && is_stored(other));
}

TEST_F(StoreBacklogTest, ASickStorageIsAskedLessAndLess) {
  (void)add("a", 0);
  backlog_.attach_storage(backend_);
  poll();
  for (int second = 0; second < 3600; ++second) {
    while (!backend_.writes.empty()) answer([](const PageGroup&) { return unavailable("sick"); });
    wait(std::chrono::seconds(1));
  }
  EXPECT_LT(backend_.submitted, 2u * (3600 / 60 + 10));
  EXPECT_GT(backend_.submitted, 2u * (3600 / 60 - 10));
}

TEST_F(StoreBacklogTest, TheNextStorageIsGivenWhatADetachedOneHangsOn) {
  const NodeId a = add("a", 0);
  backlog_.attach_storage(backend_);
  poll();
  PatientBackend::Write hung = std::move(backend_.writes.front());
  backend_.writes.clear();
  backlog_.detach_storage();
  EXPECT_TRUE(backlog_.kept().is_none());
  EXPECT_FALSE(backlog_.kept_by_abandoned().is_none());
  backlog_.attach_storage(backend_);
  poll();
  answer();
  EXPECT_TRUE(is_stored(a));
  hung.done(WriteResult{{unavailable("at last")}});
  poll();
  EXPECT_TRUE(is_stored(a));
}

TEST_F(StoreBacklogTest, AHungStorageKeepsABoundedPartOfTheHost) {
  config_.store_batch_nodes = 1;
  backlog_.attach_storage(backend_);
  const std::size_t total = host_->total_blocks();
  std::string path;
  for (std::size_t i = 0; i < 90; ++i) (void)add({static_cast<char>('!' + i)}, 0);
  poll();
  EXPECT_LE(backlog_.kept().blocks, std::max<std::size_t>(1, total * 60 / 100));
}

// Random growth and faults: a parent is in storage before its child is written, or goes before it in the same write;
// and in the end everything is there.
TEST_F(StoreBacklogTest, ParentsComeBeforeChildrenAndEverythingComes) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    config_.store_batch_nodes = static_cast<std::uint32_t>(rng.between(1, 4));
    (void)tree_.flush();
    backlog_.attach_storage(backend_);
    std::set<PageKey> stored;
    const auto answer_one = [&] {
      std::set<PageKey> before = stored;
      answer([&](const PageGroup& group) {
        for (const WriteItem& item : group.items) {
          EXPECT_TRUE(item.parent == PageKey{} || before.contains(item.parent));
          before.insert(item.key);
        }
        if (rng.chance(1, 3)) return unavailable("now and then");
        for (const WriteItem& item : group.items) stored.insert(item.key);
        return Status::ok();
      });
    };
    std::vector<std::string> paths = {""};
    for (int i = 0; i < 60; ++i) {
      std::string path = paths[rng.below(paths.size())];
      const std::size_t from = path.size();
      path += std::string(1 + rng.below(2), static_cast<char>('a' + rng.below(26)));
      if (tree_.match(space_, tokens_of(path)).walked.pages == from) {
        (void)add(path, from);
        paths.push_back(path);
      }
      poll();
      if (!backend_.writes.empty() && rng.chance(1, 2)) answer_one();
      if (rng.chance(1, 4)) wait(std::chrono::milliseconds(200));
    }
    for (int i = 0; i < 5000 && !(tree_.backlog().unstored(backlog_.epoch(), 1).empty() && backend_.writes.empty());
         ++i) {
      while (!backend_.writes.empty()) answer_one();
      wait(std::chrono::seconds(2));
    }
    for (const NodeId node : tree_.backlog().unstored(77, 1000)) EXPECT_TRUE(is_stored(node));
    backlog_.detach_storage();
    poll();
  }
}

}  // namespace
}  // namespace larder
