// SPDX-License-Identifier: Apache-2.0
#include "controller/store_backlog.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "tree/tree_backlog.h"

namespace larder {

namespace {
constexpr Nanos kMaxRetryDelay = std::chrono::hours(1);

Nanos retry_delay(Nanos first, std::uint32_t attempts) {
  Nanos delay = first;
  for (std::uint32_t i = 1; i < attempts && delay < kMaxRetryDelay; ++i) delay *= 2;
  return std::max(first, std::min(delay, kMaxRetryDelay));
}

bool is_published(const NodeView& view, ComponentKind c) {
  const std::size_t i = index_of(c);
  return !view.host[i].empty() && (!view.host_pending[i] || defect(Defect::kStoredBeforeCopied));
}
}  // namespace

StoreBacklog::StoreBacklog(const CacheConfig& config, const Parts& parts)
    : config_(config),
      model_(parts.model),
      host_(parts.host),
      tree_(parts.tree),
      ops_(parts.ops),
      spaces_(parts.spaces),
      clock_(parts.clock),
      counters_(parts.counters),
      metrics_(parts.metrics) {}

void StoreBacklog::attach_storage(StorageBackend& backend) {
  storage_ = &backend;
  patience_ = kPatience;  // it has not shown yet that it hangs
  cleared();
}

void StoreBacklog::cleared() {
  ++epoch_;  // what was stored says nothing about what is there now
  tree_.backlog().track(epoch_);
  stands_ = false;
  next_rest_ = kShortestRest;
}

// The pages of what is abandoned stay locked: they are leased until the write ends, so the host would gain nothing
// without them. All writes, not only those that were submitted: that is each rank's own.
void StoreBacklog::detach_storage() {
  storage_ = nullptr;
  for (const OpId id : queue_) {
    if (Op* const op = ops_.find(id)) cancel(*op);
  }
  queue_.clear();
  for (auto& [id, op] : ops_.all()) {
    if (op.kind != OpKind::kStore || !ops_.abandon(op)) continue;
    kept_ -= op.store->space;
    kept_by_abandoned_ += op.store->space;
    for (const Store::Piece& piece : op.store->pieces) {
      for (const NodeId at : nodes_of(piece))
        tree_.backlog().end_storing(at, false);  // the next storage is given them as well
    }
  }
  if (Op* const timer = ops_.find(std::exchange(rest_timer_, OpId{}))) ops_.end(*timer);
  stands_ = false;
}

void StoreBacklog::pump() {
  if (!storage_) return;
  ops_.budget().begin_share(WorkBudget::Share::kWrites);
  if (ops_.places().live(OpKind::kStore) == 0) passed_ = NodeId{};  // nobody waits for a parent
  std::size_t looks = kMostLooks;
  bool from_head = passed_ == NodeId{};
  while (!stands_ && ops_.places().live(OpKind::kStore) < kMostStores && ops_.places().has_room(OpKind::kStore)) {
    if (!ops_.budget().has_left()) {
      ops_.budget().fall_short();
      break;
    }
    const std::vector<NodeId> nodes = next_nodes();
    if (!nodes.empty()) {
      if (hash(nodes)) begin(nodes, nullptr);
      continue;
    }
    const bool is_end = passed_ == NodeId{};
    if ((is_end && std::exchange(from_head, true)) || --looks == 0) break;
  }
  const TimePoint now = clock_.now();
  for (std::size_t i = queue_.size(); i > 0; --i) {
    Op* const op = ops_.find(queue_.front());
    if (is_retired(*op->store)) {
      cancel(*op);
    } else if (op->store->not_before <= now) {
      submit(*op);
    } else {
      queue_.push_back(op->id);
    }
    queue_.pop_front();
  }
}

std::optional<TimePoint> StoreBacklog::next_retry() const {
  std::optional<TimePoint> first;
  for (const OpId id : queue_) {
    const TimePoint due = ops_.find(id)->store->not_before;
    first = std::min(first.value_or(due), due);
  }
  return first;
}

HostSpace StoreBacklog::space_of(NodeId node) const {
  const NodeView view = tree_.view(node);
  HostSpace space;
  for (const ComponentKind c : kAllComponents) space += host_->space_of(c, view.host[index_of(c)].size());
  return space;
}

// Keys once hashed are kept, so the same nodes come up again and are ready in the end. What a node continues comes
// first: pieces of that may be split, and the node itself, which is a piece at most, stays whole.
bool StoreBacklog::hash(const std::vector<NodeId>& nodes) {
  WorkBudget& budget = ops_.budget();
  for (const NodeId node : nodes) {
    for (const NodeId at : {tree_.view(node).parent, node}) {
      while (const std::uint64_t hashed = tree_.keys().hash(at, budget.piece())) {
        budget.spend(hashed);
        if (!budget.has_left()) return false;
      }
    }
  }
  return true;
}

NodeId StoreBacklog::head_of(NodeId node) {
  const NodeView view = tree_.view(node);
  const std::uint64_t most = ops_.budget().piece();
  return view.end - view.begin <= most ? node : tree_.settle({node, view.begin + most});
}

// One node may always be under way, whatever detached storages keep: the next storage must not be shut out.
std::vector<NodeId> StoreBacklog::next_nodes() {
  const HostSpace total = host_->total();
  const HostSpace limit{total.blocks * kHostPercent / 100, total.markers * kHostPercent / 100};
  HostSpace kept = kept_ + kept_by_abandoned_;
  std::uint64_t bytes = 0, pages = 0;
  std::vector<NodeId> nodes;
  std::optional<NamespaceId> space;
  const std::vector<NodeId> look = tree_.backlog().unstored(epoch_, kLookAhead, passed_);
  ops_.budget().spend(look.size() / 8 + 1);
  const std::size_t most = singles_ > 0 ? 1 : config_.store_batch_nodes;
  for (const NodeId whole : look) {
    if (space && tree_.view(whole).space != *space) continue;
    const NodeId node = head_of(whole);
    const NodeView view = tree_.view(node);
    const NodeView parent = tree_.view(view.parent);
    const bool is_defect = defect(Defect::kChildBeforeParent);
    if (parent.rests && !is_defect) {
      tree_.backlog().end_storing(node, true);
      arm_rest();
      continue;
    }
    const bool waits = (parent.is_storing || parent.is_unstored) && !is_defect;
    if (waits && std::find(nodes.begin(), nodes.end(), view.parent) == nodes.end()) continue;
    kept += space_of(node);
    const bool is_only_one = kept_.is_none() && nodes.empty();
    if (!kept.fits_in(limit) && !is_only_one) return nodes;
    space = view.space;
    nodes.push_back(node);
    bytes += bytes_of(view);
    pages += view.end - view.begin;
    if (nodes.size() >= most || bytes >= kStoreBytes || pages >= ops_.budget().piece()) break;
  }
  // If all of these wait for their parents, those behind them may not.
  if (nodes.empty()) passed_ = look.size() == kLookAhead ? look.back() : NodeId{};
  return nodes;
}

std::uint64_t StoreBacklog::page_bytes(const NodeView& view) const {
  std::uint64_t bytes = 0;
  for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
    if (!model_.has(c) || !is_published(view, c)) continue;
    for (const PoolSpec* pool : model_.pools_of(c)) bytes += pool->page_bytes();
  }
  return bytes;
}

std::uint64_t StoreBacklog::bytes_of(const NodeView& view) const {
  std::uint64_t bytes = page_bytes(view) * (view.end - view.begin);
  if (!model_.has(ComponentKind::kMamba) || !is_published(view, ComponentKind::kMamba)) return bytes;
  for (const PoolSpec* pool : model_.pools_of(ComponentKind::kMamba)) bytes += pool->page_bytes();
  return bytes;
}

// Locks, keys and leases are taken here and not when the write is submitted: what is locked, hashed and leased decides
// what the tree merges and what eviction frees, and the time of a retry is this rank's own.
void StoreBacklog::begin(const std::vector<NodeId>& nodes, const Store* before) {
  const LockParts parts{.full = true, .swa = true, .mamba = true, .own_pages = true};
  auto store = std::make_unique<Store>();
  store->epoch = epoch_;
  store->taken_before = before != nullptr ? before->taken_before : taken_;
  store->not_before = TimePoint::min();
  if (before != nullptr) {
    store->attempts = before->attempts;
    store->not_before = clock_.now() + retry_delay(config_.backup_retry_delay, before->attempts);
  } else if (singles_ > 0) {
    --singles_;
  }
  store->request.scope = spaces_.scope(tree_.view(nodes.front()).space);
  store->request.durable = config_.storage_durable;
  for (const NodeId node : nodes) {
    store->pieces.push_back({node, tree_.view(node).begin, tree_.lock(node, Tier::kHost, parts)});
    store->space += space_of(node);
    tree_.backlog().begin_storing(node);
    add_groups(*store, store->pieces.size() - 1);
  }
  kept_ += store->space;
  ops_.budget().spend(store->leases.size() + nodes.size());
  Op& op = ops_.add(OpKind::kStore);
  op.store = std::move(store);
  queue_.push_back(op.id);
}

// Within a group the anchor comes last. What a page needs beside its KV goes with it; a state, with the last page.
void StoreBacklog::add_groups(Store& store, std::size_t index) {
  Store::Piece& piece = store.pieces[index];
  const std::span<const PageKey> keys = tree_.keys().of_edge(piece.node);
  const NodeView view = tree_.view(piece.node);
  // The seed of the chain is no page.
  const PageKey first_parent = view.begin > 0 ? tree_.keys().last(view.parent).value_or(PageKey{}) : PageKey{};
  piece.has_window = model_.has(ComponentKind::kSwa) && is_published(view, ComponentKind::kSwa);
  piece.has_state = model_.has(ComponentKind::kMamba) && is_published(view, ComponentKind::kMamba);
  const std::uint64_t per_page = std::max<std::uint64_t>(1, page_bytes(view));
  const std::size_t step = std::max<std::size_t>(1, static_cast<std::size_t>(config_.store_group_bytes / per_page));
  for (std::size_t from = 0; from < keys.size(); from += step) {
    const std::size_t to = std::min(keys.size(), from + step);
    PageGroup group;
    const auto add = [&](ComponentKind c, std::size_t page, HostSlot slot) {
      for (const PoolSpec* pool : model_.pools_of(c)) {  // sidecars first, the anchor last
        WriteItem item{pool->name, keys[page], {}, page > 0 ? keys[page - 1] : first_parent};
        host_->append_page(pool->name, slot, item.payload);
        store.bytes += payload_bytes(item.payload);
        group.items.push_back(std::move(item));
      }
      if (defect(Defect::kWriteWithoutLease)) return;
      if (const auto generation = host_->add_lease(c, slot)) store.leases.push_back({c, slot.v, *generation});
    };
    const auto& window = view.host[index_of(ComponentKind::kSwa)];
    for (std::size_t i = from; piece.has_window && i < to; ++i) add(ComponentKind::kSwa, i, window[i]);
    if (piece.has_state && to == keys.size()) {
      add(ComponentKind::kMamba, to - 1, view.host[index_of(ComponentKind::kMamba)].front());
    }
    const auto& full = view.host[index_of(ComponentKind::kFull)];
    for (std::size_t i = from; i < to; ++i) add(ComponentKind::kFull, i, full[i]);
    store.request.groups.push_back(std::move(group));
    store.groups.push_back({index, to - from});
  }
}

void StoreBacklog::submit(Op& op) {
  Store& store = *op.store;
  ++store.attempts;
  store.submitted = clock_.now();
  auto complete = ops_.completion_for(op.id);
  const Status submitted =
      storage_->submit_write(std::move(store.request), [complete](WriteResult done) { complete(std::move(done)); });
  if (!submitted.is_ok()) complete(WriteResult{std::vector<Status>(store.groups.size(), submitted)});
}

// Storage was detached, or a flush came, before the write was submitted. Ends like any other write, by a completion: on
// another rank it may have been submitted in time.
void StoreBacklog::cancel(Op& op) {
  for (Store::Group& group : op.store->groups) group.pages = 0;
  ops_.completion_for(op.id)(WriteResult{{cancelled("storage was detached, or the cache flushed")}});
}

bool StoreBacklog::is_retired(const Store& store) const {
  return tree_.spaces().is_retired(tree_.view(store.pieces.front().node).space);
}

bool StoreBacklog::is_current(const Op& op) const {
  return storage_ && !op.is_abandoned && op.store->epoch == epoch_ && !is_retired(*op.store);
}

// Three planes of a bit for each group: stored; settled, which is stored or not to be tried again; not refused.
OutcomeBits StoreBacklog::outcome_of(const Op& op) const {
  const auto* done = std::get_if<WriteResult>(&op.completion);
  const std::size_t groups = op.store->groups.size();
  const std::size_t words = (groups + 63) / 64;
  OutcomeBits bits(3 * words, 0);
  if (!done || done->groups.size() < groups) return bits;
  for (std::size_t i = 0; i < groups; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    const StatusCode code = done->groups[i].code();
    const bool is_refused = code == StatusCode::kInvalidArgument;
    if (code == StatusCode::kOk) bits[i / 64] |= bit;
    if (code == StatusCode::kOk || code == StatusCode::kUnsupported || is_refused) bits[words + i / 64] |= bit;
    if (!is_refused) bits[2 * words + i / 64] |= bit;
  }
  return bits;
}

StoreBacklog::Fate StoreBacklog::fate_of(const OutcomeBits& bits, std::size_t group, std::size_t groups) {
  const std::size_t words = (groups + 63) / 64;
  const auto has = [&](std::size_t plane) {
    const std::size_t word = plane * words + group / 64;
    return word < bits.size() && ((bits[word] >> (group % 64)) & 1) != 0;
  };
  if (has(0)) return Fate::kStored;
  if (!has(1)) return Fate::kFailed;
  return has(2) ? Fate::kDeclined : Fate::kRefused;
}

void StoreBacklog::done(Op& op, const OutcomeBits& bits) {
  Store& store = *op.store;
  host_->drop_leases(store.leases);
  ops_.budget().spend(store.leases.size() / 16 + store.pieces.size());
  store.leases.clear();
  const bool counts_now = is_current(op);
  const bool retries = counts_now && store.attempts <= config_.backup_retries;
  std::vector<Fate> fates(store.pieces.size(), Fate::kStored);
  bool took = false, all_refused = store.pieces.size() > 1;
  for (std::size_t i = 0; i < store.groups.size(); ++i) {
    const Fate fate = fate_of(bits, i, store.groups.size());
    Fate& worst = fates[store.groups[i].piece];
    worst = std::max(worst, fate);
    took = took || fate != Fate::kFailed;
    all_refused = all_refused && fate == Fate::kRefused;
  }
  if (all_refused) {
    // One of them may be what storage can never take: each goes by itself.
    fates.assign(fates.size(), Fate::kPutBack);
    singles_ += fates.size();
  }
  count(store, bits, fates, retries);
  std::vector<NodeId> again;
  for (std::size_t i = 0; i < store.pieces.size() && !op.is_abandoned; ++i) {
    settle(op, store.pieces[i], fates[i], retries, again);
  }
  if (took && counts_now) {
    ++taken_;
    patience_ = kPatience;
    next_rest_ = kShortestRest;
  }
  if (!again.empty()) {
    probe(Probe::kBackupRetried);
    begin(again, &store);
  } else if (counts_now && std::find(fates.begin(), fates.end(), Fate::kFailed) != fates.end()) {
    stands_ = stands_ || taken_ == store.taken_before;
    arm_rest();
  }
  release(store, op.is_abandoned);
}

// Each page once for all attempts up to a rest.
void StoreBacklog::count(const Store& store, const OutcomeBits& bits, const std::vector<Fate>& fates, bool retries) {
  std::uint64_t pages = 0;
  for (std::size_t i = 0; i < store.groups.size(); ++i) {
    const Store::Group& group = store.groups[i];
    const Fate piece = fates[group.piece];
    if (piece == Fate::kPutBack || (piece == Fate::kFailed && retries)) continue;
    switch (fate_of(bits, i, store.groups.size())) {
      case Fate::kStored: pages += piece == Fate::kFailed ? 0 : group.pages; break;
      case Fate::kDeclined: counters_.store_declined += group.pages, probe(Probe::kBackupDeclined); break;
      default: counters_.store_failed += group.pages, probe(Probe::kBackupLost); break;
    }
  }
  counters_.stored += pages;
  const bool all_stored = std::all_of(fates.begin(), fates.end(), [](Fate fate) { return fate == Fate::kStored; });
  if (all_stored && pages > 0) metrics_.backed_up(pages, store.bytes, clock_.now() - store.submitted);
}

// Is all that the node has on the host now in the request? What came to the host since (a state at a fork, for one) is
// for another write.
bool StoreBacklog::was_asked(const Store::Piece& piece, NodeId at) const {
  const NodeView view = tree_.view(at);
  const auto is_on_host = [&](ComponentKind c) {
    return !view.host[index_of(c)].empty() && !view.host_pending[index_of(c)];
  };
  const bool window = !is_on_host(ComponentKind::kSwa) || piece.has_window;
  const bool state = !is_on_host(ComponentKind::kMamba) || (piece.has_state && at == piece.node);
  if ((window && state) || defect(Defect::kOutrunStateStored)) return true;
  probe(Probe::kBackupOutrun);
  return false;
}

void StoreBacklog::settle(const Op& op, const Store::Piece& piece, Fate fate, bool retries,
                          std::vector<NodeId>& again) {
  const bool counts_now = is_current(op);
  for (const NodeId at : nodes_of(piece)) {
    if (fate == Fate::kFailed && retries) {
      again.push_back(at);
      continue;
    }
    if (counts_now && fate == Fate::kStored && was_asked(piece, at)) tree_.backlog().set_stored(at, epoch_);
    const bool is_unwanted = fate == Fate::kDeclined || fate == Fate::kRefused;
    if (counts_now && is_unwanted && was_asked(piece, at)) tree_.backlog().set_declined(at, epoch_);
    tree_.backlog().end_storing(at, counts_now && fate == Fate::kFailed);
  }
}

// The nodes of a piece as they are now, parents before children.
std::vector<NodeId> StoreBacklog::nodes_of(const Store::Piece& piece) const {
  std::vector<NodeId> nodes;
  for (NodeId at = piece.node; tree_.view(at).end > piece.begin; at = tree_.view(at).parent) nodes.push_back(at);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

void StoreBacklog::release(Store& store, bool is_abandoned) {
  for (Store::Piece& piece : store.pieces) tree_.unlock(piece.lock);
  (is_abandoned ? kept_by_abandoned_ : kept_) -= std::exchange(store.space, {});
}

void StoreBacklog::arm_rest() {
  if (rest_timer_ != OpId{}) return;
  rest_timer_ = ops_.add_timer(clock_.now() + next_rest_).id;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
}

void StoreBacklog::rest_is_over() {
  rest_timer_ = OpId{};
  stands_ = false;
  if (!defect(Defect::kRestForgotten)) tree_.backlog().wake_resting();
}

void StoreBacklog::unlock_abandoned() {
  if (ops_.places().abandoned(OpKind::kStore) == 0) return;
  for (auto& [id, op] : ops_.all()) {
    if (op.kind != OpKind::kStore || !op.is_abandoned) continue;
    for (Store::Piece& piece : op.store->pieces) tree_.unlock(piece.lock);
  }
}

// Between two writes, too: the next one begins at the end of this poll.
bool StoreBacklog::may_wait() const {
  const bool writes = ops_.places().live(OpKind::kStore) > 0 || (!stands_ && tree_.backlog().waiting() > 0);
  return storage_ != nullptr && patience_ > 0 && writes;
}

bool StoreBacklog::takes_soon() const {
  return storage_ != nullptr && !stands_ && patience_ > 0 && tree_.backlog().waiting() < kSoon;
}

bool StoreBacklog::is_soon(NodeId node) const {
  if (stands_) return false;
  const std::vector<NodeId> head = tree_.backlog().unstored(epoch_, kSoon);
  return std::find(head.begin(), head.end(), node) != head.end();
}

void StoreBacklog::count_wait() {
  probe(Probe::kBackupWaits);
  ++counters_.store_waits;
  if (patience_ > 0) --patience_;
}

}  // namespace larder
