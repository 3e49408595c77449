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

RadixTree::RadixTree(const TreeConfig& config, SlotSink& sink) : impl_(std::make_unique<Impl>(config, sink)) {}
RadixTree::~RadixTree() = default;

NamespaceId RadixTree::open_namespace(const std::optional<PageKey>& seed, TenantId tenant) {
  TreeState& tree = impl_->state;
  const auto next =
      tree.closed_spaces.empty() ? static_cast<std::uint32_t>(tree.spaces.size()) : tree.closed_spaces.back();
  if (seed) {
    const auto [known, is_new] = tree.space_of_seed.try_emplace(*seed, next);
    if (!is_new) return NamespaceId(known->second);
  } else if (tree.unseeded_space) {
    return NamespaceId(*tree.unseeded_space);
  } else {
    tree.unseeded_space = next;
  }
  if (tree.closed_spaces.empty()) {
    tree.spaces.emplace_back();
  } else {
    tree.closed_spaces.pop_back();
  }
  tree.spaces[next] = {seed, impl_->structure.make_root(next), 0, tenant};
  tree.node(tree.spaces[next].root).path_hash = PathHash::of_namespace(seed);
  return NamespaceId(next);
}

Status RadixTree::close_namespace(NamespaceId space) {
  TreeState& tree = impl_->state;
  const tree::Id root = tree.root_of(space);
  if (root == kNoNode) return not_found("close_namespace: no such namespace");
  const Node& node = tree.node(root);
  if (node.first_child != kNoNode || node.is_covered()) return conflict("close_namespace: it is in use");
  Space& closed = tree.spaces[space.v];
  if (closed.seed) {
    tree.space_of_seed.erase(*closed.seed);
  } else {
    tree.unseeded_space.reset();
  }
  tree.nodes.release(root);
  closed = Space{};
  tree.closed_spaces.push_back(static_cast<std::uint32_t>(space.v));
  return Status::ok();
}

bool RadixTree::is_claimed(NamespaceId space) const {
  return impl_->state.root_of(space) != kNoNode && impl_->state.spaces[space.v].claims != 0;
}

void RadixTree::allow_host_gaps() { impl_->state.config.allow_host_gaps = true; }

MatchResult RadixTree::match(NamespaceId space, std::span<const TokenId> tokens) const {
  return impl_->matcher.match(space, tokens);
}
RadixTree::WaysOn RadixTree::ways_on(const TreePosition& at, std::span<const TokenId> rest) const {
  return impl_->matcher.ways_on(at, rest);
}
void RadixTree::touch(const TreePosition& at, bool count_hit) { impl_->uses.touch(at, count_hit); }
NodeId RadixTree::settle(const TreePosition& at) { return NodeId(impl_->structure.settle(at)); }
NodeId RadixTree::root(NamespaceId space) const { return NodeId(impl_->state.root_of(space)); }
void RadixTree::locate(NodeId node, ComponentKind c, std::uint64_t from, std::uint64_t to,
                       std::vector<PageLocation>& out) const {
  impl_->matcher.locate(node.v, c, from, to, out);
}

NodeView RadixTree::view(NodeId id) const {
  NodeView view;
  if (!exists(id)) return view;
  const Node& node = impl_->state.node(id.v);
  view.parent = NodeId(node.parent);
  view.space = NamespaceId(node.space);
  view.begin = node.begin;
  view.end = node.end();
  view.tokens = {node.tokens.data(), static_cast<std::size_t>(node.pages) * impl_->state.page_size};
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

bool RadixTree::exists(NodeId node) const { return impl_->state.nodes.exists(node.v); }
std::span<const PageKey> RadixTree::page_keys(NodeId node) { return impl_->keys.page_keys(node.v); }
std::uint64_t RadixTree::hash_keys(NodeId node, std::uint64_t most) { return impl_->structure.hash_keys(node.v, most); }
PathHash RadixTree::path_hash(const TreePosition& at) { return impl_->keys.hash_at(at); }
void RadixTree::observe(TreeObserver* observer) { impl_->residency.observe(observer); }
void RadixTree::observe_pages(PageObserver* observer) { impl_->residency.observe_pages(observer); }
void RadixTree::tell_pages(PageObserver& observer) { impl_->residency.tell_pages(observer); }
std::optional<PageKey> RadixTree::last_key(NodeId node) { return impl_->keys.last_key(node.v); }

LockHandle RadixTree::lock(NodeId node, Tier tier, LockParts parts) { return impl_->locks.lock(node.v, tier, parts); }
void RadixTree::unlock(LockHandle& handle) { impl_->locks.unlock(handle); }

Result<InsertResult> RadixTree::extend(LockHandle& held, const ExtendRequest& request) {
  return impl_->insertion.extend(held, request);
}
Result<InsertResult> RadixTree::insert_host(const HostInsertRequest& request) {
  return impl_->insertion.insert_host(request);
}

Status RadixTree::attach_device(OpId op, NodeId node, ComponentKind c, std::uint64_t from,
                                std::span<const DeviceSlot> slots) {
  return impl_->operations.attach_device(op, node.v, c, from, slots);
}
Status RadixTree::attach_host(OpId op, NodeId node, ComponentKind c, std::span<const HostSlot> slots) {
  return impl_->operations.attach_host(op, node.v, c, slots);
}
void RadixTree::cover(OpId op, NodeId node) { impl_->operations.cover(op, node.v); }
std::vector<NodeId> RadixTree::finish_op(OpId op, bool ok) { return impl_->operations.finish_op(op, ok); }

TreeBacklog& RadixTree::backlog() { return impl_->state.backlog; }
const TreeBacklog& RadixTree::backlog() const { return impl_->state.backlog; }

EvictResult RadixTree::evict_device(ComponentKind c, std::uint64_t slots, VictimRule rule, const EvictFor& who) {
  return impl_->eviction.evict_device(c, slots, rule, who);
}
EvictResult RadixTree::evict_host(ComponentKind c, std::uint64_t slots, const EvictFor& who) {
  return impl_->eviction.evict_host(c, slots, who);
}
std::optional<HostVictim> RadixTree::next_host_victim(ComponentKind c, const EvictFor& who) {
  const tree::VictimQueues::First first = impl_->eviction.next_host_victim(c, who);
  if (first.id == kNoNode) return std::nullopt;
  const double worth = impl_->state.weighs || first.queue == kSpareQueue ? first.worth : 0;
  const Facts facts = impl_->victims.plain_facts(impl_->state.node(first.id), c, Tier::kHost);
  return HostVictim{NodeId(first.id), c, impl_->state.order->key_across(facts), worth,
                    static_cast<std::uint8_t>(first.rank)};
}
TenantBook& RadixTree::tenants() { return impl_->state.tenants; }
const TenantBook& RadixTree::tenants() const { return impl_->state.tenants; }
TenantId RadixTree::tenant_of(NamespaceId space) const {
  return space.v < impl_->state.spaces.size() ? impl_->state.spaces[space.v].tenant : TenantId{};
}
bool RadixTree::recall(const TreePosition& at, std::span<const TokenId> rest, std::span<const std::uint64_t> pages,
                       std::span<CheckpointOrigin* const> origins) {
  return impl_->uses.recall(at, rest, pages, origins);
}
void RadixTree::note_prompt(NamespaceId space, std::span<const TokenId> tokens) {
  impl_->uses.note_prompt(space, tokens);
}
const EvictionOrder& RadixTree::order() const { return *impl_->state.order; }
bool RadixTree::weighs() const { return impl_->state.weighs; }
bool RadixTree::is_exclusive() const { return impl_->state.config.is_exclusive; }
Facts RadixTree::facts(NodeId node, ComponentKind c, Tier t) const {
  return impl_->victims.facts(impl_->state.node(node.v), c, t);
}
std::uint64_t RadixTree::flush() { return impl_->eviction.flush(); }
std::uint64_t RadixTree::flush(NamespaceId space) { return impl_->eviction.flush(impl_->state.root_of(space)); }

const TierCounts& RadixTree::counts(ComponentKind c, Tier t) const {
  return impl_->state.counts[larder::index_of(c)][tree::index_of(t)];
}
std::uint64_t RadixTree::node_count() const { return impl_->state.nodes.live() - impl_->state.open_spaces(); }
Status RadixTree::check_invariants() const { return impl_->check.check_invariants(); }

}  // namespace larder
