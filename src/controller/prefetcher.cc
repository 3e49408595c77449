// SPDX-License-Identifier: Apache-2.0
// Who wants what, and what storage has of it. prefetch_read.cc: what comes.
#include "controller/prefetcher.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/host_presence.h"
#include "controller/joint.h"

namespace larder {
namespace {

// Pages: the restore point that a fetch begins at.
std::uint64_t base_of(const MatchResult& match) {
  return (defect(Defect::kEvictedCountsAsCached) ? match.walked : match.any.at).pages;
}

}  // namespace

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
      losses_(parts.losses),
      is_engine_busy_(parts.is_engine_busy),
      planner_{parts.model, parts.tree, parts.host},
      queue_(config, parts.model, parts.host, parts.tree, parts.ops, parts.room),
      query_({parts.model, parts.tree, parts.ops, parts.spaces, planner_}),
      fetch_room_({config, parts.model, parts.host, parts.tree, parts.ops, parts.room, parts.backlog, planner_, queue_,
                   is_engine_busy_}),
      adopter_({parts.model, parts.tree, parts.ops, parts.backlog, parts.counters, planner_, fetch_room_}),
      reads_(parts.model, parts.host, parts.ops, parts.spaces),
      joinable_(parts.model),
      turns_(parts.ops) {}

void Prefetcher::attach_storage(StorageBackend& backend) {
  storage_ = &backend;
  query_.attach_storage(&backend);
  reads_.attach_storage(&backend);
  adopter_.attach_storage(true);
}

void Prefetcher::detach_storage(TimePoint due) {
  storage_ = nullptr;
  for (auto& [id, f] : fetches_) {
    if (Op* const timer = ops_.find(f.timer)) ops_.set_due(*timer, std::min(timer->due, due));
    f.is_detached = true;
    end_planned(f);
    // Its wait is over (that is alike on all ranks): no timer is left that would do this.
    if (!f.device_lock.held) abandon(f);
  }
  query_.attach_storage(nullptr);
  reads_.attach_storage(nullptr);
  adopter_.attach_storage(false);
}

void Prefetcher::enter(RequestId id, NamespaceId space, std::span<const TokenId> tokens) {
  QueuedRequest& r = queue_.enter(id, space, tokens, clock_.now());
  if (can_fetch()) ask(r, false);
  if (r.waits_for == OpId{}) queue_.hold_later(r);
}

bool Prefetcher::would_fetch(std::optional<NamespaceId> space, std::span<const TokenId> tokens) const {
  const std::uint64_t limit = tokens.size() / model_.page_size, least = queue_.least_gain();
  if (!can_fetch() || limit < least) return false;
  return !space || limit - base_of(tree_.match(*space, tokens)) >= least;
}

Prefetcher::WaitsFor Prefetcher::waits_for(RequestId id) const {
  const QueuedRequest* const r = queue_.find(id);
  if (r == nullptr) return WaitsFor::kNothing;
  if (r->waits_for != OpId{}) return WaitsFor::kStorage;
  if (!can_fetch()) return WaitsFor::kNothing;
  const bool has_no_turn =
      r->was_refused && queue_.waits_for_turn(*r) && !queue_.has_room_for(*r, !queue_.takes_turns(is_engine_busy_));
  if (has_no_turn) return WaitsFor::kTurn;
  return lacks_room(*r) ? WaitsFor::kRoom : WaitsFor::kNothing;
}

bool Prefetcher::asks_again(RequestId id, std::uint64_t found) {
  QueuedRequest* const r = queue_.find(id);
  if (r == nullptr || !can_fetch() || r->gave_up || !queue_.may_ask_again(*r, found)) return false;
  if (!queue_.waits() && !r->fetches.empty()) return false;  // it has what has come, and is not to ask twice
  if (lacks_room(*r) && found <= r->lacks->found) {
    queue_.wait_for_turn(*r, clock_.now());
    return true;
  }
  ask(*r, !queue_.takes_turns(is_engine_busy_));
  if (r->waits_for != OpId{}) return true;
  // With its turn it is refused for want of a place alone. Others' fetches end, and leave theirs.
  if (!queue_.waits() || !r->was_refused) {
    queue_.take_turn(*r, clock_.now());  // it waits for no place any more
    return false;
  }
  queue_.wait_for_turn(*r, clock_.now());
  return true;
}

void Prefetcher::take_arrived(RequestId id) {
  const QueuedRequest* const r = queue_.find(id);
  if (r == nullptr || queue_.waits()) return;
  for (const OpId fetch : r->fetches) {
    Fetch& f = fetches_.at(fetch.v);
    if (!adopt_arrived(f)) turns_.step_later(f);
  }
}

Prefetcher::Fetched Prefetcher::start(RequestId id) {
  const Fetched all = fetched(id);
  if (QueuedRequest* const r = queue_.find(id)) queue_.start(*r);
  return all;
}

Prefetcher::Fetched Prefetcher::fetched(RequestId id) const {
  const QueuedRequest* const r = queue_.find(id);
  if (r == nullptr) return {};
  const bool is_open = std::any_of(r->fetches.begin(), r->fetches.end(),
                                   [&](OpId fetch) { return fetches_.at(fetch.v).state == Fetch::State::kAsking; });
  return {r->fetched_from, r->fetched_to, r->known, r->trouble, !r->fetches.empty(), is_open, r->reach};
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
    turns_.step_later(f);  // nothing of it may be under way
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

void Prefetcher::ask(QueuedRequest& r, bool has_turn) {
  const bool was_refused = std::exchange(r.was_refused, false);
  r.lacks.reset();
  const std::uint64_t limit = r.tokens.size() / model_.page_size;
  const MatchResult match = tree_.match(r.space, r.tokens);
  const std::uint64_t base = base_of(match);
  r.known = std::max(r.known, base);
  if (limit - base < queue_.least_gain()) {
    r.trouble = std::max(r.trouble, FetchTrouble::kNotFetched);
    return;
  }
  if (join(r, base)) return;
  if (!queue_.has_room_for(r, has_turn)) {
    r.was_refused = true;
    r.trouble = std::max(r.trouble, FetchTrouble::kNotFetched);
    if (was_refused) return;  // it asks again, and counts once
    probe(Probe::kPrefetchRefused);
    ++counters_.prefetch_refused;
    return;
  }
  queue_.take_turn(r, clock_.now());
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
  f.key_from = std::min(base - std::min<std::uint64_t>(base, model_.window_pages()), f.tree_full);
  f.epoch = backlog_.epoch();
  joinable_.add(f.space, f.tokens, f.id);
  const NodeId held = tree_.settle(position_on_path(tree_, match.walked.node, f.full_from));
  f.device_lock = tree_.lock(held, Tier::kDevice, LockParts{.full = true, .swa = false, .mamba = false});
  f.host_lock = tree_.lock(held, Tier::kHost, LockParts{.full = true, .swa = false, .mamba = false});
  f.begun = queue_.wait_begun(r, clock_.now());
  f.urgency = queue_.waits() ? Urgency::kWaiting : Urgency::kSpeculative;
  f.cancel = std::make_shared<std::atomic<bool>>(false);
  queue_.join(r, f, clock_.now());
  Op& timer = ops_.add_timer(f.begun + queue_.wait_limit(0));
  timer.fetch = f.id;
  f.timer = timer.id;
  if (queue_.waits()) f.deadline = timer.due;
  query_.begin(f, op);
  if (!query_.go_on(f, std::min(kAtOnce, ops_.budget().piece()))) turns_.step_later(f);
}

// Another request is fetching the same pages: one read serves both. Only the same reusable prompt, or the head of it
// where every page is a restore point: of a longer one, storage brings the state and the window of its own end.
bool Prefetcher::join(QueuedRequest& r, std::uint64_t base) {
  const std::uint64_t limit = r.tokens.size() / model_.page_size;
  // Prompts that share a head part before their end: its last page tells most of them apart.
  const auto is_head_of = [&](const std::vector<TokenId>& tokens) {
    const auto last = static_cast<std::ptrdiff_t>(r.tokens.size() - model_.page_size);
    return std::equal(r.tokens.begin() + last, r.tokens.end(), tokens.begin() + last) &&
           std::equal(r.tokens.begin(), r.tokens.begin() + last, tokens.begin());
  };
  for (const OpId id : joinable_.find(r.space, r.tokens)) {
    Fetch& f = fetches_.at(id.v);
    const bool is_live =
        !f.requests.empty() && f.device_lock.held && f.epoch == backlog_.epoch() && f.state != Fetch::State::kEnding;
    const bool serves = f.space == r.space && f.base <= base && (f.urgency == Urgency::kWaiting) == queue_.waits() &&
                        (f.pages == limit || (joinable_.serves_any_head() && f.pages > limit)) &&
                        (f.state == Fetch::State::kAsking || f.target > base);
    if (!is_live || !serves || !is_head_of(f.tokens)) continue;
    probe(Probe::kPrefetchShared);
    ++counters_.prefetch_shared;
    queue_.take_turn(r, clock_.now());
    queue_.join(r, f, clock_.now());
    if (queue_.waits()) {
      const Nanos most = queue_.wait_limit((limit - base) * model_.page_size);
      queue_.limit_wait(r, f.id, queue_.wait_begun(r, clock_.now()) + most);
    }
    // The fetch may bring less than storage has, for want of room.
    if (f.state != Fetch::State::kAsking) r.known = std::max(r.known, largest_candidate(f.candidates, f.base, limit));
    r.reach = f.reach.reach().within(limit);
    return true;
  }
  return false;
}

void Prefetcher::exists_done(const Op& op, const OutcomeBits& bits) {
  const auto it = fetches_.find(op.fetch.v);
  if (it == fetches_.end()) return;
  Fetch& f = it->second;
  // An answer that comes after the deadline finds its path unlocked: too late to build on.
  if (f.state != Fetch::State::kAsking || !is_wanted(f)) {
    query_.forget(f, op);
    if (f.state == Fetch::State::kAsking) end_planned(f);
    return end_if_over(f);
  }
  if (!query_.answered(f, op, bits)) return step(f, true);
  const std::uint64_t found = largest_candidate(f.candidates, f.base, f.pages);
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = queue_.find(id);
    if (r == nullptr) continue;
    // For one that waits, the newest answer counts: what is not there any more is not worth asking for again.
    const std::uint64_t limit = r->tokens.size() / model_.page_size, own = std::min(found, limit);
    r->known = r->waits_for == f.id ? own : std::max(r->known, own);
    r->reach = f.reach.reach().within(limit);
  }
  f.state = Fetch::State::kTaking;
  f.upto = f.pages;
  step(f, true);
}

// For those that start without waiting, a fetch goes on as long as one of them has not started.
bool Prefetcher::is_wanted(const Fetch& f) const {
  return queue_.any_queues(f.requests) && (f.device_lock.held || f.state == Fetch::State::kReading);
}

void Prefetcher::step(Fetch& f, bool has_place) {
  if (!ops_.budget().has_left()) return turns_.step_later(f);
  if (f.state != Fetch::State::kEnding && !is_wanted(f)) end_planned(f);
  switch (f.state) {
    case Fetch::State::kAsking:
      if (!query_.go_on(f, ops_.budget().piece())) turns_.step_later(f);
      return;
    case Fetch::State::kTaking: return take_room(f, has_place);
    case Fetch::State::kReading: begin_batches(f, has_place); [[fallthrough]];
    case Fetch::State::kEnding: return use_what_came(f);
  }
}

void Prefetcher::pump() {
  reads_.pump([this](OpId fetch) -> Fetch& { return fetches_.at(fetch.v); },
              [this](const Fetch& f) { return queue_.any_waits_for(f.requests, f.id); });
  ops_.budget().begin_share(WorkBudget::Share::kFetches);
  queue_.hold_what_queues(ops_.budget());
  std::uint64_t came = counters_.host_evicted + counters_.host_flushed + counters_.host_lost;
  for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa, ComponentKind::kMamba}) {
    came += tree_.counts(c, Tier::kHost).resident;
  }
  queue_.look_at_what_came(came, ops_.budget());
  turns_.begin_poll();
  const auto fetch_of = [this](OpId id) {
    const auto it = fetches_.find(id.v);
    return it == fetches_.end() ? nullptr : &it->second;
  };
  while (Fetch* const f = turns_.next(fetch_of)) step(*f, false);
}

void Prefetcher::take_room(Fetch& f, bool has_place) {
  const LossLog::For room_for(losses_, f.requests.empty() ? RequestId{} : f.requests.front());
  const FetchRoom::Answer answer = fetch_room_.go_on(f);
  if (answer == FetchRoom::Answer::kNotYet) return turns_.step_later(f);
  if (answer == FetchRoom::Answer::kWaitsForStores) {
    probe(Probe::kPrefetchWaits);
    return turns_.step_in_next_poll(f);
  }
  if (answer == FetchRoom::Answer::kNone) {
    if (!f.room_needed.is_none()) go_without_room(f);
    const std::vector<RequestId> requests = f.requests;
    end_planned(f);
    let_go(f);
    // What it kept in place itself is no room that comes.
    for (const RequestId id : requests) queue_.note_room(id, backlog_);
    return end_if_over(f);
  }
  f.state = Fetch::State::kReading;
  f.read_begun = clock_.now();
  if (Op* const timer = ops_.find(f.timer)) {
    ops_.set_due(*timer, f.begun + queue_.wait_limit((f.target - f.base) * model_.page_size));
    if (f.urgency == Urgency::kWaiting) f.deadline = timer->due;
  }
  begin_batches(f, has_place);
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
      RoomWait& lacks = r->lacks.emplace();
      lacks.needed = f.room_needed;
      lacks.with_path = f.room_needed + planner_.held_space(f);
      lacks.found = f.base;
      queue_.wait_for_turn(*r, clock_.now());  // but not for ever
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
  if (timer.request != RequestId{}) {
    // A limit that was dropped may have been over already, and the request waits anew.
    const QueuedRequest* const r = queue_.find(timer.request);
    if (r != nullptr && r->limit == timer.id) give_up(it->second, timer.request);
    return;
  }
  if (it->second.timer != timer.id) return;
  Fetch& f = it->second;
  if (f.is_detached) abandon(f);
  if (!adopt_arrived(f)) turns_.step_later(f);
  end_planned(f);
  // From here on the fetch owns its buffers and nothing else: the tiers are for those who run.
  fetch_room_.unlock(f);
  f.timer = OpId{};
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = queue_.find(id);
    // best_effort: nobody waits, and storage was late all the same.
    if (r != nullptr && r->waits_for == OpId{}) r->trouble = std::max(r->trouble, FetchTrouble::kLate);
    const bool joined_later = r != nullptr && r->waits_for == f.id && r->limit != OpId{} && !f.is_detached;
    if (!joined_later) {
      give_up(f, id);
      continue;
    }
    r->was_refused = true;  // it has time left, and start() asks for itself; this one does not count
    --r->tries;
    queue_.end_wait(*r, clock_.now());
    queue_.hold_what_is_there(*r);
  }
  use_what_came(f);
}

// Its limit is over. What is under way is adopted for the next request.
void Prefetcher::give_up(Fetch& f, RequestId id) {
  // The request may wait for another fetch by now, which has a limit of its own.
  QueuedRequest* const r = queue_.find(id);
  if (r == nullptr || r->waits_for != f.id) return;
  if (!adopt_arrived(f)) turns_.step_later(f);
  ++counters_.prefetch_late;
  probe(Probe::kPrefetchLate);
  queue_.end_wait(*r, clock_.now());
  r->gave_up = true;
  r->trouble = std::max(r->trouble, FetchTrouble::kLate);
  queue_.hold_what_is_there(*r);
}

}  // namespace larder
