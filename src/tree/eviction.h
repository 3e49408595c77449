// SPDX-License-Identifier: Apache-2.0
// Data leaves a tier: the first of its queue first, page-exact, or all of it (flush).
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tree/residency.h"
#include "tree/structure.h"
#include "tree/tree_state.h"
#include "tree/victims.h"

namespace larder::tree {

class Eviction : private TreeRoom {
 public:
  Eviction(TreeState& state, Victims& victims, Residency& residency, Structure& structure)
      : TreeRoom(state), victims_(victims), residency_(residency), structure_(structure) {}

  // As RadixTree has them.
  [[nodiscard]] EvictResult evict_device(ComponentKind c, std::uint64_t slots, VictimRule rule, const EvictFor& who);
  [[nodiscard]] EvictResult evict_host(ComponentKind c, std::uint64_t slots, const EvictFor& who);
  std::uint64_t flush();
  std::uint64_t flush(Id root);
  // The one of the component that a full host would let go of first.
  [[nodiscard]] VictimQueues::First next_host_victim(ComponentKind c, const EvictFor& who);

 private:
  // One eviction: what is asked, and what it has come to.
  struct Job {
    ComponentKind component;
    Tier tier;
    std::uint64_t slots;
    VictimRule rule;
    EvictFor who;
    EvictResult out{};
    [[nodiscard]] std::uint64_t missing() const { return slots - std::min(slots, out.freed); }
  };
  void evict_device_leaves(Job& eviction);
  void name_victim(Id id, EvictResult& out);
  void name_device_leaves(Job& eviction);
  void evict_host_full(Job& eviction);
  void evict_aux(Job& eviction);
  // Of `most` slots those that may go before the standing of the victim's tenant changes.
  [[nodiscard]] std::uint64_t most_of(Id id, const Job& eviction, std::uint64_t most) const;
  static void count_freed(VictimQueues::Rank rank, std::uint64_t freed, EvictResult& out);
  // Slots of the component that went.
  std::uint64_t evict_aux_of(Id id, ComponentKind c, Tier t, std::uint64_t need, EvictResult& out);
  [[nodiscard]] VictimQueues::First next_device_leaf(const EvictFor& who);
  [[nodiscard]] bool is_judged(const VictimQueues::First& first, Tier t) const;
  [[nodiscard]] bool stays_for_backup(Id id, ComponentKind c, VictimRule rule);
  [[nodiscard]] bool is_next_to_leave_host(Id id, ComponentKind c);
  [[nodiscard]] bool is_worth_less_than(const Node& node, ComponentKind c, const VictimQueues::First& victim,
                                        ComponentKind victims) const;
  [[nodiscard]] Id cut_host_victim(const VictimQueues::First& first, std::uint64_t pages);
  void trim_leaf(Id id, std::uint64_t pages);
  [[nodiscard]] bool evict_device_leaf(Id id);
  void evict_from_host(Id id);
  [[nodiscard]] bool remove_host_descendants(Id id);
  void tombstone(Id id, ComponentKind c, Tier t);
  void flush_node(Id id);

  Victims& victims_;
  Residency& residency_;
  Structure& structure_;
};

}  // namespace larder::tree
