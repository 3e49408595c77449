// SPDX-License-Identifier: Apache-2.0
#include "controller/miss_reasons.h"

#include <algorithm>
#include <optional>

namespace larder {

Miss MissReasons::explain(const Found& found) const {
  const std::uint64_t page_size = parts_.model.page_size, at = found.best.at.pages;
  if (at >= found.tokens.size() / page_size) return {};
  const auto because = [&](MissReason reason) { return Miss{reason, at * page_size, found.best.component}; };
  const bool storage_has_more = found.fetched.known > at;
  switch (found.fetched.trouble) {
    case FetchTrouble::kDamaged: return because(MissReason::kStorageDamaged);
    case FetchTrouble::kFailed: return because(MissReason::kStorageFailed);
    case FetchTrouble::kLate: return because(MissReason::kStorageLate);
    case FetchTrouble::kNotFetched:
    case FetchTrouble::kNone: break;
  }
  if (storage_has_more) {
    return because(found.fetched.is_under_way ? MissReason::kStorageLate : MissReason::kNotFetched);
  }
  return at >= found.full_pages ? full_missing(found) : part_missing(found);
}

Miss MissReasons::full_missing(const Found& found) const {
  const std::uint64_t page_size = parts_.model.page_size, page = found.full_pages;
  PathHash path = parts_.tree.keys().path_hash({found.match.walked.node, page});
  path.append(found.tokens.subspan(page * page_size, page_size));
  const std::optional<Loss> loss = parts_.losses.find(ComponentKind::kFull, path);
  if (loss) return lost(found, ComponentKind::kFull, page, *loss);
  if (is_full_stored(found)) return without_use(found);
  if (found.fetched.is_open) return {MissReason::kStorageLate, page * page_size};
  if (page < found.match.walked.pages) return {MissReason::kEvicted, page * page_size};  // too long ago to be known
  bool has_other_salt = false;
  if (page == 0 && is_elsewhere(found, has_other_salt)) {
    return {.reason = MissReason::kOtherNamespace, .is_other_salt = has_other_salt};
  }
  const RadixTree::WaysOn ways = parts_.tree.ways_on(found.match.walked, found.tokens.subspan(page * page_size));
  const std::uint64_t shared = page * page_size + ways.equal;
  if (ways.any && shared >= kLeastShared) return {MissReason::kDiverged, shared};
  return {MissReason::kNeverSeen, page * page_size};
}

// The boundaries behind the restore point, as far as full reaches: the last one that was a restore point counts. If
// none was, those behind, whose full has left with their state.
Miss MissReasons::part_missing(const Found& found) const {
  const std::uint64_t page_size = parts_.model.page_size, to = found.full_pages;
  const std::uint64_t from = std::max(found.best.at.pages, to - std::min(to, kMostBoundaries));
  const std::uint64_t end = std::min(found.tokens.size() / page_size, to + kMostBoundaries);
  const ComponentKind c = found.best.component;
  PathHash path = parts_.tree.keys().path_hash({found.match.walked.node, from});
  std::optional<Loss> last;
  std::uint64_t at = found.best.at.pages;
  for (std::uint64_t page = from; page < end; ++page) {
    path.append(found.tokens.subspan(page * page_size, page_size));
    if (page == to && (last || !parts_.losses.find(ComponentKind::kFull, path))) break;
    const std::optional<Loss> loss = parts_.losses.find(c, path);
    if (!loss) continue;
    last = loss;
    at = page + 1;
  }
  if (last) return lost(found, c, at, *last);
  return {found.fetched.is_open ? MissReason::kStorageLate : MissReason::kNoCheckpoint, at * page_size, c};
}

Miss MissReasons::lost(const Found& found, ComponentKind c, std::uint64_t page, const Loss& loss) const {
  Miss miss{loss.is_flush ? MissReason::kFlushed : MissReason::kEvicted, page * parts_.model.page_size, c};
  miss.tier = loss.tier == Tier::kDevice ? LostFrom::kDevice : LostFrom::kHost;
  miss.ago = parts_.clock.now() - loss.when;
  miss.by = loss.by;
  const std::uint32_t epoch = has_storage_ ? parts_.backlog.epoch() : 0;
  if (epoch == 0) return miss;
  if (loss.declined_epoch == epoch) miss.reason = MissReason::kStorageDeclined;
  if (loss.stored_epoch != epoch) return miss;
  if (c == ComponentKind::kFull && is_full_stored(found)) return without_use(found);
  if (found.fetched.trouble == FetchTrouble::kNotFetched) return {MissReason::kNotFetched, miss.at_token, c};
  if (found.fetched.is_open) return {MissReason::kStorageLate, miss.at_token, c};
  miss.reason = MissReason::kEvicted;
  miss.tier = LostFrom::kStorage;  // it had it, and was asked
  return miss;
}

bool MissReasons::is_full_stored(const Found& found) const {
  return !needs_full_alone(parts_.model) && found.fetched.reach.full > found.full_pages;
}

// No restore point follows in storage either, as far as it has answered.
Miss MissReasons::without_use(const Found& found) const {
  const std::uint64_t at = found.best.at.pages, at_token = at * parts_.model.page_size;
  const bool has_window = !parts_.model.has(ComponentKind::kSwa) || found.fetched.reach.window > at;
  const bool lacks_state = has_window && parts_.model.has(ComponentKind::kMamba);
  return {found.fetched.is_open ? MissReason::kStorageLate : MissReason::kNoCheckpoint, at_token,
          lacks_state ? ComponentKind::kMamba : ComponentKind::kSwa};
}

// Is the first page cached under another adapter of the same tenant, or else under another salt?
bool MissReasons::is_elsewhere(const Found& found, bool& has_other_salt) const {
  const SpaceTable::Name& own = parts_.spaces.name(found.space);
  std::size_t left = kMostSpaces;
  bool found_other_salt = false;
  for (const auto& [name, space] : parts_.spaces.names()) {
    if (left-- == 0) break;
    if (space == found.space) continue;
    if (parts_.tree.match(space, found.tokens.first(parts_.model.page_size)).walked.pages == 0) continue;
    if (name.second == own.second) return true;
    found_other_salt = true;
  }
  has_other_salt = found_other_salt;
  return found_other_salt;
}

}  // namespace larder
