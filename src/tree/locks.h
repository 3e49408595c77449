// SPDX-License-Identifier: Apache-2.0
// Locks of requests.
//
// A lock is a claim on *pages*: it counts on nodes whether or not they hold data now. What is absent is simply not
// protected, and what arrives later comes under the claim; so unlock needs no list of what lock skipped. A claimed node
// is never removed, which keeps the handle's NodeId good.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>

#include "tree/structure.h"
#include "tree/tree_state.h"
#include "tree/victims.h"

namespace larder::tree {

class Locks : private TreeRoom {
 public:
  Locks(TreeState& state, Victims& victims, Structure& structure)
      : TreeRoom(state), victims_(victims), structure_(structure) {}

  // As RadixTree has them.
  [[nodiscard]] LockHandle lock(Id id, Tier t, LockParts parts);
  void unlock(LockHandle& handle);
  // To a node at or beneath its own; of the device, with full. O(nodes between them and of both windows).
  void move_lock(LockHandle& handle, Id to);

 private:
  // Locks swa of pages [from, end of the node), with a split where they begin.
  void lock_window(Id id, Tier t, std::uint64_t from);
  void add_lock(Id id, ComponentKind c, Tier t);
  void drop_lock(Id id, ComponentKind c, Tier t);

  Victims& victims_;
  Structure& structure_;
};

}  // namespace larder::tree
