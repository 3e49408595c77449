// SPDX-License-Identifier: Apache-2.0
// What the rooms of the radix tree share: the model, the nodes, and what is counted of them. Internal to src/tree;
// tree_impl.h names the rooms, tree.h is the contract.
//
// Threads: confined to the cache thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "tree/child_table.h"
#include "tree/node.h"
#include "tree/op_registry.h"
#include "tree/tenant_book.h"
#include "tree/tree.h"
#include "tree/tree_backlog.h"

namespace larder::tree {

using SlotRun = Run<std::uint32_t>;

struct TreeState {
  explicit TreeState(const TreeConfig& given);

  [[nodiscard]] Node& node(Id id) { return nodes.at(id); }
  [[nodiscard]] const Node& node(Id id) const { return nodes.at(id); }
  [[nodiscard]] Id root_of(NamespaceId space) const { return space.v < spaces.size() ? spaces[space.v].root : kNoNode; }
  [[nodiscard]] std::uint64_t open_spaces() const { return spaces.size() - closed_spaces.size(); }
  [[nodiscard]] std::uint64_t pages_in(std::span<const TokenId> tokens) const { return tokens.size() / page_size; }
  // First page whose window data is needed to resume at page `end`.
  [[nodiscard]] std::uint64_t window_begin(std::uint64_t end) const { return end - std::min(end, window_pages); }
  [[nodiscard]] std::uint64_t& claims_of(const Node& node) { return spaces[node.space].claims; }
  [[nodiscard]] TenantId tenant_of(const Node& node) const { return spaces[node.space].tenant; }
  [[nodiscard]] bool is_fresh() const { return chooses && duel.ahead() == ReuseWay::kMru; }  // what is used now
  // Ticks since its checkpoint was taken or used last; right also after the counter of `uses_at` has wrapped.
  [[nodiscard]] std::uint64_t since_use(const Node& node) const {
    const std::uint32_t units = static_cast<std::uint32_t>(tick / kTicksOfUse) - node.uses_at;
    return units * kTicksOfUse + tick % kTicksOfUse;
  }
  [[nodiscard]] float uses_now(const Node& node) const { return stats.faded(node.uses, since_use(node)); }
  // Counts data that came, went, or came into or out of use.
  void tally(const Node& node, ComponentKind c, Tier t, const TierCountsChange& by) {
    counts[index_of(c)][index_of(t)] += by;
    tenants.count(tenant_of(node), c, t, by);
  }
  // The ancestors of a node that share the array of run_of(node) with it move to a smaller one.
  template <class RunOf>
  void compact_ancestors(Id id, RunOf run_of, std::uint64_t items_per_page);

  // constant after construction
  TreeConfig config;                 // but allow_host_gaps, which may become true
  const std::uint32_t page_size;     // tokens
  const std::uint64_t window_pages;  // of swa; 0: the model has none
  const EvictionOrderPtr given_order;
  const EvictionOrder* const order;  // that, or what it names for models without recurrent state
  const bool weighs;                 // RadixTree::weighs()
  const Bits host_keeps;             // TreeConfig::host_keeps
  const bool chooses;                // the order does

  CheckpointStats stats;  // what the order has learnt
  ReuseDuel duel;         // the same, where it chooses
  NodePool nodes;
  ChildTable table;
  OpRegistry ops;
  std::array<std::array<TierCounts, kTierCount>, kComponentCount> counts{};
  std::vector<Space> spaces;
  TreeBacklog backlog;
  TenantBook tenants;
  std::vector<std::uint32_t> closed_spaces;  // numbers to use again, the last closed first
  std::unordered_map<PageKey, std::uint32_t> space_of_seed;
  std::optional<std::uint32_t> unseeded_space;
  std::uint64_t tick = 0;        // logical time; grows with every use, and by a token for each token that is computed
  std::uint64_t waiting = 0;     // (node, component, tier) that are complete but not published
  bool has_evicted = false;      // so one tier at least has been full
  std::uint64_t most_pages = 0;  // of full that a tier, or both where they are exclusive, has held

  std::vector<Id> path;  // scratch, so that hot paths do not allocate; used by one function at a time
};

// What is common to them.
class TreeRoom {
 protected:
  explicit TreeRoom(TreeState& state) : state_(state) {}
  ~TreeRoom() = default;
  [[nodiscard]] Node& node(Id id) { return state_.node(id); }
  [[nodiscard]] const Node& node(Id id) const { return state_.node(id); }

  TreeState& state_;
};

// An array shared by a chain of nodes is let go from the tail as a rule, so what remains of it are ancestors. Without
// this, a head of one page would keep the array of 131,072 pages. Copies less than a quarter of what was let go before,
// so the cost per page is constant.
template <class RunOf>
void TreeState::compact_ancestors(Id id, RunOf run_of, std::uint64_t items_per_page) {
  using Items = std::remove_reference_t<decltype(run_of(node(id)))>;
  const Items old = run_of(node(id)).share();
  std::uint64_t items = 0;
  path.clear();
  for (Id at = node(id).parent; !node(at).is_root() && run_of(node(at)).same_array(old); at = node(at).parent) {
    path.push_back(at);
    items += node(at).pages * items_per_page;
  }
  if (path.empty()) return;
  Items fresh = Items::with_room_for(items);
  std::uint64_t filled = 0;
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    Items& run = run_of(node(*at));
    const std::uint64_t count = node(*at).pages * items_per_page;
    std::copy_n(run.data(), count, fresh.mutable_data() + filled);
    run.remove_used(count);
    run = fresh.share(filled);
    run.add_used(count);
    filled += count;
  }
}

}  // namespace larder::tree
