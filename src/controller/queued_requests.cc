// SPDX-License-Identifier: Apache-2.0
#include "controller/queued_requests.h"

#include <algorithm>
#include <utility>

namespace larder {

QueuedRequests::QueuedRequests(const CacheConfig& config, const ModelSpec& model, HostPools* host, RadixTree& tree,
                               OpTable& ops, const HostRoom& room)
    : config_(config), model_(model), host_(host), tree_(tree), ops_(ops), room_(room) {}

QueuedRequest& QueuedRequests::enter(RequestId id, NamespaceId space, std::span<const TokenId> tokens, TimePoint now) {
  QueuedRequest& r = requests_.add(id.v);
  r.id = id;
  r.turn = next_turn_++;
  r.space = space;
  r.tokens = tokens;
  r.begun = now;
  return r;
}

QueuedRequest* QueuedRequests::find(RequestId id) { return requests_.find(id.v); }

const QueuedRequest* QueuedRequests::find(RequestId id) const { return requests_.find(id.v); }

bool QueuedRequests::any_queues(std::span<const RequestId> ids) const {
  return std::any_of(ids.begin(), ids.end(), [&](RequestId id) {
    const QueuedRequest* const r = find(id);
    return r != nullptr && !r->tokens.empty();
  });
}

bool QueuedRequests::any_waits_for(std::span<const RequestId> ids, OpId fetch) const {
  return std::any_of(ids.begin(), ids.end(), [&](RequestId id) {
    const QueuedRequest* const r = find(id);
    return r != nullptr && r->waits_for == fetch;
  });
}

void QueuedRequests::start(QueuedRequest& r) {
  if (r.fetches.empty()) return leave(r);
  drop_hold(r);
  drop_limit(r);
  drop_turn(r);
  r.tokens = {};
}

void QueuedRequests::leave(QueuedRequest& r) {
  drop_hold(r);
  drop_limit(r);
  drop_turn(r);
  requests_.erase(r.id.v);
}

std::uint64_t QueuedRequests::least_gain() const {
  return std::max<std::uint64_t>(1,
                                 (std::uint64_t{config_.prefetch_threshold} + model_.page_size - 1) / model_.page_size);
}

std::uint64_t QueuedRequests::capacity() const {
  return static_cast<std::uint64_t>(config_.prefetch_capacity * static_cast<double>(host_->total_blocks()));
}

// A page that several requests share counts for each.
void QueuedRequests::hold_what_is_there(QueuedRequest& r) {
  if (!host_ || !config_.enabled || r.hold.held) return;
  const MatchResult match = tree_.match(r.space, r.tokens);
  TreePosition held;  // where what is on the host ends: it keeps the pages above in place
  std::uint64_t blocks = 0;
  NodeId node = match.any.at.node;
  for (NodeView view = tree_.view(node); view.end > 0; node = view.parent, view = tree_.view(node)) {
    if (view.host[index_of(ComponentKind::kFull)].empty()) continue;
    const std::uint64_t end = std::min(view.end, match.any.at.pages);
    if (held.pages == 0) held = {node, end};
    blocks += (end - view.begin) * host_->blocks_per_slot(ComponentKind::kFull);
  }
  if (held.pages == 0) return;
  blocks += model_.window_pages_at(held.pages) * host_->blocks_per_slot(ComponentKind::kSwa);
  blocks += host_->blocks_per_slot(ComponentKind::kMamba);
  if (blocks_ + blocks > capacity() / 2) return;
  add_blocks(blocks);
  hold(r, held, blocks);
}

void QueuedRequests::hold_later(const QueuedRequest& r) {
  if (!host_ || !config_.enabled) return;
  newcomers_.push_back(r.id);
  if (newcomers_.size() > kMostNewcomers) newcomers_.pop_front();  // nobody polls
}

void QueuedRequests::hold_what_queues(WorkBudget& budget) {
  for (; !newcomers_.empty() && budget.has_left(); newcomers_.pop_front()) {
    QueuedRequest* const r = find(newcomers_.front());
    if (r == nullptr || r->tokens.empty() || r->waits_for != OpId{}) continue;
    budget.spend(1 + r->tokens.size() / 4096);
    hold_what_is_there(*r);
  }
  if (!newcomers_.empty()) budget.fall_short();
}

void QueuedRequests::hold(QueuedRequest& r, const TreePosition& at, std::uint64_t blocks) {
  drop_hold(r);
  r.hold = tree_.lock(tree_.settle(at), Tier::kHost, LockParts{});
  r.hold_blocks = blocks;
  holders_.insert(r.id.v);
}

void QueuedRequests::drop_holds() {
  for (const std::uint64_t id : std::exchange(holders_, {})) drop_hold(*requests_.find(id));
}

void QueuedRequests::drop_hold(QueuedRequest& r) {
  if (!r.hold.held) return;
  holders_.erase(r.id.v);
  tree_.unlock(r.hold);
  drop_blocks(r.hold_blocks);
  r.hold_blocks = 0;
}

// Storage can bring back what was lost, and no more: where that is less than is worth fetching, or has no room, there
// is nothing to ask for. Each further loss gives a request all its tries again, so that it can always make up for it;
// and there are only so many of them in a prompt.
bool QueuedRequests::may_ask_again(QueuedRequest& r, std::uint64_t found) const {
  const bool has_lost = found + least_gain() <= r.known;
  if (has_lost && found + least_gain() <= r.asked_from) r.tries = 0;
  if (r.tries >= kMaxTries) return false;
  return r.was_refused || (has_lost && r.room_needed.fits_in(room_.in_reach(tree_.spaces().tenant_of(r.space))));
}

// Every policy has an end: a storage that hangs must neither hang a request nor keep its path in the tiers for good.
Nanos QueuedRequests::wait_limit(std::uint64_t tokens) const {
  switch (config_.prefetch_policy) {
    case PrefetchPolicy::kBestEffort: return config_.prefetch_timeout_max;  // nobody waits; the locks end
    case PrefetchPolicy::kWaitComplete: return config_.prefetch_wait_limit;
    case PrefetchPolicy::kTimeout: break;
  }
  return prefetch_deadline(config_, tokens);
}

// "All of it" includes what it waits for its turn.
TimePoint QueuedRequests::wait_begun(const QueuedRequest& r, TimePoint now) const {
  return config_.prefetch_policy == PrefetchPolicy::kWaitComplete ? r.begun : now - r.waited;
}

void QueuedRequests::join(QueuedRequest& r, Fetch& f, TimePoint now) {
  ++r.tries;
  r.asked_from = std::min(r.asked_from, f.base);
  r.room_needed = {};
  f.requests.push_back(r.id);
  r.fetches.push_back(f.id);
  if (!waits()) return;
  r.waits_for = f.id;
  r.waits_since = now;
}

void QueuedRequests::limit_wait(QueuedRequest& r, OpId fetch, TimePoint due) {
  Op& timer = ops_.add_timer(due);
  timer.fetch = fetch;
  timer.request = r.id;
  r.limit = timer.id;
}

// The timer guards nothing any more. Every rank gets here by the same event.
void QueuedRequests::drop_limit(QueuedRequest& r) {
  if (Op* const timer = ops_.find(std::exchange(r.limit, OpId{}))) ops_.end(*timer);
}

void QueuedRequests::end_wait(QueuedRequest& r, TimePoint now) {
  drop_limit(r);
  r.waits_for = OpId{};
  r.waited += now - r.waits_since;
}

// When a request has waited for its turn long enough is said by a timer, which the ranks agree on: their clocks do not.
void QueuedRequests::wait_for_turn(QueuedRequest& r, TimePoint now) {
  if (config_.prefetch_policy != PrefetchPolicy::kWaitComplete) {
    if (r.limit != OpId{}) return;
    r.waits_since = now;
    return limit_wait(r, OpId{}, wait_begun(r, now) + wait_limit(0));
  }
  turns_.emplace(r.turn, r.id.v);
  if (turn_timer_ == OpId{} || turns_.begin()->second == r.id.v) arm_timer();
}

void QueuedRequests::take_turn(QueuedRequest& r, TimePoint now) {
  if (r.limit == OpId{}) return;
  drop_limit(r);
  r.waited += now - r.waits_since;
}

bool QueuedRequests::waits_for_turn(const QueuedRequest& r) const {
  return r.limit != OpId{} || turns_.contains({r.turn, r.id.v});
}

void QueuedRequests::drop_turn(const QueuedRequest& r) {
  if (turns_.erase({r.turn, r.id.v}) > 0) arm_timer();
}

// The first in turn began to wait first, so it is the first to give up.
void QueuedRequests::arm_timer() {
  if (!ops_.parted().is_ok()) return;
  const RequestId first(turns_.empty() ? 0 : turns_.begin()->second);
  if (Op* const old = ops_.find(turn_timer_)) {
    if (old->request == first) return;
    ops_.end(*old);  // it guards nothing any more; every rank gets here by the same event
  }
  turn_timer_ = OpId{};
  const QueuedRequest* r = find(first);
  if (!r) return;
  Op& timer = ops_.add_timer(r->begun + config_.prefetch_wait_limit);
  timer.request = first;
  turn_timer_ = timer.id;
}

QueuedRequest* QueuedRequests::end_turn_wait(const Op& timer) {
  QueuedRequest* const r = find(timer.request);
  if (!r || (turn_timer_ != timer.id && r->limit != timer.id)) return nullptr;
  r->gave_up = true;
  if (r->limit == timer.id) drop_limit(*r);
  drop_turn(*r);
  return r;
}

void QueuedRequests::note_room(RequestId id, const StoreBacklog& backlog) {
  QueuedRequest* const r = find(id);
  if (r == nullptr || !r->lacks) return;
  r->lacks->in_reach = room_.in_reach(tree_.spaces().tenant_of(r->space));
  r->lacks->abandoned = backlog.kept_by_abandoned();
  r->lacks->epoch = backlog.epoch();
}

// Room that would do may be in reach and still not be had: then something must change before it is worth a try.
bool QueuedRequests::lacks_room(const QueuedRequest& r, const StoreBacklog& backlog,
                                const std::function<bool()>& is_engine_busy) const {
  if (!r.lacks || r.gave_up || !takes_turns(is_engine_busy)) return false;  // else it takes what fits
  const HostSpace& abandoned = backlog.kept_by_abandoned();
  if (r.lacks->epoch != backlog.epoch() || !(r.lacks->with_path + abandoned).fits_in(host_->total())) return false;
  const HostSpace in_reach = room_.in_reach(tree_.spaces().tenant_of(r.space));
  const bool is_as_before = in_reach == r.lacks->in_reach && abandoned == r.lacks->abandoned;
  return is_as_before || !r.lacks->needed.fits_in(in_reach);
}

void QueuedRequests::look_at_what_came(std::uint64_t came, WorkBudget& budget) {
  auto next = turns_.upper_bound(looked_at_);
  std::uint64_t spent = 0;
  std::size_t left = turns_.size();
  for (; left > 0 && spent <= budget.piece() / 4; --left, ++next) {
    if (next == turns_.end()) next = turns_.begin();
    QueuedRequest* const r = requests_.find(next->second);
    looked_at_ = *next;
    if (r == nullptr || !r->lacks || r->lacks->came == came) continue;
    spent += 1 + r->tokens.size() / 4096;
    r->lacks->came = came;
    if (tree_.match(r->space, r->tokens).any.at.pages > r->lacks->found) r->lacks.reset();
  }
  if (left > 0) budget.fall_short();
  budget.spend(spent);
}

void QueuedRequests::note_trouble(std::span<const RequestId> ids, FetchTrouble trouble) {
  for (const RequestId id : ids) {
    if (QueuedRequest* const r = find(id)) r->trouble = std::max(r->trouble, trouble);
  }
}

}  // namespace larder
