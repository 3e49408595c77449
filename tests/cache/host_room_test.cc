// SPDX-License-Identifier: Apache-2.0
// Room on the host over a real tree, pools and backlog, without a cache: who leaves, who stays, and what waits.
#include "controller/host_room.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "sim/world/small_models.h"
#include "tests/cache/patient_backend.h"
#include "tests/support/recurrent_model.h"

namespace larder {
namespace {

class HostRoomTest : public ::testing::Test, protected HostRig {
 protected:
  explicit HostRoomTest(ModelSpec model = sim::simulated_model("full_mamba").value())
      : HostRig(std::move(model), 1 << 12) {}
  ~HostRoomTest() override {
    backlog_.detach_storage();
    for (auto& write : std::exchange(backend_.writes, {})) write.done(WriteResult{{cancelled("over")}});
    poll();
    EXPECT_TRUE(tree_.check_invariants().is_ok()) << tree_.check_invariants().to_string();
    EXPECT_TRUE(host_->check_invariants().is_ok());
    EXPECT_EQ(counters_.internal_errors, 0u);
  }

  void poll() {
    (void)ops_.collect(Nanos{0});
    room_.count_refusal();
    for (const AgreedEvent& event : ops_.take_ended()) {
      if (Op* const op = ops_.find(event.op); op != nullptr && op->kind == OpKind::kStore)
        backlog_.done(*op, event.bits);
      ops_.erase(event.op);
    }
    backlog_.pump();
  }
  [[nodiscard]] ComponentCounts pages(std::uint32_t count) const { return {count, 0, 0}; }
  [[nodiscard]] std::uint32_t free_pages() const {
    return static_cast<std::uint32_t>(host_->free_blocks() / host_->blocks_per_slot(ComponentKind::kFull));
  }
  // A path of its own of `count` pages, with a state at its end.
  NodeId add(TokenId name, std::uint32_t count, bool has_state = false) {
    std::array<std::vector<HostSlot>, kComponentCount> slots;
    EXPECT_EQ(room_.take({count, 0, has_state ? 1u : 0u}, HostEffort::kAll, slots), HostAnswer::kThere);
    const std::vector<TokenId> tokens(std::size_t{count} * model_.page_size, name);
    const HostSlot state = has_state ? slots[index_of(ComponentKind::kMamba)].front() : HostSlot{};
    return tree_.insert_host({.space = space_, .tokens = tokens, .full = slots[0], .state = state})->node;
  }
  // Of one page each, until less than a page is free.
  std::vector<NodeId> fill() {
    std::vector<NodeId> nodes;
    for (TokenId name = 0; free_pages() > 0; ++name) nodes.push_back(add(name, 1));
    return nodes;
  }

  PatientBackend backend_;
};

TEST_F(HostRoomTest, WhatFitsEvictsNothing) {
  const NodeId kept = add(1, 2);
  EXPECT_EQ(room_.make(pages(free_pages()), HostEffort::kAll), HostAnswer::kThere);
  EXPECT_TRUE(tree_.exists(kept));
}

TEST_F(HostRoomTest, TheOldestGoesFirstWhateverItsComponent) {
  const NodeId state = add(900, 1, true), page = add(901, 1);
  const std::vector<NodeId> others = fill();
  ASSERT_EQ(room_.make(pages(free_pages() + 1), HostEffort::kAll), HostAnswer::kThere);
  EXPECT_TRUE(!tree_.exists(state) || tree_.view(state).host[index_of(ComponentKind::kMamba)].empty());
  EXPECT_TRUE(tree_.exists(others.back()));
  while (tree_.exists(page)) {
    ASSERT_EQ(room_.make(pages(free_pages() + 1), HostEffort::kAll), HostAnswer::kThere);
    ASSERT_TRUE(tree_.exists(others.back()));
  }
  EXPECT_FALSE(tree_.exists(state)) << "it is older";
}

TEST_F(HostRoomTest, NothingGoesIfEverythingWouldNotDo) {
  const std::vector<NodeId> nodes = fill();
  LockHandle lock = tree_.lock(nodes[3], Tier::kHost, LockParts{});
  const std::uint64_t before = tree_.node_count();
  EXPECT_EQ(room_.make(pages(static_cast<std::uint32_t>(nodes.size())), HostEffort::kAll), HostAnswer::kNone);
  EXPECT_EQ(tree_.node_count(), before);
  EXPECT_EQ(room_.make(pages(static_cast<std::uint32_t>(nodes.size() - 1)), HostEffort::kAll), HostAnswer::kThere);
  EXPECT_TRUE(tree_.exists(nodes[3]));
  tree_.unlock(lock);
}

TEST_F(HostRoomTest, ReachIsWhatIsFreeAndWhatMayGo) {
  const std::vector<NodeId> nodes = fill();
  EXPECT_EQ(room_.in_reach(), host_->total());
  LockHandle lock = tree_.lock(nodes[0], Tier::kHost, LockParts{});
  EXPECT_EQ(room_.in_reach() + host_->space_of(pages(1)), host_->total());
  tree_.unlock(lock);
}

// A lease that nothing locks (of a write that was let go, StoreBacklog::unlock_abandoned()): evicting it frees nothing.
TEST_F(HostRoomTest, WhatIsLeasedAndNotLockedIsNotDroppedForNothing) {
  const std::vector<NodeId> nodes = fill();
  std::vector<LeasedSlot> leases;
  for (const NodeId node : nodes) {
    const HostSlot slot = tree_.view(node).host[0].front();
    ASSERT_TRUE(host_->add_lease(ComponentKind::kFull, slot).is_ok());
    leases.push_back({ComponentKind::kFull, slot.v, host_->generation(ComponentKind::kFull, slot)});
  }
  EXPECT_EQ(room_.make(pages(free_pages() + 1), HostEffort::kAll), HostAnswer::kNone);
  EXPECT_GE(tree_.node_count() + 1, nodes.size());
  room_.drop_leases(leases);
  EXPECT_EQ(room_.make(pages(free_pages() + 1), HostEffort::kAll), HostAnswer::kThere);
}

TEST_F(HostRoomTest, GentlyItWaitsForStorageThatTakesPagesAndNotForOneThatHangs) {
  config_.store_batch_nodes = 1;
  const std::vector<NodeId> nodes = fill();
  EXPECT_EQ(room_.make(pages(free_pages() + 1), HostEffort::kGently), HostAnswer::kThere) << "nobody would take it";
  backlog_.attach_storage(backend_);
  poll();
  ASSERT_EQ(backend_.writes.size(), 16u);
  const ComponentCounts wanted = pages(free_pages() + 1);
  EXPECT_EQ(room_.make(wanted, HostEffort::kGently), HostAnswer::kWaitsForStores);
  EXPECT_EQ(counters_.store_waits, 0u);
  poll();
  EXPECT_EQ(counters_.store_waits, 1u);
  poll();
  EXPECT_EQ(counters_.store_waits, 1u) << "nobody was refused since";
  int refused = 0;
  for (; room_.make(wanted, HostEffort::kGently) == HostAnswer::kWaitsForStores && refused < 1000; ++refused) poll();
  EXPECT_LT(refused, 100) << "it hangs";
  EXPECT_EQ(room_.make(wanted, HostEffort::kGently), HostAnswer::kThere);
}

TEST_F(HostRoomTest, NotGentlyWhatStorageLacksGoes) {
  config_.store_batch_nodes = 1;
  (void)fill();
  backlog_.attach_storage(backend_);
  poll();
  EXPECT_EQ(room_.make(pages(free_pages() + 1), HostEffort::kAll), HostAnswer::kThere);
  poll();
  EXPECT_EQ(counters_.store_waits, 0u);
}

// Pages without bytes.
class MarkerRoomTest : public HostRoomTest {
 protected:
  MarkerRoomTest() : HostRoomTest(test::recurrent_model()) {}
  static constexpr std::uint32_t kPath = 1024;  // pages
  // Paths until no markers are left, some of them with a state.
  void fill_markers() {
    for (TokenId name = 0; host_->available().markers > 0; ++name) (void)add(name, kPath, name % 16 == 0);
  }
  // Of a path.
  [[nodiscard]] std::uint64_t pages_left(TokenId name) {
    return tree_.match(space_, std::vector<TokenId>(kPath * model_.page_size, name)).full_any_pages;
  }
};

TEST_F(MarkerRoomTest, TheOldestPagesGoForPagesAndAStateForAState) {
  fill_markers();
  ASSERT_EQ(host_->total().markers, 64 * kPath);
  EXPECT_EQ(room_.in_reach(), host_->total());
  EXPECT_EQ(room_.make(pages(kPath - 1), HostEffort::kAll), HostAnswer::kThere);
  EXPECT_EQ(pages_left(0), 1u);
  EXPECT_EQ(room_.make(pages(kPath + 1), HostEffort::kAll), HostAnswer::kThere);
  EXPECT_EQ(host_->available().markers, kPath + 1) << "no more than was needed";
  const auto states = static_cast<std::uint32_t>(host_->total_blocks() / host_->blocks_per_slot(ComponentKind::kMamba));
  ASSERT_EQ(room_.make({1, 0, states}, HostEffort::kAll), HostAnswer::kThere);
  EXPECT_EQ(host_->free_blocks(), host_->total_blocks());
  EXPECT_EQ(pages_left(16), 0u) << "its state has gone, and it was a leaf";
  EXPECT_EQ(pages_left(17), kPath);
}

TEST_F(MarkerRoomTest, GentlyItWaitsForTheStorageThatReadsThem) {
  config_.store_batch_nodes = 1;
  fill_markers();
  backlog_.attach_storage(backend_);
  for (int i = 0; i < 100; ++i) poll();
  ASSERT_GT(backlog_.kept().markers, 0u);
  EXPECT_LE(backlog_.kept().markers, host_->total().markers * 60 / 100);
  EXPECT_EQ(room_.make(pages(1), HostEffort::kGently), HostAnswer::kWaitsForStores);
  EXPECT_EQ(room_.make(pages(1), HostEffort::kAll), HostAnswer::kThere);
}

TEST_F(HostRoomTest, WhatTheTreeLetsGoIsEvictedAndWhatIsGivenBackIsNot) {
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  ASSERT_EQ(room_.take(pages(2), HostEffort::kAll, slots), HostAnswer::kThere);
  room_.give_back(ComponentKind::kFull, std::span<const HostSlot>(slots[0]).first(1));
  EXPECT_EQ(counters_.host_evicted, 0u);
  room_.let_go(ComponentKind::kFull, std::span<const HostSlot>(slots[0]).last(1));
  EXPECT_EQ(counters_.host_evicted, 1u);
  EXPECT_EQ(host_->counts(ComponentKind::kFull).live, 0u);
  room_.give_back(ComponentKind::kFull, std::span<const HostSlot>(slots[0]).first(1));
  EXPECT_EQ(counters_.internal_errors, 1u) << "given back twice";
  counters_.internal_errors = 0;
}

}  // namespace
}  // namespace larder
