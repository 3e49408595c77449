// A request that queues: what it keeps on the host until it starts, and when it asks storage for what it lost.
#include <algorithm>

#include "controller/cache_impl.h"

namespace larder {

std::uint64_t CacheImpl::least_gain() const {
  return std::max<std::uint64_t>(1, (config_.prefetch_threshold + page_size() - 1) / page_size());
}

std::uint64_t CacheImpl::prefetch_capacity() const {
  return static_cast<std::uint64_t>(config_.prefetch_capacity * static_cast<double>(host_->total_blocks()));
}

std::uint64_t CacheImpl::host_blocks_in_reach() const {
  std::uint64_t blocks = host_->free_blocks();
  for (const ComponentKind c : kAllComponents) {
    blocks += tree_.counts(c, Tier::kHost).evictable() * host_->blocks_per_slot(c);
  }
  return blocks;
}

// Of half the prefetch capacity, so that what waits does not keep others from fetching. A page that several of them
// share counts for each.
void CacheImpl::hold_what_is_there(Request& r) {
  if (!host_ || !config_.enabled || r.hold.held) return;
  const std::span<const TokenId> tokens = std::span<const TokenId>(r.tokens).first(reusable_pages(r) * page_size());
  const MatchResult match = tree_.match(r.space, tokens);
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
  if (prefetch_blocks_ + blocks > prefetch_capacity() / 2) return;
  r.hold = tree_.lock(tree_.settle(held), Tier::kHost, LockParts{});
  r.hold_blocks = blocks;
  prefetch_blocks_ += blocks;
}

void CacheImpl::drop_hold(Request& r) {
  tree_.unlock(r.hold);
  prefetch_blocks_ -= r.hold_blocks;
  r.hold_blocks = 0;
}

// In the order of their ids: ranks must let go alike.
void CacheImpl::drop_holds() {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, r] : requests_) {
    if (r.hold.held) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const std::uint64_t id : ids) drop_hold(requests_.at(id));
}

// Storage can bring back what was lost, and no more: where that is less than is worth fetching, or has no room, there
// is nothing to ask for. Each further loss gives a request all its fetches again, so that it can always make up for it;
// and there are only so many of them in a prompt.
bool CacheImpl::may_ask_again(Request& r, std::uint64_t found) const {
  const bool has_lost = found + least_gain() <= r.known;
  if (has_lost && found + least_gain() <= r.asked_from) r.fetches = 0;
  if (r.fetches >= kMaxFetches) return false;
  return r.fetch_refused || (has_lost && r.room_needed <= host_blocks_in_reach());
}

// While the request queued, what it could have used was evicted, or its prefetch found no capacity. True: it waits.
bool CacheImpl::fetch_again(Request& r, std::uint64_t found) {
  if (!may_prefetch() || r.restarts > 0 || r.gave_up || !may_ask_again(r, found)) return false;
  // wait_complete takes its turn: fetches of everyone at once would only push each other out of the host.
  const bool takes_turns = config_.prefetch_policy == PrefetchPolicy::kWaitComplete && running_ > 0;
  maybe_prefetch(r, !takes_turns);
  if (r.phase == RequestPhase::kPrefetching) return true;
  if (!takes_turns || !r.fetch_refused) return false;
  wait_for_turn(r);
  return true;
}

}  // namespace larder
