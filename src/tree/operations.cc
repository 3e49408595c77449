// SPDX-License-Identifier: Apache-2.0
#include "tree/operations.h"

#include <algorithm>
#include <string>

namespace larder::tree {
namespace {

std::string pages_text(std::uint64_t from, std::uint64_t to) {
  return "pages [" + std::to_string(from) + ", " + std::to_string(to) + ")";
}

}  // namespace

void Operations::put_under(OpId op, Id id, Bits bits) {
  const bool was_covered = node(id).is_covered();
  state_.ops.link(op, id, bits);
  residency_.recount_covered(id, was_covered);
}

void Operations::cover(OpId op, Id id) {
  if (state_.nodes.exists(id)) put_under(op, id, 0);
}

void Operations::attach_pending(OpId op, Id id, ComponentKind c, Tier t, SlotRun run) {
  residency_.set_slots(id, c, t, std::move(run));
  put_under(op, id, bit_of(c, t));
  residency_.add_pending(id, c, t);
}

Status Operations::check_attach_device(Id id, ComponentKind c, std::uint64_t from, std::uint64_t to) const {
  const Bits bit = bit_of(c, Tier::kDevice);
  while (node(id).begin >= to) id = node(id).parent;
  for (;; id = node(id).parent) {
    const Node& n = node(id);
    if ((n.present & bit) != 0) return conflict("attach_device: " + pages_text(from, to) + " are partly there already");
    if (c != ComponentKind::kFull && (n.present & kFullDevice) == 0) {
      return conflict("attach_device: load full of " + pages_text(n.begin, n.end()) + " first");
    }
    if (n.begin <= from) break;
  }
  if (c != ComponentKind::kFull) return Status::ok();
  const Node& parent = node(node(id).parent);
  if (node(id).begin != from || (!parent.is_root() && (parent.present & kFullDevice) == 0)) {
    return conflict("attach_device: full before page " + std::to_string(from) + " is not on the device");
  }
  return Status::ok();
}

Status Operations::attach_device(OpId op, Id id, ComponentKind c, std::uint64_t from,
                                 std::span<const DeviceSlot> slots) {
  if (!state_.nodes.exists(id) || node(id).is_root()) return not_found("attach_device: no such node");
  if (c == ComponentKind::kMamba) from = node(id).end() - 1;
  const std::uint64_t to = from + slots.size();
  const bool fits = !slots.empty() && to > from && to <= node(id).end() &&
                    (c != ComponentKind::kMamba || (state_.config.has_mamba && slots.size() == 1)) &&
                    (c != ComponentKind::kSwa || state_.window_pages != 0);
  if (!fits) return invalid_argument("attach_device: " + pages_text(from, to) + " do not fit the node or the model");
  for (const DeviceSlot slot : slots) {
    if (!slot.valid()) return invalid_argument("attach_device: invalid slot");
  }
  // A checkpoint stands at the node's end, wherever its edge begins.
  const std::uint64_t first = c == ComponentKind::kMamba ? node(id).begin : from;
  LARDER_RETURN_IF_ERROR(check_attach_device(id, c, first, to));

  const SlotRun run = SlotRun::copy_of({&slots[0].v, slots.size()});
  while (node(id).begin >= to) id = node(id).parent;
  if (c == ComponentKind::kMamba) {
    attach_pending(op, id, c, Tier::kDevice, run.share());
    return Status::ok();
  }
  if (to < node(id).end()) id = structure_.split(id, to);
  for (; node(id).end() > from; id = node(id).parent) {
    if (node(id).begin < from) structure_.split(id, from);
    attach_pending(op, id, c, Tier::kDevice, run.share(node(id).begin - from));
  }
  return Status::ok();
}

Status Operations::attach_host(OpId op, Id id, ComponentKind c, std::span<const HostSlot> slots) {
  if (!state_.nodes.exists(id) || node(id).is_root()) return not_found("attach_host: no such node");
  const Node& n = node(id);
  const bool in_model =
      c == ComponentKind::kFull || (c == ComponentKind::kSwa ? state_.window_pages != 0 : state_.config.has_mamba);
  if (!in_model || slots.size() != n.units(c)) {
    return invalid_argument("attach_host: " + std::to_string(slots.size()) + " slots for a node of " +
                            std::to_string(n.units(c)));
  }
  for (const HostSlot slot : slots) {
    if (!slot.valid()) return invalid_argument("attach_host: invalid slot");
  }
  if ((n.present & bit_of(c, Tier::kHost)) != 0) return conflict("attach_host: there already, or under way");
  if (c != ComponentKind::kFull && (n.present & kFullHost) == 0) return conflict("attach_host: back up full first");
  const Node& parent = node(n.parent);
  if (c == ComponentKind::kFull && !state_.config.allow_host_gaps && !parent.is_root() &&
      (parent.present & kFullHost) == 0) {
    return conflict("attach_host: back up the parent first");
  }
  attach_pending(op, id, c, Tier::kHost, SlotRun::copy_of({&slots[0].v, slots.size()}));
  return Status::ok();
}

Operations::Readiness Operations::readiness(const Node& n, ComponentKind c, Tier t) const {
  const bool is_full = c == ComponentKind::kFull;
  const Node& base = is_full ? node(n.parent) : n;
  const Bits full = bit_of(ComponentKind::kFull, t);
  if (is_full && base.is_root()) return Readiness::kPublish;
  if (is_full && t == Tier::kHost && state_.config.allow_host_gaps) return Readiness::kPublish;
  if (base.has(full)) return Readiness::kPublish;
  return (base.present & full) != 0 ? Readiness::kWait : Readiness::kDiscard;
}

// What stands on full of a node: its own window and state, and full of its children.
void Operations::push_dependents(Id id, Tier t) {
  if (state_.waiting == 0) return;
  const Bits aux = static_cast<Bits>(bit_of(ComponentKind::kSwa, t) | bit_of(ComponentKind::kMamba, t));
  if ((node(id).complete & aux) != 0) to_resolve_.emplace_back(id, node(id).complete & aux);
  const Bits full = bit_of(ComponentKind::kFull, t);
  for (Id child = node(id).first_child; child != kNoNode; child = node(child).next_sibling) {
    if ((node(child).complete & full) != 0) to_resolve_.emplace_back(child, full);
  }
}

// A copy that is done publishes when what it stands on is published; until then it waits, and it goes when that goes.
void Operations::resolve_all(Tier t) {
  while (!to_resolve_.empty()) {
    const auto [id, bits] = to_resolve_.back();
    to_resolve_.pop_back();
    for (const ComponentKind c : kAllComponents) {
      const Bits bit = bit_of(c, t);
      if ((bits & node(id).complete & bit) == 0) continue;
      const Readiness verdict = readiness(node(id), c, t);
      if (verdict == Readiness::kWait) continue;
      verdict == Readiness::kPublish ? residency_.publish(id, c, t) : residency_.drop(id, c, t);
      if (c == ComponentKind::kFull) push_dependents(id, t);
    }
  }
}

void Operations::finish_data(Id id, ComponentKind c, Tier t, bool ok) {
  const Bits bit = bit_of(c, t);
  to_resolve_.clear();
  if (ok) {
    node(id).complete = static_cast<Bits>(node(id).complete | bit);
    ++state_.waiting;
    to_resolve_.emplace_back(id, bit);
  } else {
    residency_.drop(id, c, t);
    if (c == ComponentKind::kFull) push_dependents(id, t);
  }
  resolve_all(t);
}

std::vector<NodeId> Operations::finish_op(OpId op, bool ok) {
  std::vector<NodeId> covered;
  // The op's links are gone from here on: its pending data keeps the nodes covered until it is resolved below.
  std::vector<OpRegistry::Link> links = state_.ops.take(op);
  std::sort(links.begin(), links.end(), [&](const auto& a, const auto& b) {
    return std::pair(node(a.node).begin, a.node) < std::pair(node(b.node).begin, b.node);
  });
  covered.reserve(links.size());
  ++state_.tick;  // one for all that the op brought: what was copied together is of one age
  for (const OpRegistry::Link& link : links) {
    covered.emplace_back(link.node);
    residency_.recount_covered(link.node, true);
  }
  for (const OpRegistry::Link& link : links) {
    for (const Tier t : kAllTiers) {
      for (const ComponentKind c : kAllComponents) {
        if ((link.owned & node(link.node).pending & bit_of(c, t)) != 0) finish_data(link.node, c, t, ok);
      }
    }
  }
  return covered;
}

}  // namespace larder::tree
