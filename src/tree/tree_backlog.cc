// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_backlog.h"

#include <string>
#include <unordered_map>

#include "tree/node.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

namespace {

constexpr Bits kHostBits = kFullHost | kSwaHost | kMambaHost;

// Does storage lack what the node has on the host?
bool is_unstored(const Node& n, std::uint32_t epoch) { return n.has(kFullHost) && n.stored_epoch != epoch; }

Status broken_backlog(Id id, const std::string& what) {
  return internal_error("I10, node " + std::to_string(id) + ": " + what);
}

}  // namespace

void TreeBacklog::track(std::uint32_t epoch) {
  if (epoch == epoch_) return;
  for (List* list : {&waiting_, &resting_}) {
    while (list->size > 0) remove(list->first);
  }
  epoch_ = epoch;
  for (const Space& space : spaces_) {
    for (Id id = space.root; id != kNoNode; id = next_in_space(nodes_, id)) {
      nodes_.at(id).rests = false;
      if (belongs(nodes_.at(id)) == Backlog::kWaiting) insert_between(Backlog::kWaiting, waiting_.last, id, kNoNode);
    }
  }
}

std::vector<NodeId> TreeBacklog::unstored(std::uint32_t epoch, std::size_t limit, NodeId after) const {
  std::vector<NodeId> found;
  if (epoch == epoch_) {
    const bool is_inside = nodes_.exists(after.v) && nodes_.at(after.v).backlog == Backlog::kWaiting;
    Id id = is_inside ? nodes_.at(after.v).unstored_after : waiting_.first;
    for (; id != kNoNode && found.size() < limit; id = nodes_.at(id).unstored_after) found.emplace_back(id);
    return found;
  }
  for (const Space& space : spaces_) {
    if (space.is_retired) continue;
    for (Id id = space.root; id != kNoNode && found.size() < limit; id = next_in_space(nodes_, id)) {
      if (is_unstored(nodes_.at(id), epoch)) found.emplace_back(id);
    }
  }
  return found;
}

void TreeBacklog::set_stored(NodeId node, std::uint32_t epoch) { mark(node, epoch, false); }
void TreeBacklog::set_declined(NodeId node, std::uint32_t epoch) { mark(node, epoch, true); }

void TreeBacklog::mark(NodeId node, std::uint32_t epoch, bool declined) {
  if (!nodes_.exists(node.v)) return;
  Node& n = nodes_.at(node.v);
  if (n.stored_epoch != epoch || n.declined != declined) n.stored = 0;
  n.stored_epoch = epoch;
  n.declined = declined;
  n.stored = static_cast<Bits>(n.stored | (n.published() & kHostBits));
  refresh(node.v);
}

void TreeBacklog::set_lost(NodeId node, std::uint32_t epoch, const std::array<bool, kComponentCount>& components) {
  if (!nodes_.exists(node.v)) return;
  Node& n = nodes_.at(node.v);
  if (n.stored_epoch != epoch || n.declined) return;
  Bits lost = 0;
  for (const ComponentKind c : kAllComponents) {
    if (components[larder::index_of(c)]) lost = static_cast<Bits>(lost | (n.stored & bit_of(c, Tier::kHost)));
  }
  n.stored = clear_bits(n.stored, lost);
  if ((n.published() & lost) != 0) n.stored_epoch = 0;
  refresh(node.v);
}

void TreeBacklog::begin_storing(NodeId node) {
  if (!nodes_.exists(node.v)) return;
  nodes_.at(node.v).is_storing = true;
  refresh(node.v);
}

void TreeBacklog::end_storing(NodeId node, bool rests) {
  if (!nodes_.exists(node.v)) return;
  Node& n = nodes_.at(node.v);
  n.is_storing = false;
  n.rests = rests && is_unstored(n, epoch_);
  refresh(node.v);
}

void TreeBacklog::wake_resting() {
  while (resting_.size > 0) {
    const Id id = resting_.first;
    nodes_.at(id).rests = false;
    refresh(id);
  }
}

void TreeBacklog::set_wanted(const std::array<bool, kComponentCount>& components) {
  wanted_ = 0;
  for (const ComponentKind c : kAllComponents) {
    if (components[larder::index_of(c)]) wanted_ = static_cast<Bits>(wanted_ | bit_of(c, Tier::kHost));
  }
}

bool TreeBacklog::lacks(const Node& n, Bits host_bits) const {
  const auto asked = static_cast<Bits>(host_bits & wanted_);
  return asked != 0 && (n.stored_epoch != epoch_ || clear_bits(asked, n.stored) != 0);
}

// ---- what the tree tells

// Storage has the node only if it has every component that is on the host. A copy that comes back is the same bytes.
void TreeBacklog::came(Id id, std::uint8_t bits) {
  Node& n = nodes_.at(id);
  if ((bits & kHostBits) != 0 && (n.stored & bits) == 0) {
    n.stored_epoch = 0;
    n.declined = false;
  }
  refresh(id);
}

void TreeBacklog::split(Id head_id, Id tail_id) {
  const Node& tail = nodes_.at(tail_id);
  Node& head = nodes_.at(head_id);
  head.stored_epoch = tail.stored_epoch;
  head.declined = tail.declined;
  head.stored = clear_bits(tail.stored, kMambaBits);
  head.is_storing = tail.is_storing;
  head.rests = tail.rests;
  if (tail.backlog != Backlog::kOut) insert_between(tail.backlog, tail.unstored_before, head_id, tail_id);
}

bool TreeBacklog::are_alike(const Node& upper, const Node& lower) {
  return upper.stored_epoch == lower.stored_epoch && upper.declined == lower.declined &&
         upper.backlog == lower.backlog && upper.is_storing == lower.is_storing && upper.rests == lower.rests &&
         upper.stored == clear_bits(lower.stored, kMambaBits);
}

void TreeBacklog::merge(Id upper) {
  if (nodes_.at(upper).backlog != Backlog::kOut) remove(upper);
}

// ---- the lists

Backlog TreeBacklog::belongs(const Node& n) const {
  if (!is_unstored(n, epoch_) || n.is_storing || spaces_[n.space].is_retired) return Backlog::kOut;
  return n.rests ? Backlog::kResting : Backlog::kWaiting;
}

TreeBacklog::List& TreeBacklog::list(Backlog which) { return which == Backlog::kWaiting ? waiting_ : resting_; }

void TreeBacklog::refresh(Id id) {
  Node& n = nodes_.at(id);
  if (!is_unstored(n, epoch_)) n.rests = false;  // what comes to the host anew waits like all the others
  const Backlog now = belongs(n);
  if (now == n.backlog) return;
  if (n.backlog != Backlog::kOut) remove(id);
  if (now != Backlog::kOut) place(now, id);
}

// What stands right after its nearest ancestor of the list is after all the others, too, and before its descendants:
// they are that ancestor's.
void TreeBacklog::place(Backlog which, Id id) {
  const List& own = list(which);
  if (nodes_.at(id).first_child == kNoNode) {
    insert_between(which, own.last, id, kNoNode);
    return;
  }
  Id above = nodes_.at(id).parent;
  while (above != kNoNode && nodes_.at(above).backlog != which) above = nodes_.at(above).parent;
  insert_between(which, above, id, above == kNoNode ? own.first : nodes_.at(above).unstored_after);
}

void TreeBacklog::insert_between(Backlog which, Id before, Id id, Id after) {
  Node& n = nodes_.at(id);
  List& own = list(which);
  n.unstored_before = before;
  n.unstored_after = after;
  n.backlog = which;
  (before == kNoNode ? own.first : nodes_.at(before).unstored_after) = id;
  (after == kNoNode ? own.last : nodes_.at(after).unstored_before) = id;
  ++own.size;
}

void TreeBacklog::remove(Id id) {
  Node& n = nodes_.at(id);
  List& own = list(n.backlog);
  (n.unstored_before == kNoNode ? own.first : nodes_.at(n.unstored_before).unstored_after) = n.unstored_after;
  (n.unstored_after == kNoNode ? own.last : nodes_.at(n.unstored_after).unstored_before) = n.unstored_before;
  n.unstored_before = n.unstored_after = kNoNode;
  n.backlog = Backlog::kOut;
  --own.size;
}

// ---- I10

// Ancestors that are not in the list need no place, so each node is compared with the nearest one that is.
Status TreeBacklog::check(const List& own, Backlog which, std::uint64_t& count) const {
  std::unordered_map<Id, std::uint64_t> places;
  for (Id id = own.first; id != kNoNode; id = nodes_.at(id).unstored_after) {
    const Node& n = nodes_.at(id);
    if (n.backlog != which || belongs(n) != which) return broken_backlog(id, "belongs elsewhere");
    if (!places.emplace(id, places.size()).second) return broken_backlog(id, "is there twice");
  }
  if (places.size() != own.size)
    return broken_backlog(0, "a list has " + std::to_string(own.size) + " by its own count");
  for (const auto& [id, place] : places) {
    Id above = nodes_.at(id).parent;
    while (above != kNoNode && nodes_.at(above).backlog != which) above = nodes_.at(above).parent;
    if (above != kNoNode && places.at(above) > place) return broken_backlog(id, "stands before its ancestor");
  }
  count += places.size();
  return Status::ok();
}

Status TreeBacklog::check() const {
  std::uint64_t have = 0, want = 0;
  LARDER_RETURN_IF_ERROR(check(waiting_, Backlog::kWaiting, have));
  LARDER_RETURN_IF_ERROR(check(resting_, Backlog::kResting, have));
  for (Id id = 0; id < nodes_.end_id(); ++id) {
    if (nodes_.exists(id) && !nodes_.at(id).is_root()) want += belongs(nodes_.at(id)) != Backlog::kOut;
  }
  if (have == want) return Status::ok();
  return broken_backlog(0, "the lists have " + std::to_string(have) + " instead of " + std::to_string(want));
}

}  // namespace larder
