// SPDX-License-Identifier: Apache-2.0
// Copies under way: what they attach is pending, and published or dropped when they end.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tree/residency.h"
#include "tree/structure.h"
#include "tree/tree_state.h"

namespace larder::tree {

class Operations : private TreeRoom {
 public:
  Operations(TreeState& state, Residency& residency, Structure& structure)
      : TreeRoom(state), residency_(residency), structure_(structure) {}

  // As RadixTree has them.
  [[nodiscard]] Status attach_device(OpId op, Id node, ComponentKind c, std::uint64_t from,
                                     std::span<const DeviceSlot> slots);
  [[nodiscard]] Status attach_host(OpId op, Id node, ComponentKind c, std::span<const HostSlot> slots);
  void cover(OpId op, Id node);
  [[nodiscard]] std::vector<NodeId> finish_op(OpId op, bool ok);

  enum class Readiness : std::uint8_t { kPublish, kWait, kDiscard };
  // May a completed copy be published, given what it stands on (its parent, or full of its own node)?
  [[nodiscard]] Readiness readiness(const Node& node, ComponentKind c, Tier t) const;

 private:
  [[nodiscard]] Status check_attach_device(Id node, ComponentKind c, std::uint64_t from, std::uint64_t to) const;
  void attach_pending(OpId op, Id node, ComponentKind c, Tier t, SlotRun run);
  void put_under(OpId op, Id node, Bits bits);
  void finish_data(Id id, ComponentKind c, Tier t, bool ok);
  void resolve_all(Tier t);
  void push_dependents(Id id, Tier t);

  Residency& residency_;
  Structure& structure_;
  std::vector<std::pair<Id, Bits>> to_resolve_;  // scratch of finish_data() and what it calls
};

}  // namespace larder::tree
