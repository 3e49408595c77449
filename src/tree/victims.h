// SPDX-License-Identifier: Apache-2.0
// Who may leave each tier, and who leaves first: queues of leaves and of windows and states, which follow what the
// eviction order is told of a node.
//
// Whoever changes such a fact calls the refresh_*() that names it; first_victim() mends the rest when it is asked.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "policy/eviction_order.h"
#include "tree/tree_state.h"
#include "tree/victim_queues.h"

namespace larder::tree {

class Victims : private TreeRoom {
 public:
  explicit Victims(TreeState& state);

  // Where it stands among the victims of its tier.
  struct Place {
    std::uint8_t queue = 0;
    OrderKey key;
  };
  // May full of the node leave, as a leaf or because nothing there needs it?
  [[nodiscard]] bool is_device_leaf(const Node& node) const;
  [[nodiscard]] bool may_leave_host(const Node& node) const;
  [[nodiscard]] Facts facts(const Node& node, ComponentKind c, Tier t) const;
  [[nodiscard]] Facts plain_facts(const Node& node, ComponentKind c, Tier t) const;  // without weigh()
  [[nodiscard]] Place place_of(const Node& node, ComponentKind c, Tier t) const;
  void refresh_leaf(Id id);                           // membership in the leaf heaps
  void refresh_leaf_key(Id id);                       // place in them, after the facts changed
  void refresh_held(Id id, ComponentKind c, Tier t);  // after the first lock, or the last unlock
  void set_state_place(Id id, Tier t);                // place of its state, after it became a leaf
  void set_leaves_device(Id id, bool leaves);         // exclusive tiers: Node::leaves_device
  void refresh_spares(Id id);                         // after what it has on device or host has changed
  // Of what was last used then and stands in that queue.
  [[nodiscard]] double worth_of(std::uint8_t queue, std::uint64_t last_use, Tier t) const;
  // Who leaves first: whose facts have changed unseen is put in the right queue before.
  [[nodiscard]] VictimQueues::First first_victim(VictimQueues& victims, ComponentKind c, Tier t, const EvictFor& who);
  // May swa or mamba of the node be evicted now?
  [[nodiscard]] bool is_aux_victim(const Node& node, ComponentKind c, Tier t) const;
  void refresh_aux(Id id, ComponentKind c, Tier t);   // membership in its victim heap
  void refresh_aux(Id id);                            // of both components in both tiers
  void set_aux_tick(Id id, ComponentKind c, Tier t);  // used now
  [[nodiscard]] VictimQueues& aux_heap(ComponentKind c, Tier t) { return aux_heaps[aux_of(c)][index_of(t)]; }

  // Those that may leave; a node is in at most one of the first two. Others may take from them what is to stay for now,
  // and put it back by refresh_leaf() or refresh_aux().
  VictimQueues device_backed, device_unbacked;  // device leaves with and without a host copy
  VictimQueues host_full;                       // may_leave_host()
  std::array<std::array<VictimQueues, kTierCount>, kAuxCount> aux_heaps;

 private:
  [[nodiscard]] std::uint64_t last_use(const Node& node, ComponentKind c, Tier t) const;
  // Exclusive tiers: does the device have all that would leave the host with it?
  [[nodiscard]] bool is_spare(const Node& node, ComponentKind c, Tier t) const;
  // What facts() adds for orders that weigh.
  void weigh(const Node& node, Facts& facts) const;
  // The place among victims that its facts give it now.
  void push_victim(VictimQueues& victims, Id id, ComponentKind c, Tier t);
  void update_victim(VictimQueues& victims, Id id, ComponentKind c, Tier t);
  // The same of many queues, by ascending numbers, and the last uses of their firsts.
  void worths_of(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses, Tier t,
                 std::span<double> out) const;
  // Puts the queues of tenants where what they hold by now puts them.
  void settle_standings();

  std::uint32_t victims_asked_ = 0;
};

}  // namespace larder::tree
