// SPDX-License-Identifier: Apache-2.0
// check_invariants(): I1 to I12 of tree.h, by a walk over all nodes. For tests and the simulator.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include "tree/matcher.h"
#include "tree/operations.h"
#include "tree/tree_state.h"
#include "tree/victims.h"

namespace larder::tree {

class TreeCheck {
 public:
  TreeCheck(const TreeState& state, const Victims& victims, const Matcher& matcher, const Operations& operations)
      : state_(state), victims_(victims), matcher_(matcher), operations_(operations) {}

  [[nodiscard]] Status check_invariants() const;

 private:
  struct Census;
  [[nodiscard]] const Node& node(Id id) const { return state_.node(id); }
  [[nodiscard]] Status check_shape(Id id) const;
  [[nodiscard]] Status check_residency(Id id) const;
  [[nodiscard]] Status check_queues(Id id, Census& census) const;
  [[nodiscard]] Status count_node(Id id, Census& census) const;
  // I6: of an order that weighs, nothing that is worth nothing waits among what is worth something.
  [[nodiscard]] bool is_overrated(const VictimQueues& victims, Id id, ComponentKind c, Tier t) const;
  [[nodiscard]] Status check_lists(const Census& census) const;
  [[nodiscard]] Status check_tenants(const Census& census) const;
  [[nodiscard]] Status check_totals(const Census& census) const;

  const TreeState& state_;
  const Victims& victims_;
  const Matcher& matcher_;
  const Operations& operations_;
};

}  // namespace larder::tree
