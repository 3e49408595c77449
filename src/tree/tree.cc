// SPDX-License-Identifier: Apache-2.0
#include "tree/tree.h"

#include <algorithm>

#include "tree/tree_impl.h"

namespace larder {

using namespace tree;  // NOLINT: internal names of this folder

namespace {

template <class Slot>
std::span<const Slot> slots_of(const Node& node, ComponentKind c, Tier t) {
  if ((node.present & bit_of(c, t)) == 0) return {};
  return {reinterpret_cast<const Slot*>(node.slot_data(c, t)), node.units(c)};
}

}  // namespace

RadixTree::RadixTree(const TreeConfig& config, SlotSink& sink)
    : rooms_(std::make_unique<TreeRooms>(config, sink)), spaces_(*rooms_), keys_(*rooms_), observers_(*rooms_) {}
RadixTree::~RadixTree() = default;

void RadixTree::allow_host_gaps() { rooms_->state.config.allow_host_gaps = true; }

MatchResult RadixTree::match(NamespaceId space, std::span<const TokenId> tokens) const {
  return rooms_->matcher.match(space, tokens);
}
RadixTree::WaysOn RadixTree::ways_on(const TreePosition& at, std::span<const TokenId> rest) const {
  return rooms_->matcher.ways_on(at, rest);
}
void RadixTree::touch(const TreePosition& at, bool count_hit) { rooms_->uses.touch(at, count_hit); }
NodeId RadixTree::settle(const TreePosition& at) { return NodeId(rooms_->structure.settle(at)); }
void RadixTree::locate(NodeId node, ComponentKind c, std::uint64_t from, std::uint64_t to,
                       std::vector<PageLocation>& out) const {
  rooms_->matcher.locate(node.v, c, from, to, out);
}

NodeView RadixTree::view(NodeId id) const {
  NodeView view;
  if (!exists(id)) return view;
  const Node& node = rooms_->state.node(id.v);
  view.parent = NodeId(node.parent);
  view.space = NamespaceId(node.space);
  view.begin = node.begin;
  view.end = node.end();
  view.tokens = {node.tokens.data(), static_cast<std::size_t>(node.pages) * rooms_->state.page_size};
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = larder::index_of(c);
    view.device[i] = slots_of<DeviceSlot>(node, c, Tier::kDevice);
    view.host[i] = slots_of<HostSlot>(node, c, Tier::kHost);
    view.device_pending[i] = (node.pending & bit_of(c, Tier::kDevice)) != 0;
    view.host_pending[i] = (node.pending & bit_of(c, Tier::kHost)) != 0;
  }
  view.hits = node.hits;
  (node.declined ? view.declined_epoch : view.stored_epoch) = node.stored_epoch;
  view.is_unstored = node.backlog == Backlog::kWaiting;
  view.is_storing = node.is_storing;
  view.rests = node.backlog == Backlog::kResting;
  view.has_children = node.first_child != kNoNode;
  return view;
}

bool RadixTree::exists(NodeId node) const { return rooms_->state.nodes.exists(node.v); }

LockHandle RadixTree::lock(NodeId node, Tier tier, LockParts parts) { return rooms_->locks.lock(node.v, tier, parts); }
void RadixTree::unlock(LockHandle& handle) { rooms_->locks.unlock(handle); }

Result<InsertResult> RadixTree::extend(LockHandle& held, const ExtendRequest& request) {
  return rooms_->insertion.extend(held, request);
}
Result<InsertResult> RadixTree::insert_host(const HostInsertRequest& request) {
  return rooms_->insertion.insert_host(request);
}

Status RadixTree::attach_device(OpId op, NodeId node, ComponentKind c, std::uint64_t from,
                                std::span<const DeviceSlot> slots) {
  return rooms_->operations.attach_device(op, node.v, c, from, slots);
}
Status RadixTree::attach_host(OpId op, NodeId node, ComponentKind c, std::span<const HostSlot> slots) {
  return rooms_->operations.attach_host(op, node.v, c, slots);
}
void RadixTree::cover(OpId op, NodeId node) { rooms_->operations.cover(op, node.v); }
std::vector<NodeId> RadixTree::finish_op(OpId op, bool ok) { return rooms_->operations.finish_op(op, ok); }

TreeBacklog& RadixTree::backlog() { return rooms_->state.backlog; }
const TreeBacklog& RadixTree::backlog() const { return rooms_->state.backlog; }

EvictResult RadixTree::evict_device(ComponentKind c, std::uint64_t slots, VictimRule rule, const EvictFor& who) {
  return rooms_->eviction.evict_device(c, slots, rule, who);
}
EvictResult RadixTree::evict_host(ComponentKind c, std::uint64_t slots, const EvictFor& who) {
  return rooms_->eviction.evict_host(c, slots, who);
}
std::optional<HostVictim> RadixTree::next_host_victim(ComponentKind c, const EvictFor& who) {
  const tree::VictimQueues::First first = rooms_->eviction.next_host_victim(c, who);
  if (first.id == kNoNode) return std::nullopt;
  const double worth = rooms_->state.weighs || first.queue == kSpareQueue ? first.worth : 0;
  const Facts facts = rooms_->victims.plain_facts(rooms_->state.node(first.id), c, Tier::kHost);
  return HostVictim{NodeId(first.id), c, rooms_->state.order->key_across(facts), worth,
                    static_cast<std::uint8_t>(first.rank)};
}
TenantBook& RadixTree::tenants() { return rooms_->state.tenants; }
const TenantBook& RadixTree::tenants() const { return rooms_->state.tenants; }
bool RadixTree::recall(const TreePosition& at, std::span<const TokenId> rest, std::span<const std::uint64_t> pages,
                       std::span<CheckpointOrigin* const> origins) {
  return rooms_->uses.recall(at, rest, pages, origins);
}
void RadixTree::note_prompt(NamespaceId space, std::span<const TokenId> tokens) {
  rooms_->uses.note_prompt(space, tokens);
}
bool RadixTree::weighs() const { return rooms_->state.weighs; }
bool RadixTree::is_exclusive() const { return rooms_->state.config.is_exclusive; }
Facts RadixTree::facts(NodeId node, ComponentKind c, Tier t) const {
  return rooms_->victims.facts(rooms_->state.node(node.v), c, t);
}
std::uint64_t RadixTree::flush() { return rooms_->eviction.flush(); }

const TierCounts& RadixTree::counts(ComponentKind c, Tier t) const {
  return rooms_->state.counts[larder::index_of(c)][tree::index_of(t)];
}
std::uint64_t RadixTree::node_count() const { return rooms_->state.nodes.live() - rooms_->state.open_spaces(); }
Status RadixTree::check_invariants() const { return rooms_->check.check_invariants(); }

std::span<const PageKey> TreeKeys::of_edge(NodeId node) { return rooms_.keys.page_keys(node.v); }
std::optional<PageKey> TreeKeys::last(NodeId node) { return rooms_.keys.last_key(node.v); }
std::uint64_t TreeKeys::hash(NodeId node, std::uint64_t most) { return rooms_.structure.hash_keys(node.v, most); }
PathHash TreeKeys::path_hash(const TreePosition& at) { return rooms_.keys.hash_at(at); }

void TreeObservers::set_losses(TreeObserver* observer) { rooms_.residency.observe(observer); }
void TreeObservers::set_pages(PageObserver* observer) { rooms_.residency.observe_pages(observer); }
void TreeObservers::tell_pages(PageObserver& observer) { rooms_.residency.tell_pages(observer); }

}  // namespace larder
