// SPDX-License-Identifier: Apache-2.0
#include "controller/lookups.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"
#include "controller/host_presence.h"
#include "controller/joint.h"

namespace larder {

Lookups::Lookups(const ConnectorConfig& config, const Parts& parts)
    : config_(config),
      model_(parts.model),
      host_(parts.host),
      tree_(parts.tree),
      spaces_(parts.spaces),
      prefetcher_(parts.prefetcher),
      reasons_(parts.reasons) {}

Result<LookupId> Lookups::begin(NamespaceId space, const LookupRequest& request) {
  Lookup lookup;
  lookup.space = space;
  lookup.use = spaces_.use(space);
  // The last token is computed in any case: its output is what the engine wants.
  const std::uint64_t pages = (request.tokens.size() - 1) / model_.page_size;
  lookup.tokens.assign(request.tokens.begin(),
                       request.tokens.begin() + static_cast<std::ptrdiff_t>(pages * model_.page_size));
  lookup.has = request.has;
  tree_.note_prompt(space, lookup.tokens);
  const LookupId id(next_++);
  const auto it = lookups_.emplace(id.v, std::move(lookup)).first;
  it->second.asks_storage = request.asks_storage && is_worth_fetching(it->second);
  // The prefetcher knows lookups as requests that queue. Their tokens stay where they are.
  if (it->second.asks_storage) prefetcher_.enter(RequestId(id.v), space, it->second.tokens);
  return id;
}

// What the engine has itself is no gain.
bool Lookups::is_worth_fetching(const Lookup& lookup) const {
  const std::uint64_t own = lookup.has.pages * model_.page_size;
  return lookup.tokens.size() > own && lookup.tokens.size() - own >= config_.tiers.prefetch_threshold;
}

const Lookups::Lookup* Lookups::find(LookupId id) const {
  const auto it = lookups_.find(id.v);
  return it == lookups_.end() ? nullptr : &it->second;
}

// The engine's window counts if it has all that a window of the point wants before its own end.
LoadPoint Lookups::load_point(const Lookup& lookup, std::uint64_t pages) const {
  LoadPoint point;
  point.pages = pages;
  point.full_from = std::min(lookup.has.pages, pages);
  point.window_from = pages;
  if (model_.has(ComponentKind::kSwa)) {
    point.window_from = pages - model_.window_pages_at(pages);
    const std::uint64_t own = lookup.has.pages - std::min(lookup.has.pages, lookup.has.window_pages);
    if (own <= point.window_from) point.window_from = std::max(point.window_from, point.full_from);
  }
  point.has_state = model_.has(ComponentKind::kMamba);
  const std::array<std::uint64_t, kComponentCount> count = {pages - point.full_from, pages - point.window_from,
                                                            point.has_state ? 1u : 0u};
  for (const PoolSpec& pool : model_.pools) point.bytes += pool.page_bytes() * count[index_of(pool.component)];
  return point;
}

LookupResult Lookups::points_of(const Lookup& lookup, const MatchResult& match) const {
  LookupResult result;
  result.reason = match.any.reason;
  result.component = match.any.component;
  result.known_pages = match.full_any_pages;
  const std::uint64_t last = match.any.at.pages, least = std::max<std::uint64_t>(1, lookup.has.pages);
  if (last < least) return result;
  const TreePosition at = position_on_path(tree_, match.walked.node, last);
  const OutcomeBits bits = restore_candidates(model_, host_presence(tree_, model_, at), least - 1, last);
  for (std::uint64_t p = last; p >= least && result.points.size() < config_.max_points; --p) {
    if (has_bit(bits, p - 1)) result.points.push_back(load_point(lookup, p));
  }
  std::reverse(result.points.begin(), result.points.end());
  return result;
}

// Full of the path to the last point, each page of a window once, and the states.
std::uint64_t Lookups::blocks_of(const LookupResult& result) const {
  if (result.points.empty()) return 0;
  const std::uint64_t pages = result.points.back().pages;
  std::uint64_t window = 0, counted = 0;  // counted: window pages before it
  for (const LoadPoint& point : result.points) {
    const std::uint64_t from = std::max(counted, point.pages - model_.window_pages_at(point.pages));
    window += point.pages - from;
    counted = point.pages;
  }
  const std::uint64_t states = model_.has(ComponentKind::kMamba) ? result.points.size() : 0;
  return pages * host_.blocks_per_slot(ComponentKind::kFull) +
         (model_.has(ComponentKind::kSwa) ? window * host_.blocks_per_slot(ComponentKind::kSwa) : 0) +
         states * host_.blocks_per_slot(ComponentKind::kMamba);
}

Status Lookups::lease(LookupId id) {
  Lookup& lookup = lookups_.at(id.v);
  if (lookup.is_leased) return Status::ok();
  lookup.is_told = lookup.is_noted = false;
  lookup.refused = 0;
  const RequestId request(id.v);
  if (prefetcher_.waits_for(request) == Prefetcher::WaitsFor::kStorage)
    return overloaded("points: storage is being read; after a poll");
  prefetcher_.take_arrived(request);
  const MatchResult match = tree_.match(lookup.space, lookup.tokens);
  if (prefetcher_.asks_again(request, match.any.at.pages)) {
    return overloaded("points: storage is read again; after a poll");
  }
  LookupResult result = points_of(lookup, match);
  Prefetcher::Fetched fetched = prefetcher_.fetched(request);
  if (!lookup.asks_storage) fetched.trouble = FetchTrouble::kNotFetched;
  result.miss = reasons_.explain({lookup.space, lookup.tokens, match, match.any, match.full_any_pages, fetched});
  const std::uint64_t blocks = blocks_of(result);
  if (!is_room_for(blocks)) {
    lookup.refused = blocks;
    return overloaded("points: leases keep " + std::to_string(leased_) + " of the host's " +
                      std::to_string(host_.total_blocks()) + " blocks, and may keep " + std::to_string(most_leased()) +
                      ": release some, or go on without");
  }
  // All of a path is kept by its end; windows and states each by themselves.
  const std::size_t first = needs_full_alone(model_) && !result.points.empty() ? result.points.size() - 1 : 0;
  for (std::size_t i = first; i < result.points.size(); ++i) {
    lookup.end = tree_.settle(position_on_path(tree_, match.walked.node, result.points[i].pages));
    if (!defect(Defect::kLeaseIgnored)) lookup.locks.push_back(tree_.lock(lookup.end, Tier::kHost, LockParts{}));
  }
  account(id, result);
  prefetcher_.start(request);
  std::vector<TokenId>().swap(lookup.tokens);  // the path is known by its end now
  lookup.result = std::move(result);
  lookup.is_leased = lookup.is_told = true;
  lookup.blocks = blocks;
  leased_ += blocks;
  return Status::ok();
}

std::uint64_t Lookups::most_leased() const {
  return static_cast<std::uint64_t>(config_.lease_share * static_cast<double>(host_.total_blocks()));
}

bool Lookups::is_ready(std::uint64_t id, const Lookup& lookup, bool has_parted) const {
  if (lookup.is_told || has_parted) return !lookup.is_told;
  const RequestId request(id);
  return is_room_for(lookup.refused) && prefetcher_.waits_for(request) == Prefetcher::WaitsFor::kNothing;
}

std::size_t Lookups::take_ready(std::span<ConnectorEvent> out, bool has_parted) {
  std::size_t count = 0;
  for (auto& [id, lookup] : lookups_) {
    if (count == out.size()) break;
    if (!is_ready(id, lookup, has_parted)) continue;
    lookup.is_told = true;
    out[count++] = {ConnectorEventKind::kLookup, id};
  }
  return count;
}

bool Lookups::note_ready(bool has_parted) {
  bool is_new = false;
  for (auto& [id, lookup] : lookups_) {
    const bool was_noted = std::exchange(lookup.is_noted, is_ready(id, lookup, has_parted));
    is_new |= lookup.is_noted && !was_noted;
  }
  return is_new;
}

void Lookups::account(LookupId id, LookupResult& result) const {
  const Prefetcher::Fetched fetched = prefetcher_.fetched(RequestId(id.v));
  const std::uint64_t last = result.points.empty() ? 0 : result.points.back().pages;
  result.from_storage = std::min(fetched.to, last) - std::min({fetched.from, fetched.to, last});
  if (result.reason == StopReason::kNone && fetched.known > last) result.reason = StopReason::kNotFetched;
}

Result<LoadPoint> Lookups::point(LookupId id, std::uint64_t pages) const {
  const Lookup* const lookup = find(id);
  if (lookup == nullptr) return not_found("load: no such lookup");
  if (!lookup->is_leased) return invalid_argument("load: ask for the points first, their lease keeps the pages");
  const std::vector<LoadPoint>& points = lookup->result.points;
  // Also those that were not listed.
  const bool is_on_path = !points.empty() && pages > 0 && pages >= lookup->has.pages && pages <= points.back().pages;
  if (needs_full_alone(model_) && is_on_path) return load_point(*lookup, pages);
  const auto it = std::lower_bound(points.begin(), points.end(), pages,
                                   [](const LoadPoint& point, std::uint64_t at) { return point.pages < at; });
  if (it != points.end() && it->pages == pages) return *it;
  return invalid_argument("load: " + std::to_string(pages) + " pages are not one of the lookup's points");
}

void Lookups::release(LookupId id) {
  const auto it = lookups_.find(id.v);
  if (it == lookups_.end()) return;
  // What is under way for one that took what came is adopted for the next one; nobody else wants the rest.
  it->second.is_leased ? prefetcher_.finish(RequestId(id.v)) : prefetcher_.leave(RequestId(id.v));
  for (LockHandle& lock : it->second.locks) tree_.unlock(lock);
  leased_ -= it->second.blocks;
  lookups_.erase(it);
}

// What storage brings for them is what was there before the flush.
void Lookups::renew(const std::function<Result<NamespaceId>(const SpaceTable::Name&)>& open) {
  for (auto& [id, lookup] : lookups_) {
    if (lookup.is_leased || !tree_.spaces().is_retired(lookup.space)) continue;
    prefetcher_.leave(RequestId(id));
    lookup.asks_storage = false;
    lookup.refused = 0;
    const Result<NamespaceId> space = open(spaces_.name(lookup.space));
    if (!space.is_ok()) {
      lookup.tokens.clear();  // it finds nothing
      continue;
    }
    lookup.space = *space;
    lookup.use = spaces_.use(*space);
  }
}

void Lookups::release_all() {
  while (!lookups_.empty()) release(LookupId(lookups_.begin()->first));
}

}  // namespace larder
