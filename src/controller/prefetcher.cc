// Who wants what, and what storage has of it. prefetch_read.cc: what comes.
#include "controller/prefetcher.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/joint.h"

namespace larder {

Prefetcher::Prefetcher(const CacheConfig& config, const Parts& parts)
    : config_(config),
      model_(parts.model),
      host_(parts.host),
      tree_(parts.tree),
      ops_(parts.ops),
      spaces_(parts.spaces),
      clock_(parts.clock),
      backlog_(parts.backlog),
      counters_(parts.counters),
      metrics_(parts.metrics),
      room_(parts.room),
      is_engine_busy_(parts.is_engine_busy),
      planner_{parts.model, parts.tree, parts.host},
      queue_(config, parts.model, parts.host, parts.tree, parts.ops, parts.room) {}

void Prefetcher::attach_storage(StorageBackend& backend) { storage_ = &backend; }

void Prefetcher::detach_storage(TimePoint due) {
  storage_ = nullptr;
  for (auto& [id, f] : fetches_) {
    if (Op* const timer = ops_.find(f.timer)) ops_.set_due(*timer, std::min(timer->due, due));
    f.is_detached = true;
    end_planned(f);
    // Its wait is over (that is alike on all ranks): no timer is left that would do this.
    if (!f.device_lock.held) abandon(f);
  }
}

void Prefetcher::enter(RequestId id, NamespaceId space, std::span<const TokenId> tokens) {
  QueuedRequest& r = queue_.enter(id, space, tokens, clock_.now());
  if (can_fetch()) ask(r, false);
  if (r.waits_for == OpId{}) queue_.hold_what_is_there(r);
}

bool Prefetcher::is_waiting(RequestId id) const {
  const QueuedRequest* r = queue_.find(id);
  return r != nullptr && r->waits_for != OpId{};
}

bool Prefetcher::asks_again(RequestId id, std::uint64_t found) {
  QueuedRequest* const r = queue_.find(id);
  if (r == nullptr || !can_fetch() || r->gave_up || !queue_.may_ask_again(*r, found)) return false;
  if (!waits() && !r->fetches.empty()) return false;  // it has what has come, and is not to ask twice
  // wait_complete takes its turn: fetches of everyone at once would only push each other out of the host.
  const bool takes_turns = config_.prefetch_policy == PrefetchPolicy::kWaitComplete && is_engine_busy_();
  ask(*r, !takes_turns);
  if (r->waits_for != OpId{}) return true;
  if (!takes_turns || !r->was_refused) return false;
  queue_.wait_for_turn(*r);
  return true;
}

void Prefetcher::take_arrived(RequestId id) {
  const QueuedRequest* const r = queue_.find(id);
  if (r == nullptr || waits()) return;
  for (const OpId fetch : r->fetches) adopt_arrived(fetches_.at(fetch.v));
}

void Prefetcher::start(RequestId id) {
  if (QueuedRequest* const r = queue_.find(id)) queue_.start(*r);
}

Prefetcher::Fetched Prefetcher::fetched(RequestId id) const {
  const QueuedRequest* const r = queue_.find(id);
  return r == nullptr ? Fetched{} : Fetched{r->fetched_from, r->fetched_to, r->known};
}

void Prefetcher::finish(RequestId id) {
  if (QueuedRequest* const r = queue_.find(id)) queue_.leave(*r);
}

// What is under way, storage answers as it may on each rank, and the ranks agree on what came.
void Prefetcher::leave(RequestId id) {
  QueuedRequest* const r = queue_.find(id);
  if (r == nullptr) return;
  for (const OpId fetch : r->fetches) {
    Fetch& f = fetches_.at(fetch.v);
    std::erase(f.requests, id);
    if (!f.requests.empty()) continue;
    f.cancel->store(true, std::memory_order_relaxed);  // relaxed: a flag that carries nothing else
    end_planned(f);
  }
  queue_.leave(*r);
}

std::array<std::uint64_t, kComponentCount> Prefetcher::slots_held() const {
  std::array<std::uint64_t, kComponentCount> held{};
  for (const auto& [id, f] : fetches_) {
    for (const FetchBatch& batch : f.batches) {
      for (std::size_t i = 0; i < kComponentCount; ++i) held[i] += batch.slots[i].size();
    }
  }
  return held;
}

// A control run that keeps a component off the host must not get it from storage either.
bool Prefetcher::can_fetch() const {
  return storage_ != nullptr && config_.enabled && config_.host_tier_for_full &&
         (config_.host_tier_for_state || !model_.has(ComponentKind::kMamba));
}

// Every policy has an end: a storage that hangs must neither hang a request nor keep its path in the tiers for good.
Nanos Prefetcher::wait_limit(std::uint64_t tokens) const {
  switch (config_.prefetch_policy) {
    case PrefetchPolicy::kBestEffort: return config_.prefetch_timeout_max;  // nobody waits; the locks end
    case PrefetchPolicy::kWaitComplete: return config_.prefetch_wait_limit;
    case PrefetchPolicy::kTimeout: break;
  }
  return prefetch_deadline(config_, tokens);
}

void Prefetcher::ask(QueuedRequest& r, bool has_turn) {
  r.was_refused = false;
  const std::uint64_t limit = r.tokens.size() / model_.page_size;
  const MatchResult match = tree_.match(r.space, r.tokens);
  const std::uint64_t base = (defect(Defect::kEvictedCountsAsCached) ? match.walked : match.any.at).pages;
  r.known = std::max(r.known, base);
  if (limit - base < queue_.least_gain()) return;
  if (join(r, base)) return;
  // What it holds is not in its own way.
  if ((!has_turn && queue_.blocks() - r.hold_blocks >= queue_.capacity()) || !ops_.has_room(OpKind::kExists)) {
    r.was_refused = true;
    probe(Probe::kPrefetchRefused);
    ++counters_.prefetch_refused;
    return;
  }
  Op& op = ops_.add(OpKind::kExists);
  op.fetch = op.id;
  Fetch& f = fetches_[op.id.v];
  f.id = op.id;
  f.space = r.space;
  f.space_use = spaces_.use(r.space);
  f.tokens.assign(r.tokens.begin(), r.tokens.end());
  f.pages = limit;
  f.base = f.adopted = base;
  f.tree_full = f.full_from = std::min(match.full_any_pages, limit);
  f.key_from = base - std::min<std::uint64_t>(base, model_.window_pages());
  f.epoch = backlog_.epoch();
  collect_keys(f, match.walked);
  joinable_[join_key(f.space, f.tokens)].push_back(f.id);
  const NodeId held = tree_.settle(planner_.position_at(match.walked.node, f.full_from));
  f.device_lock = tree_.lock(held, Tier::kDevice, LockParts{.full = true, .swa = false, .mamba = false});
  f.host_lock = tree_.lock(held, Tier::kHost, LockParts{.full = true, .swa = false, .mamba = false});
  f.begun = wait_begun(r);
  f.urgency = waits() ? Urgency::kWaiting : Urgency::kSpeculative;
  f.cancel = std::make_shared<std::atomic<bool>>(false);
  add_request(f, r);
  Op& timer = ops_.add_timer(f.begun + wait_limit(0));
  timer.fetch = f.id;
  f.timer = timer.id;
  if (waits()) f.deadline = timer.due;
  submit_query(f, *ops_.find(f.id));
}

// One limit for all fetches of a request. "All of it" includes what it waits for its turn.
TimePoint Prefetcher::wait_begun(const QueuedRequest& r) const {
  return config_.prefetch_policy == PrefetchPolicy::kWaitComplete ? r.begun : clock_.now() - r.waited;
}

void Prefetcher::add_request(Fetch& f, QueuedRequest& r) {
  ++r.tries;
  r.asked_from = std::min(r.asked_from, f.base);
  r.room_needed = 0;
  f.requests.push_back(r.id);
  r.fetches.push_back(f.id);
  if (waits()) queue_.begin_wait(r, f.id, clock_.now());
}

bool Prefetcher::serves_any_head() const {
  return !model_.has(ComponentKind::kSwa) && !model_.has(ComponentKind::kMamba);
}

std::uint64_t Prefetcher::join_key(NamespaceId space, std::span<const TokenId> tokens) const {
  const std::span<const TokenId> page =
      serves_any_head() ? tokens.first(model_.page_size) : tokens.last(model_.page_size);
  return XXH3_64bits_withSeed(page.data(), page.size_bytes(),
                              space.v + (serves_any_head() ? 0 : std::uint64_t{tokens.size()} << 32));
}

// Another request is fetching the same pages: one read serves both. Only the same reusable prompt, or the head of it
// where every page is a restore point: of a longer one, storage brings the state and the window of its own end.
bool Prefetcher::join(QueuedRequest& r, std::uint64_t base) {
  const auto candidates = joinable_.find(join_key(r.space, r.tokens));
  if (candidates == joinable_.end()) return false;
  const std::uint64_t limit = r.tokens.size() / model_.page_size;
  // Prompts that share a head part before their end: its last page tells most of them apart.
  const auto is_head_of = [&](const std::vector<TokenId>& tokens) {
    const auto last = static_cast<std::ptrdiff_t>(r.tokens.size() - model_.page_size);
    return std::equal(r.tokens.begin() + last, r.tokens.end(), tokens.begin() + last) &&
           std::equal(r.tokens.begin(), r.tokens.begin() + last, tokens.begin());
  };
  for (const OpId id : candidates->second) {
    Fetch& f = fetches_.at(id.v);
    const bool is_live =
        !f.requests.empty() && f.device_lock.held && f.epoch == backlog_.epoch() && f.state != Fetch::State::kEnding;
    const bool serves = f.space == r.space && f.base <= base && (f.urgency == Urgency::kWaiting) == waits() &&
                        (f.pages == limit || (serves_any_head() && f.pages > limit)) &&
                        (f.state == Fetch::State::kAsking || f.target > base);
    if (!is_live || !serves || !is_head_of(f.tokens)) continue;
    probe(Probe::kPrefetchShared);
    ++counters_.prefetch_shared;
    add_request(f, r);
    if (waits()) queue_.limit_wait(r, f.id, wait_begun(r) + wait_limit((limit - base) * model_.page_size));
    if (f.state == Fetch::State::kReading) r.known = std::max(r.known, std::min(f.target, limit));
    return true;
  }
  return false;
}

// Keys of the walked path come from the tree (hashed once per node), the rest continues its chain.
void Prefetcher::collect_keys(Fetch& f, const TreePosition& walked) {
  const std::uint64_t known = std::min(walked.pages, f.pages);
  std::vector<PageKey> path(known > f.key_from ? known - f.key_from : 0);
  std::optional<PageKey> last;
  NodeId node = walked.node;
  for (std::uint64_t end = known; end > 0;) {
    const NodeView view = tree_.view(node);
    const std::span<const PageKey> keys = tree_.page_keys(node);
    if (end == known) last = keys[end - 1 - view.begin];
    for (std::uint64_t i = std::max(view.begin, f.key_from); i < end; ++i) path[i - f.key_from] = keys[i - view.begin];
    if (view.begin <= f.key_from) break;
    end = view.begin;
    node = view.parent;
  }
  if (known == 0) last = tree_.last_key(tree_.root(f.space));
  PageKeyChain rest(model_.page_size, defect(Defect::kPrefetchMisanchored) ? std::nullopt : last);
  rest.append_pages(std::span<const TokenId>(f.tokens).subspan(known * model_.page_size));
  f.keys = std::move(path);
  // key_from <= base <= known: the chain's keys follow the path's without a gap.
  f.keys.insert(f.keys.end(), rest.keys().begin(), rest.keys().end());
}

void Prefetcher::submit_query(Fetch& f, Op& op) {
  ExistsRequest request;
  request.scope = spaces_.scope(f.space);
  request.keys = f.keys;
  for (const PoolSpec& pool : model_.pools) request.pools.push_back(pool.name);
  request.terms = {f.urgency, f.deadline, f.cancel};
  auto complete = ops_.completion_for(op.id);
  const Status submitted =
      storage_->submit_exists(std::move(request), [complete](ExistsResult done) { complete(std::move(done)); });
  if (!submitted.is_ok()) complete(ExistsResult{submitted, {}});
}

void Prefetcher::exists_done(const Op& op, const OutcomeBits& bits) {
  const auto it = fetches_.find(op.fetch.v);
  if (it == fetches_.end()) return;
  Fetch& f = it->second;
  const std::uint64_t found = largest_candidate(bits, f.base, f.pages);
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = queue_.find(id);
    if (r == nullptr) continue;
    // For one that waits, the newest answer counts: what is not there any more is not worth asking for again.
    const std::uint64_t own = std::min(found, r->tokens.size() / model_.page_size);
    r->known = r->waits_for == f.id ? own : std::max(r->known, own);
  }
  // An answer that comes after the deadline finds its path unlocked: too late to build on.
  const bool is_live = f.state == Fetch::State::kAsking && !f.requests.empty() && f.device_lock.held;
  if (!is_live || !reserve(f, bits)) {
    if (is_live && f.room_needed > 0) go_without_room(f);
    f.state = Fetch::State::kEnding;
    return end_if_over(f);
  }
  f.state = Fetch::State::kReading;
  f.read_begun = clock_.now();
  if (Op* const timer = ops_.find(f.timer)) {
    ops_.set_due(*timer, f.begun + wait_limit((f.target - f.base) * model_.page_size));
    if (f.urgency == Urgency::kWaiting) f.deadline = timer->due;
  }
  begin_batches(f);
}

// What comes is added to the host's copy of the pages before it, and counts on the window and the state that are there
// already: these must not go while room is made for it. (On the device they may: what running requests need there was
// promised to them.)
void Prefetcher::hold_host_path(Fetch& f) {
  const NodeId held = tree_.settle(planner_.position_at(f.device_lock.node, f.full_from));
  const bool has_state = f.full_from == f.target && !f.batches.back().reads_state;
  tree_.unlock(f.host_lock);
  f.host_lock = tree_.lock(held, Tier::kHost,
                           LockParts{.full = true,
                                     .swa = model_.has(ComponentKind::kSwa),
                                     .mamba = has_state && model_.has(ComponentKind::kMamba)});
}

bool Prefetcher::reserve(Fetch& f, const OutcomeBits& candidates) {
  constexpr int kTries = 8;  // each evicts; a host that is this full is better left alone
  std::uint64_t upto = f.pages;
  for (int i = 0; i < kTries; ++i) {
    f.target = largest_candidate(candidates, f.base, upto);
    if (f.target < f.base + queue_.least_gain()) break;
    const ComponentCounts counts = planner_.plan(f, candidates, config_.prefetch_batch_bytes, kStopShare);
    hold_host_path(f);
    const std::uint64_t blocks = room_.blocks_of(counts);
    std::array<std::vector<HostSlot>, kComponentCount> slots;
    if (blocks <= host_->total_blocks() && room_.take(counts, false, slots) == HostAnswer::kThere) {
      f.blocks = blocks;
      queue_.add_blocks(blocks);
      hand_out(f, slots);
      return true;
    }
    f.room_needed = blocks;
    // A request that waits for all of its prefetch also waits for the host pages that running requests will give back,
    // rather than fetch a shorter prefix now. (Where all of it can never fit, it takes what fits.)
    const bool room_will_come = config_.prefetch_policy == PrefetchPolicy::kWaitComplete && is_engine_busy_();
    f.waits_for_room = i == 0 && room_will_come &&
                       blocks + planner_.held_blocks(f) + backlog_.kept_by_abandoned() <= host_->total_blocks();
    if (f.waits_for_room) break;
    upto = f.base + (f.target - f.base) / 2;
  }
  f.batches.clear();
  f.target = 0;
  return false;
}

void Prefetcher::hand_out(Fetch& f, std::array<std::vector<HostSlot>, kComponentCount>& slots) {
  f.full_to = f.full_from;
  if (f.full_from < std::min(f.tree_full, f.target)) probe(Probe::kFullReadAgain);
  std::array<std::size_t, kComponentCount> given{};
  for (FetchBatch& batch : f.batches) {
    const std::array<std::uint64_t, kComponentCount> needs = {batch.end - batch.begin, batch.end - batch.window_from,
                                                              batch.reads_state ? 1u : 0u};
    for (std::size_t i = 0; i < kComponentCount; ++i) {
      const auto from = slots[i].begin() + static_cast<std::ptrdiff_t>(given[i]);
      batch.slots[i].assign(from, from + static_cast<std::ptrdiff_t>(needs[i]));
      given[i] += needs[i];
    }
  }
}

// There was something to fetch, and no room for it.
void Prefetcher::go_without_room(Fetch& f) {
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = queue_.find(id);
    if (r == nullptr) continue;
    if (f.waits_for_room) {
      if (r->waits_for != f.id) continue;
      r->was_refused = true;  // start() asks again, and this one does not count
      --r->tries;
      queue_.wait_for_turn(*r);  // but not for ever
    } else {
      r->room_needed = f.room_needed;
    }
  }
}

void Prefetcher::timer_done(const Op& timer) {
  if (timer.fetch == OpId{}) {  // it waited for its turn, or for what it fetched in the end
    const QueuedRequest* const r = queue_.end_turn_wait(timer);
    if (r != nullptr && r->waits_for == OpId{}) ++counters_.prefetch_late;  // else its fetch has a limit of its own
    return;
  }
  const auto it = fetches_.find(timer.fetch.v);
  if (it == fetches_.end()) return;
  if (timer.request != RequestId{}) return give_up(it->second, timer.request);
  if (it->second.timer != timer.id) return;
  Fetch& f = it->second;
  if (f.is_detached) abandon(f);
  adopt_arrived(f);
  end_planned(f);
  // From here on the fetch owns its buffers and nothing else: the tiers are for those who run.
  tree_.unlock(f.device_lock);
  tree_.unlock(f.host_lock);
  f.timer = OpId{};
  for (const RequestId id : f.requests) give_up(f, id);
}

// Its limit is over. What is under way is adopted for the next request.
void Prefetcher::give_up(Fetch& f, RequestId id) {
  // The request may wait for another fetch by now, which has a limit of its own.
  QueuedRequest* const r = queue_.find(id);
  if (r == nullptr || r->waits_for != f.id) return;
  adopt_arrived(f);
  ++counters_.prefetch_late;
  probe(Probe::kPrefetchLate);
  queue_.end_wait(*r, clock_.now());
  r->gave_up = true;
  queue_.hold_what_is_there(*r);
}

}  // namespace larder
