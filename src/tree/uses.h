// SPDX-License-Identifier: Apache-2.0
// A use of a path: what it makes younger, and what orders that learn are told.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <span>

#include "tree/path_keys.h"
#include "tree/structure.h"
#include "tree/tree_state.h"
#include "tree/victims.h"

namespace larder::tree {

class Uses : private TreeRoom {
 public:
  Uses(TreeState& state, PathKeys& keys, Victims& victims, Structure& structure)
      : TreeRoom(state), keys_(keys), victims_(victims), structure_(structure) {}

  // All of the path up to `at`; the rest of that edge, which was not used, stays as old as it is.
  void touch(const TreePosition& at, bool count_hit);
  // Parts of it: swa of the window that ends at the node (`exactly`: of no page before it, for which an edge may be
  // split), its state, full of the path.
  void touch_window(Id node, bool exactly);
  void touch_state(Id node);
  void touch_path(Id node, std::uint32_t hits);
  // touch_path() by whom computed what is new at its end: priorities rise, and edges that are alike become one.
  void touch_own_path(Id node, std::int32_t priority);
  // What RadixTree does under these names.
  void note_prompt(NamespaceId space, std::span<const TokenId> tokens);
  bool recall(const TreePosition& at, std::span<const TokenId> rest, std::span<const std::uint64_t> pages,
              std::span<CheckpointOrigin* const> origins);

 private:
  void count_use(Id node);
  [[nodiscard]] bool ends_turn_at(const TreePosition& at) const;  // a checkpoint there does

  PathKeys& keys_;
  Victims& victims_;
  Structure& structure_;
};

}  // namespace larder::tree
