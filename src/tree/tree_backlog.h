// SPDX-License-Identifier: Apache-2.0
// Which nodes of a RadixTree the host has and storage lacks, parents before children: RadixTree::backlog().
//
// Picture: what becomes of a node that came to the host. Storage that is attached anew, or was cleared, is a new epoch,
// under which all of them wait again.
//
//              begin_storing()                  set_stored()    storage has it    ─┐ out of the backlog, until
//              set_lost(),
//   waits ─────────────────────► being given ─┬─ set_declined()  it is not wanted ─┘ or a component comes that is new
//     ▲ ▲                                     │
//     │ └───────── end_storing(rests: no) ────┤
//     └─ wake_resting() ── rests ◄── end_storing(rests: yes)
//
// set_stored() and set_declined() may come at any time; end_storing() ends what begin_storing() began, after them too.
// The tree tells of what comes, goes, splits and merges; so a node is in the right list at any time (I10 of tree.h).
//
// Ownership: part of its tree, which it must not outlive. Threads: the cache thread. Errors: none; a node that is gone
// is passed over. Cost: O(1) per mark as a rule; O(depth in nodes) where a node with children comes (back) to a list;
// the lists go through the nodes themselves. Limits: none of its own; at most every node is in a list once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/pool_spec.h"

namespace larder {

namespace tree {
enum class Backlog : std::uint8_t;
class Eviction;
class NodePool;
class Residency;
class Structure;
class TreeCheck;
struct Node;
struct Space;
struct TreeState;
}  // namespace tree

class TreeBacklog {
 public:
  TreeBacklog(const TreeBacklog&) = delete;
  TreeBacklog& operator=(const TreeBacklog&) = delete;

  // From here on unstored(epoch) is answered from a list, which is kept right. O(tree), once for each epoch; at first
  // it is epoch 0.
  void track(std::uint32_t epoch);
  // Nodes published on the host, neither stored nor declined under `epoch`, parents before children, at most `limit`;
  // none of a retired namespace; under the epoch that is tracked, without those that are being given or rest. O(limit)
  // under the epoch that is tracked, or else O(tree). after: begins behind that node, if it is one of them.
  [[nodiscard]] std::vector<NodeId> unstored(std::uint32_t epoch, std::size_t limit, NodeId after = {}) const;

  // Storage has everything that the node has on the host now. Forgotten when a component is published there that was
  // not there at the time, or was lost since; not when a copy comes back.
  void set_stored(NodeId node, std::uint32_t epoch);
  // Storage was asked to take it and does not want it: unstored() passes it over, until a component comes to the host
  // that storage was not asked about.
  void set_declined(NodeId node, std::uint32_t epoch);

  // Storage said that it does not have these components of the node, in part at least: what it had is forgotten. Not
  // of what it declined.
  void set_lost(NodeId node, std::uint32_t epoch, const std::array<bool, kComponentCount>& components);

  // Storage is being given the node: unstored() passes it over until end_storing(). A split makes both halves alike.
  void begin_storing(NodeId node);
  // rests: storage could not take it. If it lacks it still, unstored() passes it over until wake_resting().
  void end_storing(NodeId node, bool rests);
  // O(nodes that rest).
  void wake_resting();
  // How many wait to be given.
  [[nodiscard]] std::size_t waiting() const { return waiting_.size; }

  // Of which components storage gets what it lacks, soon, once the host has it: so what leaves the device is copied
  // first (VictimRule). None, as at first: storage takes nothing, or is far behind.
  void set_wanted(const std::array<bool, kComponentCount>& components);

 private:
  friend struct tree::TreeState;  // the tree's rooms, which tell of changes
  friend class tree::Residency;
  friend class tree::Structure;
  friend class tree::Eviction;
  friend class tree::TreeCheck;
  using Id = std::uint32_t;
  struct List {  // doubly linked through the nodes, so that who asks for some does not walk past those that are stored
    Id first = 0, last = 0;
    std::size_t size = 0;
  };

  TreeBacklog(tree::NodePool& nodes, const std::vector<tree::Space>& spaces) : nodes_(nodes), spaces_(spaces) {}

  // ---- what the tree asks
  // Has the storage that is tracked neither taken nor declined one of the components (bits of the host) that it wants?
  // Also of what the host does not have.
  [[nodiscard]] bool lacks(const tree::Node& node, std::uint8_t host_bits) const;

  // ---- what the tree tells
  // Data was published in it: `bits`, of any tier.
  void came(Id id, std::uint8_t bits);
  // Data of it left.
  void went(Id id) { refresh(id); }
  // The head is new, above the tail; it has what the tail has but the state.
  void split(Id head, Id tail);
  // Is all that this class knows of the two the same, but for the state of the lower one?
  [[nodiscard]] static bool are_alike(const tree::Node& upper, const tree::Node& lower);
  // It is about to go: the lower node, which is in the same list, stands for it.
  void merge(Id upper);
  // I10. O(tree).
  [[nodiscard]] Status check() const;

  // ---- inside
  void mark(NodeId node, std::uint32_t epoch, bool declined);
  void refresh(Id id);  // membership in the lists
  [[nodiscard]] tree::Backlog belongs(const tree::Node& node) const;
  [[nodiscard]] List& list(tree::Backlog which);
  void place(tree::Backlog which, Id id);
  void insert_between(tree::Backlog which, Id before, Id id, Id after);
  void remove(Id id);
  [[nodiscard]] Status check(const List& list, tree::Backlog which, std::uint64_t& count) const;

  tree::NodePool& nodes_;
  const std::vector<tree::Space>& spaces_;
  List waiting_, resting_;
  std::uint32_t epoch_ = 0;  // of both
  std::uint8_t wanted_ = 0;  // bits of the host
};

}  // namespace larder
