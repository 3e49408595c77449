// Device -> host -> storage (step 6 of a prefix's life): parents before children, sidecars before the anchor.
#include <algorithm>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/cache_impl.h"

namespace larder {

namespace {
constexpr std::size_t kComponentMamba = static_cast<std::size_t>(ComponentKind::kMamba);
// Percent of the host that stores may keep in place: what a storage that hangs can take from it.
constexpr std::uint64_t kStorePercent = 60;
constexpr Nanos kMaxRetryDelay = std::chrono::hours(1);

Nanos retry_delay(Nanos first, std::uint32_t attempts) {
  Nanos delay = first;
  for (std::uint32_t i = 1; i < attempts && delay < kMaxRetryDelay; ++i) delay *= 2;
  return std::max(first, std::min(delay, kMaxRetryDelay));
}

// Of a node above one that is on the host.
bool is_host_gap(const NodeView& above) { return above.end > 0 && above.host[0].empty(); }
}  // namespace

ComponentCounts CacheImpl::missing_on_host(const NodeView& view) const {
  ComponentCounts counts{};
  const std::size_t full = index_of(ComponentKind::kFull);
  const bool has_full = !view.host[full].empty() || (!view.device[full].empty() && !view.device_pending[full]);
  if (!has_full) return counts;  // nothing may be on the host without full
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    if (!tier_keeps(c) || view.device[i].empty() || view.device_pending[i] || !view.host[i].empty()) continue;
    counts[i] = static_cast<std::uint32_t>(view.device[i].size());
  }
  return counts;
}

// Nodes of the path to `node` that lack a host copy, ending with `node` itself; appended parents first, once each.
void CacheImpl::append_unbacked_path(NodeId node, bool by_policy, std::uint64_t from, std::vector<NodeId>& out) const {
  std::vector<NodeId> path;
  for (NodeId at = node;;) {
    const NodeView view = tree_.view(at);
    if (view.end == 0) break;
    const bool any = missing_on_host(view) != ComponentCounts{};
    // Everything above a node with a complete copy was looked at when that copy was made, but for the checkpoints that
    // came after `from` since; and but for a gap above what a prefetch has brought.
    if (!any && !view.host[0].empty() && view.begin <= from && !is_host_gap(tree_.view(view.parent))) break;
    const bool selective = by_policy && config_.write_policy == WritePolicy::kWriteThroughSelective;
    if (any && (!selective || view.hits >= config_.selective_hits)) path.push_back(at);
    at = view.parent;
  }
  for (auto it = path.rbegin(); it != path.rend(); ++it) {
    if (std::find(out.begin(), out.end(), *it) == out.end()) out.push_back(*it);
  }
}

void CacheImpl::maybe_backup(NodeId node, std::uint64_t from) {
  if (!host_ || config_.write_policy == WritePolicy::kWriteBack) return;
  std::vector<NodeId> nodes;
  append_unbacked_path(node, true, from, nodes);
  (void)start_backup(nodes, true);
}

bool CacheImpl::backup_victims(const std::vector<NodeId>& victims, bool gently) {
  std::vector<NodeId> nodes;
  for (const NodeId node : victims) append_unbacked_path(node, false, tree_.view(node).end, nodes);
  return start_backup(nodes, gently);
}

bool CacheImpl::start_backup(const std::vector<NodeId>& nodes, bool gently) {
  if (!host_ || nodes.empty() || !ops_.has_room(OpKind::kBackup)) return false;
  Op& op = ops_.add(OpKind::kBackup);
  TransferRequest copy;
  copy.id = op.id;
  copy.direction = CopyDirection::kDeviceToHost;
  for (const NodeId node : nodes) {
    // The children of a node that found no room must not go before it.
    if (!attach_backup(op, node, copy, gently)) break;
  }
  if (std::all_of(copy.pairs.begin(), copy.pairs.end(), [](const auto& v) { return v.empty(); })) {
    (void)tree_.finish_op(op.id, false);
    ops_.erase(op.id);
    return false;
  }
  submit_transfer(op, std::move(copy));
  return true;
}

// Takes host slots for what the node lacks and lists the copies. False: no room.
bool CacheImpl::attach_backup(Op& op, NodeId node, TransferRequest& copy, bool gently) {
  if (!tree_.exists(node)) return true;
  const NodeView before = tree_.view(node);
  const ComponentCounts counts = missing_on_host(before);
  if (counts == ComponentCounts{}) return true;
  // Making room must take neither the node (it is covered) nor its parent's host copy (the lock).
  tree_.cover(op.id, node);
  LockHandle parent = tree_.lock(before.parent, Tier::kHost, LockParts{.full = true, .swa = false, .mamba = false});
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  const NodeView above = tree_.view(before.parent);
  const bool parent_on_host = above.end == 0 || !above.host[0].empty();
  const bool room = (parent_on_host || config_.write_policy == WritePolicy::kWriteBack) &&
                    make_host_room(counts, gently) && host_->reserve(counts, slots);
  tree_.unlock(parent);
  if (!room) {
    probe(Probe::kBackupNoRoom);
    ++counters_.backup_no_room;
    return false;
  }
  const NodeView view = tree_.view(node);
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    if (slots[i].empty()) continue;
    if (!tree_.attach_host(op.id, node, c, slots[i]).is_ok()) {
      return_host(c, slots[i]);
      continue;
    }
    for (std::size_t k = 0; k < slots[i].size(); ++k) copy.pairs[i].push_back({view.device[i][k], slots[i][k], {}});
    if (c == ComponentKind::kFull) counters_.backed_up += slots[i].size();
  }
  return true;
}

void CacheImpl::backup_done(Op& op, bool ok) {
  const std::uint64_t evicted = counters_.host_evicted;
  const std::vector<NodeId> nodes = tree_.finish_op(op.id, ok);
  backup_failed_ = !ok;
  if (!ok) {
    // What the tree gave back never held bytes: lost, not evicted.
    counters_.host_lost += counters_.host_evicted - evicted;
    counters_.host_evicted = evicted;
    return;
  }
  if (storage_) enqueue_store(nodes);
}

// A write has one scope, so the nodes of each tenant and adapter go by themselves.
void CacheImpl::enqueue_store(const std::vector<NodeId>& nodes) {
  std::map<std::uint32_t, std::vector<NodeId>> by_space;
  for (const NodeId node : nodes) {
    const NodeView view = tree_.view(node);
    if (view.end == 0 || view.host[0].empty()) continue;
    if (view.host_pending[0] && !defect(Defect::kStoredBeforeCopied)) {
      unstored_hint_ = true;  // its copy waits for that of its parent
    } else {
      by_space[view.space.v].push_back(node);
    }
  }
  for (auto& [space, group] : by_space) enqueue_store_of(std::move(group));
  pump_stores();
}

// A slot of no bytes counts as one block, as in HostPools::blocks_missing().
std::uint64_t CacheImpl::blocks_on_host(NodeId node) const {
  const NodeView view = tree_.view(node);
  std::uint64_t blocks = 0;
  for (const ComponentKind c : kAllComponents) {
    blocks += view.host[index_of(c)].size() * std::max(1u, host_->blocks_per_slot(c));
  }
  return blocks;
}

// How many of `nodes`, from the first on, may be kept on the host until storage has them. Storages that were detached
// count as well: those that hang, one after the other, must not get all of it. One node may always be under way, so
// that the next storage is not shut out.
std::size_t CacheImpl::nodes_that_stores_may_keep(const std::vector<NodeId>& nodes) const {
  const std::uint64_t limit = host_->total_blocks() * kStorePercent / 100;
  std::uint64_t kept = kept_by_stores_ + kept_by_abandoned_;
  std::size_t count = 0;
  for (const NodeId node : nodes) {
    kept += blocks_on_host(node);
    const bool is_only_one = kept_by_stores_ == 0 && count == 0;
    if (kept > limit && !is_only_one) break;
    ++count;
  }
  return count;
}

void CacheImpl::enqueue_store_of(std::vector<NodeId> nodes) {
  const std::size_t count = ops_.has_room(OpKind::kStore) ? nodes_that_stores_may_keep(nodes) : 0;
  if (count < nodes.size()) unstored_hint_ = true;  // store_unstored() finds the others again
  if (count == 0) return;
  nodes.resize(count);
  auto store = std::make_unique<Store>();
  store->epoch = storage_epoch_;
  prepare_store(*store, nodes);
  Op& op = ops_.add(OpKind::kStore);
  op.store = std::move(store);
  store_queue_.push_back(op.id);
}

// Locks, keys and leases are taken here and not when the write is submitted: what is locked, hashed and leased decides
// what the tree merges and what eviction frees, and the time of a retry is this rank's own.
void CacheImpl::prepare_store(Store& store, const std::vector<NodeId>& nodes) {
  hold_nodes(store, nodes);
  store.request = WriteRequest{};
  store.request.scope = spaces_.scope(tree_.view(store.pieces.front().node).space);
  store.request.durable = config_.storage_durable;
  store.groups.clear();
  store.bytes = 0;
  for (std::size_t i = 0; i < store.pieces.size(); ++i) {
    PageGroup group = build_group(i, store);
    if (group.items.empty()) continue;
    store.request.groups.push_back(std::move(group));
  }
}

// Makes each node a piece with a lock of its own, in place of the pieces before: the parts of one that was split since.
// Their windows are locked, too: they are leased, so the host would gain nothing by evicting them.
void CacheImpl::hold_nodes(Store& store, const std::vector<NodeId>& nodes) {
  const LockParts parts{.full = true, .swa = true, .mamba = true, .own_pages = true};
  std::vector<Store::Piece> pieces;
  std::uint64_t blocks = 0;
  for (const NodeId node : nodes) {
    pieces.push_back({node, tree_.view(node).begin, tree_.lock(node, Tier::kHost, parts)});
    blocks += blocks_on_host(node);
  }
  release_store(store, false);
  store.pieces = std::move(pieces);
  store.blocks = blocks;
  kept_by_stores_ += blocks;
}

// The nodes of its pieces as they are now, parents before children.
std::vector<NodeId> CacheImpl::nodes_of(const Store& store) const {
  std::vector<NodeId> nodes;
  for (const Store::Piece& piece : store.pieces) {
    const std::vector<NodeId> own = nodes_of(piece);
    nodes.insert(nodes.end(), own.begin(), own.end());
  }
  return nodes;
}

std::vector<NodeId> CacheImpl::nodes_of(const Store::Piece& piece) const {
  std::vector<NodeId> nodes;
  for (NodeId at = piece.node; tree_.view(at).end > piece.begin; at = tree_.view(at).parent) nodes.push_back(at);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

void CacheImpl::release_store(Store& store, bool is_abandoned) {
  for (Store::Piece& piece : store.pieces) tree_.unlock(piece.lock);
  (is_abandoned ? kept_by_abandoned_ : kept_by_stores_) -= std::exchange(store.blocks, 0);
}

PageGroup CacheImpl::build_group(std::size_t piece, Store& store) {
  PageGroup group;
  const NodeId node = store.pieces[piece].node;
  const std::span<const PageKey> keys = tree_.page_keys(node);
  const NodeView view = tree_.view(node);
  if (view.declined_epoch == store.epoch) return group;
  Store::Group covered{piece};
  // What an earlier write stored need not be written again; a state that came later must.
  const bool full_stored = view.stored_epoch == store.epoch;
  // The seed of the chain is no page.
  const PageKey first_parent = view.begin > 0 ? tree_.last_key(view.parent).value_or(PageKey{}) : PageKey{};
  const auto add = [&](ComponentKind c, HostSlot slot, std::size_t page) {
    for (const PoolSpec* pool : model_.pools_of(c)) {  // sidecars first, the anchor last
      WriteItem item{pool->name, keys[page], {}, page > 0 ? keys[page - 1] : first_parent};
      host_->append_page(pool->name, slot, item.payload);
      store.bytes += payload_bytes(item.payload);
      group.items.push_back(std::move(item));
    }
    if (defect(Defect::kWriteWithoutLease)) return;
    if (host_->add_lease(c, slot).is_ok()) store.leases.push_back({c, slot.v, host_->generation(c, slot)});
  };
  const auto published = [&](ComponentKind c) {
    const std::size_t i = index_of(c);
    return model_.has(c) && !view.host[i].empty() && (!view.host_pending[i] || defect(Defect::kStoredBeforeCopied));
  };
  if (published(ComponentKind::kSwa)) {
    const auto slots = view.host[index_of(ComponentKind::kSwa)];
    for (std::size_t i = 0; i < slots.size(); ++i) add(ComponentKind::kSwa, slots[i], i);
    covered.has_window = true;
  }
  if (published(ComponentKind::kMamba)) {
    add(ComponentKind::kMamba, view.host[kComponentMamba].front(), keys.size() - 1);
    covered.has_state = true;
  }
  if (published(ComponentKind::kFull) && !full_stored) {
    const auto slots = view.host[index_of(ComponentKind::kFull)];
    for (std::size_t i = 0; i < slots.size(); ++i) add(ComponentKind::kFull, slots[i], i);
    covered.pages = slots.size();
  }
  if (!group.items.empty()) store.groups.push_back(covered);
  return group;
}

void CacheImpl::submit_store(Op& op) {
  Store& store = *op.store;
  ++store.attempts;
  store.submitted = clock_.now();
  ++stores_in_flight_;
  auto complete = ops_.completion_for(op.id);
  if (store.request.groups.empty()) {
    complete(WriteResult{{Status::ok()}});
    return;
  }
  const Status submitted =
      storage_->submit_write(std::move(store.request), [complete](WriteResult done) { complete(std::move(done)); });
  if (!submitted.is_ok()) complete(WriteResult{{submitted}});
}

// Storage was detached before the write was submitted. Ends like any other write, by a completion: on another rank it
// may have been submitted in time.
void CacheImpl::cancel_store(Op& op) {
  for (Store::Group& group : op.store->groups) group.pages = 0;
  ops_.completion_for(op.id)(WriteResult{{cancelled("storage was detached")}});
}

// Bit 0: nothing of it is left to do. From bit 64 on: which groups are stored, so that one page that cannot be stored
// costs only itself; and after them, which are settled: stored, or declined by the storage's admission policy.
OutcomeBits CacheImpl::store_outcome(const Op& op) const {
  const auto* done = std::get_if<WriteResult>(&op.completion);
  const std::size_t groups = op.store->groups.size();
  const std::size_t words = (groups + 63) / 64;
  OutcomeBits bits(1 + 2 * words, 0);
  if (!done || done->groups.size() < std::max<std::size_t>(groups, 1)) return bits;
  const auto is_settled = [](const Status& s) { return s.is_ok() || s.code() == StatusCode::kUnsupported; };
  bits[0] = std::all_of(done->groups.begin(), done->groups.end(), is_settled) ? 1 : 0;
  for (std::size_t i = 0; i < groups; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    if (done->groups[i].is_ok()) bits[1 + i / 64] |= bit;
    if (is_settled(done->groups[i])) bits[1 + words + i / 64] |= bit;
  }
  return bits;
}

namespace {

enum class GroupFate : std::uint8_t { kFailed, kDeclined, kStored };

// What the ranks agreed on for group `i` of `groups`.
GroupFate fate_of(const OutcomeBits& bits, std::size_t i, std::size_t groups) {
  const auto has = [&](std::size_t word) { return word < bits.size() && ((bits[word] >> (i % 64)) & 1) != 0; };
  if (has(1 + i / 64)) return GroupFate::kStored;
  return has(1 + (groups + 63) / 64 + i / 64) ? GroupFate::kDeclined : GroupFate::kFailed;
}

}  // namespace

void CacheImpl::store_done(Op& op, const OutcomeBits& bits) {
  std::unique_ptr<Store> store = std::move(op.store);
  const bool ok = !bits.empty() && (bits[0] & 1);
  drop_host_leases(store->leases);
  store->leases.clear();
  if (!op.is_abandoned) --stores_in_flight_;
  const bool current = storage_ && !op.is_abandoned && store->epoch == storage_epoch_;
  mark_declined(*store, current, bits);
  if (!ok && current && store->attempts <= config_.backup_retries) {
    probe(Probe::kBackupRetried);
    // The pages stay locked for the next attempt; a sick disk costs host memory for a bounded time only.
    Op& again = ops_.add(OpKind::kStore);
    store->not_before = clock_.now() + retry_delay(config_.backup_retry_delay, store->attempts);
    prepare_store(*store, nodes_of(*store));
    again.store = std::move(store);
    store_queue_.push_back(again.id);
    return;
  }
  mark_stored(*store, current, ok, bits);
  release_store(*store, op.is_abandoned);
}

// Is all that the node has on the host now in the group's request, or stored before? What came to the host since (a
// state at a fork, for one) is looked for again.
bool CacheImpl::was_asked(const Store& store, const Store::Group& group, NodeId at) {
  const Store::Piece& piece = store.pieces[group.piece];
  const NodeView view = tree_.view(at);
  const auto is_on_host = [&](ComponentKind c) {
    return !view.host[index_of(c)].empty() && !view.host_pending[index_of(c)];
  };
  const bool window = !is_on_host(ComponentKind::kSwa) || group.has_window;
  const bool state = !is_on_host(ComponentKind::kMamba) || (group.has_state && at == piece.node);
  if ((window && state) || defect(Defect::kOutrunStateStored)) return true;
  unstored_hint_ = true;
  probe(Probe::kBackupOutrun);
  return false;
}

// What storage declined is neither stored nor lost: it is not tried again, now or later.
void CacheImpl::mark_declined(Store& store, bool current, const OutcomeBits& bits) {
  for (std::size_t i = 0; i < store.groups.size(); ++i) {
    Store::Group& group = store.groups[i];
    if (fate_of(bits, i, store.groups.size()) != GroupFate::kDeclined) continue;
    counters_.store_declined += std::exchange(group.pages, 0);
    if (!current) continue;
    for (const NodeId at : nodes_of(store.pieces[group.piece])) {
      if (was_asked(store, group, at)) tree_.set_declined(at, store.epoch);
    }
  }
}

void CacheImpl::mark_stored(const Store& store, bool current, bool ok, const OutcomeBits& bits) {
  std::size_t kept = 0, declined = 0;
  std::uint64_t pages = 0;
  for (std::size_t i = 0; i < store.groups.size(); ++i) {
    const Store::Group& group = store.groups[i];
    const GroupFate fate = fate_of(bits, i, store.groups.size());
    if (fate == GroupFate::kDeclined) ++declined, probe(Probe::kBackupDeclined);
    if (fate == GroupFate::kFailed) counters_.store_failed += group.pages, probe(Probe::kBackupLost);
    if (fate != GroupFate::kStored) continue;
    ++kept;
    pages += group.pages;
    if (!current) continue;
    for (const NodeId at : nodes_of(store.pieces[group.piece])) {
      if (was_asked(store, group, at)) tree_.set_stored(at, store.epoch);
    }
  }
  counters_.stored += pages;
  if (ok && declined == 0) metrics_.backed_up(pages, store.bytes, clock_.now() - store.submitted);
  if (!current) return;
  if (kept > 0) renew_store_patience();
  if (ok) {
    unstored_hint_ = unstored_hint_ || std::exchange(store_again_, false);
  } else if (kept + declined == 0) {
    // A storage that takes nothing is not asked again and again: what it lost is looked for once it takes something.
    unstored_hint_ = false;
    store_again_ = true;
  }
}

// Storage was detached. The next one gets all the places of a storage, see stores_aside(), and what the host still has
// for it. The pages stay locked: they are leased until the write ends, so the host would gain nothing without them. All
// stores, not only those that were submitted: that is each rank's own.
void CacheImpl::abandon_stores() {
  for (auto& [id, op] : ops_.all()) {
    if (op.kind != OpKind::kStore || op.is_abandoned) continue;
    kept_by_stores_ -= op.store->blocks;
    kept_by_abandoned_ += op.store->blocks;
    abandon(op);
  }
  stores_in_flight_ = 0;
}

// For a flush, and for the device: the tree lets go of the pages, and the buffers remain the write's by its leases.
void CacheImpl::unlock_abandoned_stores() {
  if (ops_.abandoned(OpKind::kStore) == 0) return;
  for (auto& [id, op] : ops_.all()) {
    if (op.kind != OpKind::kStore || !op.is_abandoned) continue;
    for (Store::Piece& piece : op.store->pieces) tree_.unlock(piece.lock);
  }
}

// Keeps a bounded number of writes in flight, in order; retries wait for their time.
void CacheImpl::pump_stores() {
  const TimePoint now = clock_.now();
  for (std::size_t i = store_queue_.size(); i > 0 && stores_in_flight_ < kStoresInFlight; --i) {
    const OpId id = store_queue_.front();
    store_queue_.pop_front();
    Op* const op = ops_.find(id);
    if (op == nullptr) continue;
    if (op->store->not_before > now) {
      store_queue_.push_back(id);
      continue;
    }
    submit_store(*op);
  }
  store_unstored();
}

// Prefixes that reached the host while no storage was attached, or while too much was in flight.
void CacheImpl::store_unstored() {
  // No store at all, so that every rank gets here in the same step: when a retry is submitted depends on its clock.
  if (!storage_ || !unstored_hint_ || ops_.live(OpKind::kStore) > 0 || !ops_.has_room(OpKind::kStore)) return;
  constexpr std::size_t kBatch = 64;
  const std::vector<NodeId> nodes = tree_.unstored(storage_epoch_, kBatch);
  if (nodes.empty()) {
    unstored_hint_ = false;
    return;
  }
  enqueue_store(nodes);
}

}  // namespace larder
