// Storage -> host (step 2 of a prefix's life): which pages exist jointly, read them, adopt the largest restore point
// that fully arrived. A prefetch owns its slots from reservation to adoption and outlives the request that asked for
// it.
#include <algorithm>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/cache_impl.h"
#include "controller/joint.h"
#include "key/page_key.h"

namespace larder {

TreePosition CacheImpl::position_at(NodeId node, std::uint64_t pages) const {
  while (pages > 0 && tree_.view(node).begin >= pages) node = tree_.view(node).parent;
  return {node, pages};
}

// A control run that keeps a component off the host must not get it from storage either.
bool CacheImpl::may_prefetch() const {
  const auto keeps = [&](ComponentKind c) { return !model_.has(c) || tier_keeps(c); };
  return storage_ && config_.enabled && std::all_of(kAllComponents.begin(), kAllComponents.end(), keeps);
}

// Every policy has an end: a storage that hangs must neither hang a request nor keep its path in the tiers for good.
Nanos CacheImpl::wait_limit(std::uint64_t tokens) const {
  switch (config_.prefetch_policy) {
    case PrefetchPolicy::kBestEffort: return config_.prefetch_timeout_max;  // nobody waits; the locks end
    case PrefetchPolicy::kWaitComplete: return config_.prefetch_wait_limit;
    case PrefetchPolicy::kTimeout: break;
  }
  return prefetch_deadline(config_, tokens);
}

void CacheImpl::maybe_prefetch(Request& r, bool forced) {
  r.fetch_refused = false;
  const std::uint64_t limit = reusable_pages(r);
  const std::span<const TokenId> tokens = std::span<const TokenId>(r.tokens).first(limit * page_size());
  const MatchResult match = tree_.match(r.space, tokens);
  const std::uint64_t base = (defect(Defect::kEvictedCountsAsCached) ? match.walked : match.any.at).pages;
  r.known = std::max(r.known, base);
  if (limit - base < least_gain()) return;
  if (join_prefetch(r, tokens, base)) return;
  // What it holds is not in its own way.
  if ((!forced && prefetch_blocks_ - r.hold_blocks >= prefetch_capacity()) || !ops_.has_room(OpKind::kExists)) {
    r.fetch_refused = true;
    probe(Probe::kPrefetchRefused);
    ++counters_.prefetch_refused;
    return;
  }
  auto p = std::make_unique<Prefetch>();
  p->requests = {r.id};
  p->space = r.space;
  p->space_use = spaces_.use(r.space);
  p->tokens.assign(tokens.begin(), tokens.end());
  p->pages = limit;
  p->base = base;
  p->tree_full = p->full_from = std::min(match.full_any_pages, limit);
  p->key_from = base - std::min<std::uint64_t>(base, model_.window_pages());
  p->epoch = backlog_.epoch();
  collect_keys(*p, match.walked);
  const NodeId held = tree_.settle(position_at(match.walked.node, p->full_from));
  p->device_lock = tree_.lock(held, Tier::kDevice, LockParts{.full = true, .swa = false, .mamba = false});
  p->host_lock = tree_.lock(held, Tier::kHost, LockParts{.full = true, .swa = false, .mamba = false});
  start_prefetch(r, std::move(p));
}

void CacheImpl::start_prefetch(Request& r, std::unique_ptr<Prefetch> p) {
  ++r.fetches;
  r.asked_from = std::min(r.asked_from, p->base);
  r.room_needed = 0;
  const bool waits = config_.prefetch_policy != PrefetchPolicy::kBestEffort;
  // "All of it" has one limit for all fetches of a request.
  p->begun = config_.prefetch_policy == PrefetchPolicy::kWaitComplete ? r.begun : clock_.now();
  p->urgency = waits ? Urgency::kWaiting : Urgency::kSpeculative;
  p->cancel = std::make_shared<std::atomic<bool>>(false);
  Op& op = ops_.add(OpKind::kExists);
  if (waits) {
    r.waits_for = op.id;
    r.phase = RequestPhase::kPrefetching;
  }
  Op& timer = ops_.add_timer(p->begun + wait_limit(0));
  timer.guards = op.id;
  if (waits) p->deadline = timer.due;
  p->timer = timer.id;
  op.prefetch = std::move(p);
  submit_exists(op, spaces_.scope(r.space));
}

// Another request is fetching the same pages: one read serves both. Only the same reusable prompt, or the head of it
// where every page is a restore point: of a longer one, storage brings the state and the window of its own end.
bool CacheImpl::join_prefetch(Request& r, std::span<const TokenId> tokens, std::uint64_t base) {
  const bool any_head = !model_.has(ComponentKind::kSwa) && !model_.has(ComponentKind::kMamba);
  const bool waits = config_.prefetch_policy != PrefetchPolicy::kBestEffort;
  const std::uint64_t limit = tokens.size() / page_size();
  for (auto& [id, op] : ops_.all()) {
    if ((op.kind != OpKind::kExists && op.kind != OpKind::kRead) || !op.prefetch) continue;
    Prefetch& p = *op.prefetch;
    const bool is_live = !p.requests.empty() && p.device_lock.held && p.epoch == backlog_.epoch();
    const bool serves = p.space == r.space && p.base <= base && (p.urgency == Urgency::kWaiting) == waits &&
                        (p.pages == limit || (any_head && p.pages > limit)) &&
                        (op.kind == OpKind::kExists || p.target > base);
    if (!is_live || !serves || !std::equal(tokens.begin(), tokens.end(), p.tokens.begin())) continue;
    ++r.fetches;
    r.asked_from = std::min(r.asked_from, base);
    r.room_needed = 0;
    probe(Probe::kPrefetchShared);
    ++counters_.prefetch_shared;
    p.requests.push_back(r.id);
    if (op.kind == OpKind::kRead) r.known = std::max(r.known, std::min(p.target, limit));
    if (waits) {
      r.waits_for = op.id;
      r.phase = RequestPhase::kPrefetching;
    }
    return true;
  }
  return false;
}

// An aborted request wants nothing any more. What storage has not begun it need not begin, if nobody else wants it; on
// each rank it then answers as it may, and the ranks agree on what came.
void CacheImpl::leave_prefetch(RequestId id) {
  for (auto& [op_id, op] : ops_.all()) {
    if ((op.kind != OpKind::kExists && op.kind != OpKind::kRead) || !op.prefetch) continue;
    Prefetch& p = *op.prefetch;
    if (std::erase(p.requests, id) == 0 || !p.requests.empty()) continue;
    // relaxed: a flag that carries nothing else.
    p.cancel->store(true, std::memory_order_relaxed);
  }
}

// Keys of the walked path come from the tree (hashed once per node), the rest continues its chain.
void CacheImpl::collect_keys(Prefetch& p, const TreePosition& walked) {
  const std::uint64_t known = std::min(walked.pages, p.pages);
  std::vector<PageKey> path(known > p.key_from ? known - p.key_from : 0);
  std::optional<PageKey> last;
  NodeId node = walked.node;
  for (std::uint64_t end = known; end > 0;) {
    const NodeView view = tree_.view(node);
    const std::span<const PageKey> keys = tree_.page_keys(node);
    if (end == known) last = keys[end - 1 - view.begin];
    for (std::uint64_t i = std::max(view.begin, p.key_from); i < end; ++i) path[i - p.key_from] = keys[i - view.begin];
    if (view.begin <= p.key_from) break;
    end = view.begin;
    node = view.parent;
  }
  if (known == 0) last = tree_.last_key(tree_.root(p.space));
  PageKeyChain rest(page_size(), defect(Defect::kPrefetchMisanchored) ? std::nullopt : last);
  rest.append_pages(std::span<const TokenId>(p.tokens).subspan(known * page_size()));
  p.keys = std::move(path);
  // key_from <= base <= known: the chain's keys follow the path's without a gap.
  p.keys.insert(p.keys.end(), rest.keys().begin(), rest.keys().end());
}

void CacheImpl::submit_exists(Op& op, std::shared_ptr<const StoreScope> scope) {
  ExistsRequest request;
  request.scope = std::move(scope);
  request.keys = op.prefetch->keys;
  for (const PoolSpec& pool : model_.pools) request.pools.push_back(pool.name);
  request.terms = {op.prefetch->urgency, op.prefetch->deadline, op.prefetch->cancel};
  auto complete = ops_.completion_for(op.id);
  const Status submitted =
      storage_->submit_exists(std::move(request), [complete](ExistsResult done) { complete(std::move(done)); });
  if (!submitted.is_ok()) complete(ExistsResult{submitted, {}});
}

// The tree's own pages count, too: a state may be in storage while its KV is on the host. One entry per pool, p.pages
// long. `node` may end beyond them.
void CacheImpl::add_tree_presence(const Prefetch& p, NodeId node, std::vector<PoolPresence>& presence) const {
  std::array<std::vector<std::size_t>, kComponentCount> of;  // entries of each component
  for (const PoolSpec& pool : model_.pools) {
    auto it = std::find_if(presence.begin(), presence.end(), [&](const auto& x) { return x.pool == pool.name; });
    if (it == presence.end()) it = presence.insert(it, PoolPresence{pool.name, {}});
    it->present.resize(p.pages, false);
    of[index_of(pool.component)].push_back(static_cast<std::size_t>(it - presence.begin()));
  }
  const auto set = [&](ComponentKind c, std::uint64_t from, std::uint64_t to) {
    to = std::min(to, p.pages);
    for (const std::size_t entry : of[index_of(c)]) {
      for (std::uint64_t i = from; i < to; ++i) presence[entry].present[i] = true;
    }
  };
  set(ComponentKind::kFull, 0, p.tree_full);
  for (NodeView view = tree_.view(node); view.end > 0; view = tree_.view(view.parent)) {
    const auto published = [&](ComponentKind c) {
      const std::size_t i = index_of(c);
      return (!view.device[i].empty() && !view.device_pending[i]) || (!view.host[i].empty() && !view.host_pending[i]);
    };
    if (published(ComponentKind::kMamba)) set(ComponentKind::kMamba, view.end - 1, view.end);
    if (published(ComponentKind::kSwa)) set(ComponentKind::kSwa, view.begin, view.end);
  }
}

// A window or a state of storage's can be added to a page only where the host has full of that page, or storage does.
void CacheImpl::drop_what_cannot_stand(const Prefetch& p, std::vector<PoolPresence>& presence) const {
  const std::uint64_t end = std::min(p.tree_full, p.pages);
  if (p.key_from >= end) return;
  std::vector<PageLocation> full;
  tree_.locate(p.device_lock.node, ComponentKind::kFull, p.key_from, end, full);
  const auto is_full = [&](const PoolPresence& of) {
    const PoolSpec* pool = model_.find_pool(of.pool);
    return pool != nullptr && pool->component == ComponentKind::kFull;
  };
  for (std::uint64_t page = p.key_from; page < end; ++page) {
    if (full[page - p.key_from].host.valid()) continue;
    const bool comes = std::all_of(presence.begin(), presence.end(),
                                   [&](const PoolPresence& of) { return !is_full(of) || of.present[page]; });
    if (comes) continue;
    for (PoolPresence& of : presence) {
      if (!is_full(of)) of.present[page] = false;
    }
  }
}

// This rank's answer to an existence query: the restore points that are possible.
OutcomeBits CacheImpl::exists_outcome(const Op& op) const {
  const Prefetch& p = *op.prefetch;
  const auto* done = std::get_if<ExistsResult>(&op.completion);
  if (!done || !done->status.is_ok() || !p.device_lock.held) return {};
  std::vector<PoolPresence> presence;
  for (const PoolPresence& found : done->presence) {
    PoolPresence absolute{found.pool, Presence(p.pages, false)};
    for (std::size_t i = 0; i < found.present.size() && p.key_from + i < p.pages; ++i) {
      absolute.present[p.key_from + i] = found.present[i];
    }
    presence.push_back(std::move(absolute));
  }
  drop_what_cannot_stand(p, presence);
  add_tree_presence(p, p.device_lock.node, presence);
  return restore_candidates(model_, presence, p.base, p.pages);
}

// This rank's answer to a read: the restore points that arrived. What storage promised and what was not read for want
// of use (the window and the state of an earlier point) does not count.
OutcomeBits CacheImpl::read_outcome(const Op& op) {
  const Prefetch& p = *op.prefetch;
  const auto* done = std::get_if<ReadResult>(&op.completion);
  if (!done || done->items.size() != p.items.size()) return {};
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model_.pools) {
    PoolPresence& entry = presence.emplace_back(PoolPresence{pool.name, Presence(p.target, false)});
    // What the tree had when the slots were reserved.
    const std::uint64_t window = p.target - model_.window_pages_at(p.target);
    const bool has_state = p.slots[index_of(ComponentKind::kMamba)].empty();
    const std::array<std::uint64_t, kComponentCount> from = {0, window, p.target - 1};
    const std::array<std::uint64_t, kComponentCount> to = {std::min(p.full_from, p.target), p.swa_from,
                                                           p.target - (has_state ? 0 : 1)};
    const std::size_t c = index_of(pool.component);
    for (std::uint64_t i = from[c]; i < to[c]; ++i) entry.present[i] = true;
  }
  for (std::size_t i = 0; i < p.items.size(); ++i) {
    if (done->items[i].code() == StatusCode::kCorrupt) ++counters_.corrupt, probe(Probe::kPrefetchCorrupt);
    const bool is_missed = !done->items[i].is_ok();
    if (is_missed &&
        !(defect(Defect::kSidecarMissIgnored) && p.items[i].first != model_.anchor(ComponentKind::kFull).name))
      continue;
    const auto it = std::find_if(presence.begin(), presence.end(),
                                 [&](const PoolPresence& x) { return x.pool == p.items[i].first; });
    it->present[p.items[i].second] = true;
  }
  return restore_candidates(model_, presence, p.base, p.target);
}

// What is to be read for p.target, which starts where.
ComponentCounts CacheImpl::prefetch_counts(Prefetch& p) const {
  ComponentCounts counts{};
  const std::uint64_t window = p.target - model_.window_pages_at(p.target);
  const std::uint64_t end = std::min(p.tree_full, p.target);
  const auto is_there = [](const PageLocation& at) { return at.device.valid() || at.host.valid(); };
  std::vector<PageLocation> swa, full;
  // Window: from its first page that the tree lacks to its end, in one run.
  p.swa_from = p.target;
  if (model_.has(ComponentKind::kSwa)) {
    if (window < end) tree_.locate(p.device_lock.node, ComponentKind::kSwa, window, end, swa);
    const auto gap = std::find_if_not(swa.begin(), swa.end(), is_there);
    p.swa_from = window + static_cast<std::uint64_t>(gap - swa.begin());
    counts[index_of(ComponentKind::kSwa)] = static_cast<std::uint32_t>(p.target - p.swa_from);
  }
  if (model_.has(ComponentKind::kMamba)) {
    bool have = false;
    if (p.target <= p.tree_full) {
      const NodeView view = tree_.view(position_at(p.device_lock.node, p.target).node);
      const std::size_t m = index_of(ComponentKind::kMamba);
      have = view.end == p.target && (!view.device[m].empty() || !view.host[m].empty());
    }
    counts[index_of(ComponentKind::kMamba)] = have ? 0 : 1;
  }
  // On the host, windows and states stand on full (I3 of the tree): from the first page where one is to be added and
  // the host has none, full comes as well.
  p.full_from = end;
  const std::uint64_t first = std::min(p.swa_from, p.target - counts[index_of(ComponentKind::kMamba)]);
  if (first < end) tree_.locate(p.device_lock.node, ComponentKind::kFull, first, end, full);
  for (std::uint64_t page = first; page < end && p.full_from == end; ++page) {
    const bool adds_window = page >= p.swa_from && !is_there(swa[page - window]);
    const bool adds_state = page + 1 == p.target && counts[index_of(ComponentKind::kMamba)] == 1;
    if ((adds_window || adds_state) && !full[page - first].host.valid()) p.full_from = page;
  }
  counts[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(p.target - p.full_from);
  return counts;
}

// What comes is added to the host's copy of the pages before it, and counts on the window and the state that are there
// already: these must not go while room is made for it. (On the device they may: what running requests need there was
// promised to them.)
void CacheImpl::hold_host_path(Prefetch& p, const ComponentCounts& counts) {
  const NodeId held = tree_.settle(position_at(p.device_lock.node, p.full_from));
  const bool has_state = p.full_from == p.target && counts[index_of(ComponentKind::kMamba)] == 0;
  tree_.unlock(p.host_lock);
  p.host_lock = tree_.lock(held, Tier::kHost,
                           LockParts{.full = true,
                                     .swa = model_.has(ComponentKind::kSwa),
                                     .mamba = has_state && model_.has(ComponentKind::kMamba)});
}

// Of full, in front of what it adds (hold_host_path): these stay, whatever else goes.
std::uint64_t CacheImpl::held_host_blocks(const Prefetch& p) const {
  std::uint64_t pages = 0;
  NodeView view = tree_.view(p.host_lock.node);
  for (; view.end > 0; view = tree_.view(view.parent)) pages += view.host[index_of(ComponentKind::kFull)].size();
  return pages * host_->blocks_per_slot(ComponentKind::kFull);
}

// A request that waits for all of its prefetch also waits for the host pages that running requests will give back,
// rather than fetch a shorter prefix now. (Where all of it can never fit, it takes what fits.)
bool CacheImpl::host_room_will_come() const {
  return config_.prefetch_policy == PrefetchPolicy::kWaitComplete && running_ > 0;
}

// Takes host slots for the largest restore point that fits. False: none does, and room_needed says what was tried last;
// or, where that is 0, nothing is worth fetching.
bool CacheImpl::reserve_prefetch(Prefetch& p, const OutcomeBits& bits) {
  constexpr int kTries = 8;  // each evicts; a host that is this full is better left alone
  std::uint64_t upto = p.pages;
  for (int i = 0; i < kTries; ++i) {
    p.target = largest_candidate(bits, p.base, upto);
    if (p.target < p.base + least_gain()) return false;
    const ComponentCounts counts = prefetch_counts(p);
    hold_host_path(p, counts);
    std::uint64_t blocks = 0;
    for (const ComponentKind c : kAllComponents)
      blocks += std::uint64_t{counts[index_of(c)]} * host_->blocks_per_slot(c);
    if (blocks <= host_->total_blocks() && host_room_.take(counts, false, p.slots) == HostAnswer::kThere) {
      p.blocks = blocks;
      prefetch_blocks_ += blocks;
      return true;
    }
    p.room_needed = blocks;
    p.waits_for_room = i == 0 && host_room_will_come() &&
                       blocks + held_host_blocks(p) + backlog_.kept_by_abandoned() <= host_->total_blocks();
    if (p.waits_for_room) return false;
    upto = p.base + (p.target - p.base) / 2;
  }
  return false;
}

void CacheImpl::exists_done(Op& op, const OutcomeBits& bits) {
  std::unique_ptr<Prefetch> p = std::move(op.prefetch);
  const std::uint64_t found = largest_candidate(bits, p->base, p->pages);
  for (const RequestId id : p->requests) {
    Request* r = find(id);
    if (!r) continue;
    // For one that waits, the newest answer counts: what is not there any more is not worth asking for again.
    const std::uint64_t own = std::min(found, reusable_pages(*r));
    r->known = r->waits_for == op.id ? own : std::max(r->known, own);
  }
  // An answer that comes after the deadline finds its path unlocked: too late to build on.
  const bool wanted = storage_ && !p->requests.empty() && p->device_lock.held;
  if (!wanted || !reserve_prefetch(*p, bits)) {
    if (wanted && p->room_needed > 0) prefetch_without_room(op.id, *p);
    end_prefetch(op.id, *p);
    return;
  }
  Op& read = ops_.add(OpKind::kRead);
  for (const RequestId id : p->requests) {
    if (Request* r = find(id); r && r->waits_for == op.id) r->waits_for = read.id;
  }
  if (Op* const timer = ops_.find(p->timer)) {
    timer->guards = read.id;
    ops_.set_due(*timer, p->begun + wait_limit((p->target - p->base) * page_size()));
    if (p->urgency == Urgency::kWaiting) p->deadline = timer->due;
  }
  read.prefetch = std::move(p);
  submit_read(read);
}

// There was something to fetch, and no room for it.
void CacheImpl::prefetch_without_room(OpId op, const Prefetch& p) {
  for (const RequestId id : p.requests) {
    Request* r = find(id);
    if (!r) continue;
    if (p.waits_for_room) {
      if (r->waits_for != op) continue;
      r->fetch_refused = true;  // start() asks again, and this one does not count
      --r->fetches;
      wait_for_turn(*r);  // but not for ever
    } else {
      r->room_needed = p.room_needed;
    }
  }
}

ReadRequest CacheImpl::build_read(Prefetch& p) {
  ReadRequest request;
  request.scope = spaces_.scope(p.space);
  request.terms = {p.urgency, p.deadline, p.cancel};
  const auto add = [&](const PoolSpec& pool, std::uint64_t page, HostSlot slot) {
    ReadItem item{pool.name, p.keys[page - p.key_from], {}};
    host_->append_page(pool.name, slot, item.payload);
    p.bytes += payload_bytes(item.payload);
    request.items.push_back(std::move(item));
    p.items.emplace_back(pool.name, page);
  };
  if (p.full_from < std::min(p.tree_full, p.target)) probe(Probe::kFullReadAgain);
  const std::array<std::uint64_t, kComponentCount> first = {p.full_from, p.swa_from, p.target - 1};
  for (const ComponentKind c : kAllComponents) {
    const std::vector<HostSlot>& slots = p.slots[index_of(c)];
    for (const PoolSpec* pool : model_.has(c) ? model_.pools_of(c) : std::vector<const PoolSpec*>{}) {
      for (std::size_t i = 0; i < slots.size(); ++i) add(*pool, first[index_of(c)] + i, slots[i]);
    }
    for (const HostSlot slot : slots) {
      if (defect(Defect::kReadWithoutLease)) continue;
      if (host_->add_lease(c, slot).is_ok()) p.leases.push_back({c, slot.v, host_->generation(c, slot)});
    }
  }
  return request;
}

void CacheImpl::submit_read(Op& op) {
  op.prefetch->read_begun = clock_.now();
  ReadRequest request = build_read(*op.prefetch);
  auto complete = ops_.completion_for(op.id);
  const Status submitted =
      storage_->submit_read(std::move(request), [complete](ReadResult done) { complete(std::move(done)); });
  if (!submitted.is_ok()) complete(ReadResult{});
}

void CacheImpl::read_done(Op& op, const OutcomeBits& bits) {
  Prefetch& p = *op.prefetch;
  host_room_.drop_leases(p.leases);
  p.leases.clear();
  std::uint64_t pages = largest_candidate(bits, p.base, p.target);
  if (pages > p.base)
    metrics_.prefetched(p.target - std::min(p.full_from, p.target), p.bytes, clock_.now() - p.read_begun);
  if (pages < p.target && !p.requests.empty()) ++counters_.prefetch_partial, probe(Probe::kPrefetchPartial);
  if (defect(Defect::kPartialFetchIsWhole) && pages > p.base) pages = p.target;
  if (!still_has_path(p)) pages = p.base;
  adopt(p, pages);
  for (const RequestId id : p.requests) {
    Request* r = find(id);
    if (r && r->waits_for == op.id) use_arrived(*r, p, pages > p.base);
  }
  prefetch_blocks_ -= std::exchange(p.blocks, 0);
  end_prefetch(op.id, p);
}

// A request that still waits keeps what came for it on the host until it starts, within the same capacity. What should
// have come and did not, or could not stay, is asked for once more, in case that was passing trouble. Not more often:
// storage would answer the same, and the request could be computing.
void CacheImpl::use_arrived(Request& r, Prefetch& p, bool has_any) {
  const std::uint64_t own = std::min(p.target, reusable_pages(r));
  const MatchResult match = tree_.match(p.space, std::span<const TokenId>(p.tokens).first(own * page_size()));
  if (match.any.at.pages < own && r.short_fetches++ > 0) r.known = std::min(r.known, match.any.at.pages);
  if (!has_any) return;
  drop_hold(r);
  r.hold = tree_.lock(tree_.settle(match.any.at), Tier::kHost, LockParts{});
  r.hold_blocks = std::exchange(p.blocks, 0);  // counted once, with the first of those that share it
}

// What came late may have lost what it continues: its locks ended with the wait.
bool CacheImpl::still_has_path(const Prefetch& p) const {
  if (p.device_lock.held) return true;
  const std::span<const TokenId> path = std::span<const TokenId>(p.tokens).first(p.full_from * page_size());
  return tree_.match(p.space, path).full_any_pages == p.full_from;
}

// Hands [.., pages) to the tree and frees the rest.
void CacheImpl::adopt(Prefetch& p, std::uint64_t pages) {
  const std::array<std::uint64_t, kComponentCount> first = {p.full_from, p.swa_from, p.target - 1};
  HostInsertRequest insert;
  insert.space = p.space;
  insert.tokens = std::span<const TokenId>(p.tokens).first(pages * page_size());
  insert.from = std::min(p.full_from, pages);
  std::array<std::uint64_t, kComponentCount> kept{};  // slots [0, kept) of each component go to the tree
  if (pages > p.base) {
    for (const ComponentKind c : kAllComponents) {
      const std::size_t i = index_of(c);
      const std::uint64_t from = first[i];
      kept[i] = pages > from ? std::min<std::uint64_t>(pages - from, p.slots[i].size()) : 0;
    }
    const auto head = [&](ComponentKind c) {
      return std::span<const HostSlot>(p.slots[index_of(c)]).first(kept[index_of(c)]);
    };
    insert.full = head(ComponentKind::kFull);
    insert.swa = head(ComponentKind::kSwa);
    if (kept[index_of(ComponentKind::kMamba)] == 1) insert.state = p.slots[index_of(ComponentKind::kMamba)].front();
    const std::uint64_t evicted = counters_.host_evicted;
    if (const Result<InsertResult> inserted = tree_.insert_host(insert); inserted.is_ok()) {
      // Duplicates of what others brought meanwhile come back through the sink: not evictions.
      probe(Probe::kPrefetchAdopted);
      counters_.prefetched += kept[index_of(ComponentKind::kFull)] - (counters_.host_evicted - evicted);
      counters_.host_evicted = evicted;
      mark_adopted(inserted->node, p, pages);
      for (const RequestId id : p.requests) {
        Request* r = find(id);
        if (!r) continue;
        r->fetched_from = r->fetched_to > 0 ? std::min(r->fetched_from, p.tree_full) : p.tree_full;
        r->fetched_to = std::max(r->fetched_to, pages);
      }
    } else {
      kept = {};
      ++counters_.internal_errors;
    }
  }
  for (const ComponentKind c : kAllComponents) {
    if (defect(Defect::kPrefetchLeaks)) continue;
    host_room_.give_back(c, std::span<const HostSlot>(p.slots[index_of(c)]).subspan(kept[index_of(c)]));
    p.slots[index_of(c)].clear();
  }
}

// What came from the storage that is attached need not be written there again.
void CacheImpl::mark_adopted(NodeId node, const Prefetch& p, std::uint64_t pages) {
  if (!storage_ || p.epoch != backlog_.epoch()) return;
  const bool read_state = !p.slots[index_of(ComponentKind::kMamba)].empty() && pages == p.target;
  for (NodeView view = tree_.view(node); view.end > 0 && view.begin >= p.full_from; view = tree_.view(node)) {
    const bool has_window = !view.host[index_of(ComponentKind::kSwa)].empty();
    const bool has_state = !view.host[index_of(ComponentKind::kMamba)].empty();
    // What else the node has on the host was computed here, and storage may lack it.
    const bool all_read =
        (!has_window || view.begin >= p.swa_from) && (!has_state || (read_state && view.end == pages));
    if (all_read) tree_.set_stored(node, backlog_.epoch());
    node = view.parent;
  }
}

void CacheImpl::end_prefetch(OpId id, Prefetch& p) {
  tree_.unlock(p.device_lock);
  tree_.unlock(p.host_lock);
  for (const RequestId request : p.requests) {
    Request* r = find(request);
    if (!r || r->waits_for != id) continue;
    r->phase = RequestPhase::kReady;
    r->waits_for = OpId{};
    hold_what_is_there(*r);
  }
  // The deadline has nothing left to guard. Every rank gets here by the same event, so every rank reports it.
  if (Op* const timer = ops_.find(p.timer)) ops_.end(*timer);
}

void CacheImpl::timer_done(Op& op) {
  if (op.id == backlog_.rest_timer()) return backlog_.rest_is_over();
  if (op.guards == OpId{}) {  // it waited for its turn, or for what it fetched in the end
    Request* r = find(op.request);
    if (!r || turn_timer_ != op.id) return;
    if (r->waits_for == OpId{}) ++counters_.prefetch_late;  // else its prefetch has a deadline of its own
    r->gave_up = true;
    end_turn_wait(*r);
    return;
  }
  Op* const late = ops_.find(op.guards);
  if (late == nullptr || !late->prefetch) return;
  // From here on the operation owns its buffers and nothing else: the tiers are for those who run.
  Prefetch& p = *late->prefetch;
  if (!storage_ || !ops_.is_of_this_attachment(*late)) abandon(*late);
  tree_.unlock(p.device_lock);
  tree_.unlock(p.host_lock);
  for (const RequestId id : p.requests) {
    // The request may wait for another prefetch by now, which has a deadline of its own.
    Request* r = find(id);
    if (!r || r->waits_for != op.guards) continue;
    ++counters_.prefetch_late;
    probe(Probe::kPrefetchLate);
    r->phase = RequestPhase::kReady;  // the read goes on and will be adopted for the next request
    r->waits_for = OpId{};
    r->gave_up = true;
    hold_what_is_there(*r);
  }
}

}  // namespace larder
