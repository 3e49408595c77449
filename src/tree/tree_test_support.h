// SPDX-License-Identifier: Apache-2.0
// Helpers of the tree's tests: a ledger of slots behind the sink, and short ways to say "insert these tokens".
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tree/tree.h"
#include "tree/tree_backlog.h"

namespace larder::tree_test {

using Tokens = std::vector<TokenId>;

inline Tokens iota_tokens(std::size_t count, TokenId first = 1) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Gives out slots and takes them back; each slot is out exactly once.
class Ledger final : public SlotSink {
 public:
  void free_device(ComponentKind c, std::span<const DeviceSlot> slots) override {
    for (const DeviceSlot slot : slots) take_back(c, Tier::kDevice, slot.v);
  }
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override {
    for (const HostSlot slot : slots) take_back(c, Tier::kHost, slot.v);
  }

  DeviceSlot device(ComponentKind c) { return DeviceSlot(give(c, Tier::kDevice)); }
  HostSlot host(ComponentKind c) { return HostSlot(give(c, Tier::kHost)); }
  std::vector<DeviceSlot> device(ComponentKind c, std::size_t count) {
    std::vector<DeviceSlot> slots;
    while (slots.size() < count) slots.push_back(device(c));
    return slots;
  }
  std::vector<HostSlot> host(ComponentKind c, std::size_t count) {
    std::vector<HostSlot> slots;
    while (slots.size() < count) slots.push_back(host(c));
    return slots;
  }

  [[nodiscard]] const std::set<std::uint32_t>& out(ComponentKind c, Tier t) const { return side(c, t).out; }
  [[nodiscard]] bool is_out(ComponentKind c, Tier t, std::uint32_t slot) const { return out(c, t).contains(slot); }
  // Slots that came back although they were not out.
  [[nodiscard]] std::uint64_t wrong_frees() const { return wrong_frees_; }
  // Slots in the order they came back, since the last call.
  std::vector<std::uint32_t> came_back(ComponentKind c, Tier t) { return std::exchange(side(c, t).returned, {}); }

 private:
  struct Side {
    std::uint32_t next = 0;
    std::set<std::uint32_t> out;
    std::vector<std::uint32_t> returned;
  };
  Side& side(ComponentKind c, Tier t) { return sides_[index_of(c)][static_cast<std::size_t>(t)]; }
  [[nodiscard]] const Side& side(ComponentKind c, Tier t) const {
    return sides_[index_of(c)][static_cast<std::size_t>(t)];
  }
  std::uint32_t give(ComponentKind c, Tier t) {
    Side& s = side(c, t);
    s.out.insert(s.next);
    return s.next++;
  }
  void take_back(ComponentKind c, Tier t, std::uint32_t slot) {
    Side& s = side(c, t);
    if (s.out.erase(slot) == 0) ++wrong_frees_;
    s.returned.push_back(slot);
  }

  std::array<std::array<Side, kTierCount>, kComponentCount> sides_;
  std::uint64_t wrong_frees_ = 0;
};

inline constexpr ComponentKind kFull = ComponentKind::kFull, kSwa = ComponentKind::kSwa, kMamba = ComponentKind::kMamba;
inline constexpr Tier kDev = Tier::kDevice, kHst = Tier::kHost;

inline TreeConfig config_of(std::uint32_t page_size, std::uint32_t window_tokens = 0, bool has_mamba = false,
                            EvictionPolicy policy = EvictionPolicy::kLru) {
  TreeConfig config;
  config.page_size = page_size;
  config.window_tokens = window_tokens;
  config.has_mamba = has_mamba;
  config.policy = policy;
  return config;
}

// Pages that somebody computed who holds no lock now.
struct InsertRequest {
  NamespaceId space;
  std::span<const TokenId> tokens{};
  std::uint64_t owned_from = 0;        // pages before it were the tree's when they were computed
  std::span<const DeviceSlot> full{};  // one per page; entries >= owned_from are given to the tree
  std::span<const DeviceSlot> swa{};   // one per page or empty; entries >= owned_from are given; invalid: out of window
  std::span<const Checkpoint> checkpoints{};
  std::int32_t priority = 0;
};

// extend() under a lock that is taken for it and let go. Each node of the path is locked meanwhile, so none are joined:
// NodeIds of earlier insertions stay, and tests say themselves where edges end.
inline Result<InsertResult> insert_pages(RadixTree& tree, std::uint32_t page_size, const InsertRequest& request) {
  const std::uint64_t from = request.owned_from;
  if (request.tokens.size() < from * page_size || request.full.size() < from) {
    return invalid_argument("owned_from is beyond the tokens");
  }
  const TreePosition walked = tree.match(request.space, request.tokens).walked;
  if (walked.pages < from) return internal_error("the tree does not have the pages before owned_from");
  constexpr LockParts kPath{.full = true, .swa = false, .mamba = false};
  std::vector<LockHandle> locks;
  for (NodeId at = walked.node; tree.view(at).end > 0; at = tree.view(at).parent) {
    if (tree.view(at).end <= walked.pages) locks.push_back(tree.lock(at, Tier::kDevice, kPath));
  }
  locks.push_back(tree.lock(tree.settle({walked.node, from}), Tier::kDevice, kPath));
  Result<InsertResult> result = tree.extend(
      locks.back(), {from, request.tokens.subspan(from * page_size), request.full.subspan(from),
                     request.swa.empty() ? request.swa : request.swa.subspan(std::min(from, request.swa.size())),
                     request.checkpoints, request.priority});
  for (LockHandle& lock : locks) tree.unlock(lock);
  return result;
}

// A tree with a ledger and one namespace. Destructor: no slot was freed that was not out.
class Fixture {
 public:
  explicit Fixture(const TreeConfig& given) : config(given), tree(given, ledger) {
    space = tree.spaces().open({}, {}, PathHash());
  }
  ~Fixture() { EXPECT_EQ(ledger.wrong_frees(), 0u); }

  struct InsertOptions {
    std::uint64_t owned_from = 0;
    bool swa = true;  // every page's window slot; else from `swa_from` on
    std::uint64_t swa_from = 0;
    std::vector<std::uint64_t> checkpoints{};  // pages
    CheckpointKind kind = CheckpointKind::kOutput;
    std::int32_t priority = 0;
  };
  InsertResult insert(const Tokens& tokens) { return insert(tokens, InsertOptions{}); }
  InsertResult insert(const Tokens& tokens, const InsertOptions& options) {
    const std::size_t pages = tokens.size() / config.page_size;
    std::vector<DeviceSlot> full(pages), swa;
    for (std::size_t i = options.owned_from; i < pages; ++i) full[i] = ledger.device(kFull);
    if (config.window_tokens != 0 && options.swa) {
      swa.resize(pages);
      for (std::size_t i = std::max(options.owned_from, options.swa_from); i < pages; ++i) swa[i] = ledger.device(kSwa);
    }
    std::vector<Checkpoint> checkpoints;
    for (const std::uint64_t page : options.checkpoints) {
      checkpoints.push_back({page, ledger.device(kMamba), {.kind = options.kind}});
    }
    auto result = insert_pages({space, tokens, options.owned_from, full, swa, checkpoints, options.priority});
    EXPECT_TRUE(result.is_ok()) << result.status().to_string();
    check();
    return result.is_ok() ? result.value() : InsertResult{};
  }
  Result<InsertResult> insert_pages(const InsertRequest& request) {
    return tree_test::insert_pages(tree, config.page_size, request);
  }
  // Adopts all pages of `tokens` from `from`, the window and the state at its end.
  InsertResult adopt(const Tokens& tokens, std::uint64_t from, std::size_t window = 0, bool state = false) {
    const std::size_t pages = tokens.size() / config.page_size;
    const auto full = ledger.host(kFull, pages - from);
    const auto swa = ledger.host(kSwa, window);
    const HostSlot checkpoint = state ? ledger.host(kMamba) : HostSlot();
    auto result = tree.insert_host({space, tokens, from, full, swa, checkpoint});
    EXPECT_TRUE(result.is_ok()) << result.status().to_string();
    check();
    return result.is_ok() ? result.value() : InsertResult{};
  }
  // Starts a backup of everything that a node has on the device.
  Status start_backup(OpId op, NodeId node) {
    const NodeView view = tree.view(node);
    for (const ComponentKind c : kAllComponents) {
      const std::size_t count = view.device[index_of(c)].size();
      if (count == 0 || !view.host[index_of(c)].empty()) continue;
      const auto slots = ledger.host(c, count);
      const Status status = tree.attach_host(op, node, c, slots);
      if (!status.is_ok()) {
        ledger.free_host(c, slots);
        return status;
      }
    }
    return Status::ok();
  }
  void back_up(NodeId node) {
    const OpId op(next_op++);
    const Status status = start_backup(op, node);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    (void)tree.finish_op(op, true);
    check();
  }
  MatchResult match(const Tokens& tokens) const { return tree.match(space, tokens); }
  std::uint64_t device_pages(const Tokens& tokens) const { return match(tokens).device.at.pages; }
  std::uint64_t any_pages(const Tokens& tokens) const { return match(tokens).any.at.pages; }
  LockHandle lock(NodeId node, Tier t = Tier::kDevice, LockParts parts = {}) { return tree.lock(node, t, parts); }
  const TierCounts& counts(ComponentKind c, Tier t) const { return tree.counts(c, t); }
  NodeId host_victim(ComponentKind c) {
    const auto victim = tree.next_host_victim(c);
    return victim ? victim->node : NodeId{};
  }

  void check() const {
    const Status status = tree.check_invariants();
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_EQ(ledger.wrong_frees(), 0u);
    for (const ComponentKind c : kAllComponents) {
      for (const Tier t : {Tier::kDevice, Tier::kHost}) {
        // Every slot that is out is the tree's (tests that hold slots themselves do not call this).
        ASSERT_EQ(ledger.out(c, t).size(), tree.counts(c, t).resident + tree.counts(c, t).pending);
      }
    }
  }

  TreeConfig config;
  Ledger ledger;
  RadixTree tree;
  NamespaceId space;
  std::uint64_t next_op = 1000;
};

}  // namespace larder::tree_test
