// SPDX-License-Identifier: Apache-2.0
#include "controller/backups.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/probe.h"

namespace larder {

namespace {
// Of a node above one that is on the host.
bool is_host_gap(const NodeView& above) { return above.end > 0 && above.host[0].empty(); }
}  // namespace

Backups::Backups(const CacheConfig& config, const Parts& parts)
    : config_(config),
      host_(parts.host),
      tree_(parts.tree),
      ops_(parts.ops),
      host_room_(parts.host_room),
      copies_(parts.copies),
      counters_(parts.counters),
      all_(admit_all()),
      by_hits_(admit_from_hits(config.selective_hits)) {}

const Admission* Backups::admission() const {
  if (config_.write_policy == WritePolicy::kWriteBack) return nullptr;
  if (config_.admission) return config_.admission.get();
  return (config_.write_policy == WritePolicy::kWriteThroughSelective ? by_hits_ : all_).get();
}

bool Backups::keeps(ComponentKind c) const { return host_ != nullptr && keeps_on_host(config_, c); }

bool Backups::take_failure() { return std::exchange(has_failed_, false); }

ComponentCounts Backups::missing_on_host(const NodeView& view) const {
  ComponentCounts counts{};
  const std::size_t full = index_of(ComponentKind::kFull);
  const bool has_full = !view.host[full].empty() || (!view.device[full].empty() && !view.device_pending[full]);
  if (!has_full) return counts;  // nothing may be on the host without full
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    if (!keeps(c) || view.device[i].empty() || view.device_pending[i] || !view.host[i].empty()) continue;
    counts[i] = static_cast<std::uint32_t>(view.device[i].size());
  }
  return counts;
}

// Nodes of the path to `node` that lack a host copy, ending with `node` itself; appended parents first. Those that were
// appended for another one as well are found complete the second time.
void Backups::append_path(NodeId node, const Admission& admission, std::uint64_t from, std::vector<NodeId>& out) const {
  std::vector<NodeId> path;
  // Pages of a model with recurrent state that end in no checkpoint serve nobody on the host: write_through_selective
  // leaves them until one does.
  const bool has_states = keeps(ComponentKind::kMamba) && host_->model().has(ComponentKind::kMamba);
  bool may_serve = &admission != by_hits_.get() || !has_states;
  for (NodeId at = node;;) {
    const NodeView view = tree_.view(at);
    if (view.end == 0) break;
    const bool any = missing_on_host(view) != ComponentCounts{};
    // Everything above a node with a complete copy was looked at when that copy was made, but for the checkpoints that
    // came after `from` since; and but for a gap above what a prefetch has brought.
    if (!any && !view.host[0].empty() && view.begin <= from && !is_host_gap(tree_.view(view.parent))) break;
    const bool may_enter = !path.empty() || admission.may_enter(tree_.facts(at, ComponentKind::kFull, Tier::kDevice));
    may_serve = may_serve || (may_enter && !view.device[index_of(ComponentKind::kMamba)].empty());
    if (any && may_enter && may_serve) path.push_back(at);
    at = view.parent;
  }
  out.insert(out.end(), path.rbegin(), path.rend());
}

void Backups::by_policy(NodeId node, std::uint64_t from) {
  const Admission* const now = admission();
  if (host_ == nullptr || now == nullptr) return;
  std::vector<NodeId> nodes;
  append_path(node, *now, from, nodes);
  (void)begin(nodes, config_.exclusive_tiers ? HostEffort::kNoLoss : HostEffort::kGently);
}

Backups::Begun Backups::of_victims(const std::vector<NodeId>& victims, bool gently) {
  const HostEffort effort = gently ? HostEffort::kGently : HostEffort::kAll;
  if (config_.exclusive_tiers) return begin(victims, effort);
  std::vector<NodeId> nodes;
  for (const NodeId node : victims) append_path(node, *all_, tree_.view(node).end, nodes);
  return begin(nodes, effort);
}

Backups::Begun Backups::begin(const std::vector<NodeId>& nodes, HostEffort effort) {
  if (host_ == nullptr || nodes.empty() || !ops_.places().has_room(OpKind::kBackup)) return {};
  Op& op = ops_.add(OpKind::kBackup);
  TransferRequest copy;
  copy.direction = CopyDirection::kDeviceToHost;
  HostAnswer room = HostAnswer::kThere;
  for (const NodeId node : nodes) {
    room = attach(op, node, copy, effort);
    // The children of a node that found no room must not go before it; and victims for which others would have to go
    // again could wait for each other.
    if (room != HostAnswer::kThere) break;
  }
  const bool waits = room == HostAnswer::kWaitsForStores;
  if (waits) host_room_.note_copies_wait();
  if (std::all_of(copy.pairs.begin(), copy.pairs.end(), [](const auto& v) { return v.empty(); })) {
    (void)tree_.finish_op(op.id, false);
    ops_.erase(op.id);
    return {.copies = false, .waits_for_stores = waits};
  }
  copies_.submit(op, std::move(copy));
  return {.copies = true, .waits_for_stores = waits};
}

// Takes host slots for what the node lacks and lists the copies.
HostAnswer Backups::attach(const Op& op, NodeId node, TransferRequest& copy, HostEffort effort) {
  if (!tree_.exists(node)) return HostAnswer::kThere;
  const NodeView before = tree_.view(node);
  const ComponentCounts counts = missing_on_host(before);
  if (counts == ComponentCounts{}) return HostAnswer::kThere;
  // Making room must take neither the node (it is covered) nor its parent's host copy (the lock).
  tree_.cover(op.id, node);
  LockHandle parent = tree_.lock(before.parent, Tier::kHost, LockParts{.full = true, .swa = false, .mamba = false});
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  const TenantId who = tree_.spaces().tenant_of(before.space);
  const NodeView above = tree_.view(before.parent);
  const bool parent_on_host = above.end == 0 || !above.host[0].empty();
  const bool may_come = parent_on_host || config_.exclusive_tiers || config_.write_policy == WritePolicy::kWriteBack;
  const HostAnswer room = may_come ? host_room_.take(counts, effort, slots, who) : HostAnswer::kNone;
  tree_.unlock(parent);
  if (room != HostAnswer::kThere) {
    if (effort == HostEffort::kNoLoss) return room;  // nothing is lost: it comes when it leaves the device
    probe(Probe::kBackupNoRoom);
    ++counters_.backup_no_room;
    return room;
  }
  const NodeView view = tree_.view(node);
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    if (slots[i].empty()) continue;
    if (!tree_.attach_host(op.id, node, c, slots[i]).is_ok()) {
      host_room_.give_back(c, slots[i]);
      continue;
    }
    for (std::size_t k = 0; k < slots[i].size(); ++k) copy.pairs[i].push_back({view.device[i][k], slots[i][k], {}});
    if (c == ComponentKind::kFull) counters_.backed_up += slots[i].size();
  }
  return HostAnswer::kThere;
}

void Backups::done(const Op& op, bool is_ok) {
  const std::uint64_t evicted = counters_.host_evicted;
  (void)tree_.finish_op(op.id, is_ok);  // what the host has now, the backlog of the storage finds by itself
  has_failed_ = !is_ok;
  if (is_ok) return;
  // What the tree gave back never held bytes: lost, not evicted.
  counters_.host_lost += counters_.host_evicted - evicted;
  counters_.host_evicted = evicted;
}

}  // namespace larder
