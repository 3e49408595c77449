// SPDX-License-Identifier: Apache-2.0
#include "metadata/embedded_metadata.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "base/log.h"
#include "metadata/embedded_impl.h"
#include "metadata/request_checks.h"

namespace larder {
namespace {

using metadata::check_key;
using metadata::check_namespace;
using metadata::HashedKey;
using metadata::record_bytes;
using metadata::Ticket;

constexpr std::uint64_t kGenerationBlock = std::uint64_t{1} << 20;  // one sync of the journal each

std::vector<metadata::ReserveWish> wishes_of(std::span<const ReserveItem> items) {
  std::vector<metadata::ReserveWish> wishes;
  wishes.reserve(items.size());
  for (const ReserveItem& item : items) {
    const bool follows = !wishes.empty() && item.parent == wishes.back().key.bytes;
    const std::uint64_t parent =
        follows ? wishes.back().key.hash : (item.parent.empty() ? 0 : metadata::hash_key(item.parent));
    wishes.push_back({{item.key, metadata::hash_key(item.key)}, parent});
  }
  return wishes;
}

}  // namespace

EmbeddedMetadata::EmbeddedMetadata(const EmbeddedMetadataOptions& options, Clock& clock,
                                   std::unique_ptr<metadata::Journal> journal)
    : options_(options), clock_(clock), log_(std::move(journal)) {}

EmbeddedMetadata::~EmbeddedMetadata() = default;

Result<std::unique_ptr<EmbeddedMetadata>> EmbeddedMetadata::create(const EmbeddedMetadataOptions& options, Clock& clock,
                                                                   std::unique_ptr<metadata::Journal> journal) try {
  const Nanos zero{0};
  if (options.max_lease < zero || options.max_ttl <= zero || options.max_io_lifetime < zero ||
      options.max_namespaces == 0 || options.max_pages == 0 || options.max_pages > kMaxNamespacePages) {
    return invalid_argument("metadata service: the time limits and quotas must be positive");
  }
  std::unique_ptr<EmbeddedMetadata> service(new EmbeddedMetadata(options, clock, std::move(journal)));
  if (service->log_.has_journal()) LARDER_RETURN_IF_ERROR(service->recover());
  return service;
} catch (const std::exception&) {
  return out_of_memory();
}

EmbeddedMetadata::Space& EmbeddedMetadata::add_space(Spaces& into, metadata::NamespaceId id,
                                                     const MetadataNamespace& name_space, std::uint64_t pages) const {
  const metadata::PageTableLimits limits{options_.max_lease, options_.max_io_lifetime};
  return *into.emplace(name_space, std::make_unique<Space>(id, name_space, pages, limits)).first->second;
}

Status EmbeddedMetadata::recover() {
  std::map<metadata::NamespaceId, std::uint64_t> generations;
  std::map<metadata::NamespaceId, Space*> by_id;
  metadata::RecordReader reader;
  reader.on_generations = [&](metadata::NamespaceId id, std::uint64_t end) {
    generations[id] = end;
    return Status::ok();
  };
  reader.on_namespace = [&](metadata::NamespaceId id, const MetadataNamespace& name_space, std::uint64_t pages) {
    LockGuard guard(registry_mutex_);
    // Numbers are given out without gaps, and records come in their order.
    if (id != by_id.size()) return corrupt("the metadata journal lacks namespace " + std::to_string(by_id.size()));
    if (!metadata::check_pages(pages).is_ok() || !check_namespace(&name_space).is_ok() ||
        spaces_.contains(name_space)) {
      return corrupt("the metadata journal has a strange namespace '" + name_space.text() + "'");
    }
    by_id[id] = &add_space(spaces_, id, name_space, pages);
    return Status::ok();
  };
  reader.on_page = [&](metadata::NamespaceId id, const metadata::RecordedPage& page) {
    const auto found = by_id.find(id);
    if (found == by_id.end()) return corrupt("the metadata journal has pages of a namespace that it does not name");
    LockGuard guard(found->second->mutex);
    metadata::PageTable& table = found->second->table;
    if (page.ref.page >= table.pages()) return corrupt("the metadata journal has a page behind the namespace's end");
    table.load(static_cast<metadata::PageNumber>(page.ref.page), page.ref.generation,
               {page.key, metadata::hash_key(page.key)}, page.parent_hash, page.is_stored);
    return Status::ok();
  };
  const Result<bool> has_records = metadata::read_records(*log_.journal(), reader);
  if (!has_records) return has_records.status();
  for (const auto& [id, space] : by_id) {
    LockGuard guard(space->mutex);
    space->table.recovered(generations[id], clock_.now());
    space->generation_end = space->table.next_generation();
  }
  if (*has_records) return Status::ok();
  metadata::CommitLog::Piece piece = log_.make_piece(record_bytes());
  metadata::record_format(piece.front());
  const Ticket ticket = log_.append(piece);
  return log_.commit(ticket, ticket);
}

Result<EmbeddedMetadata::Space*> EmbeddedMetadata::space_of(const MetadataNamespace* name_space) {
  LARDER_RETURN_IF_ERROR(check_namespace(name_space));
  LockGuard guard(registry_mutex_);
  const auto found = spaces_.find(*name_space);
  if (found == spaces_.end()) return not_found("namespace '" + name_space->text() + "' was never initialised");
  return found->second.get();
}

std::vector<EmbeddedMetadata::Space*> EmbeddedMetadata::spaces() {
  LockGuard guard(registry_mutex_);
  std::vector<Space*> all;
  for (const auto& [name, space] : spaces_) all.push_back(space.get());
  return all;
}

Result<std::uint64_t> EmbeddedMetadata::initialize(const MetadataNamespace& name_space, std::uint64_t pages) try {
  LARDER_RETURN_IF_ERROR(check_namespace(&name_space));
  LARDER_RETURN_IF_ERROR(metadata::check_pages(pages));
  LARDER_RETURN_IF_ERROR(log_.admit());
  Ticket defined = 0;
  std::uint64_t given = 0;
  {
    LockGuard guard(registry_mutex_);
    const auto found = spaces_.find(name_space);
    Space* space = found == spaces_.end() ? nullptr : found->second.get();
    if (space == nullptr) {
      if (spaces_.size() >= options_.max_namespaces) {
        return overloaded("the metadata service has " + std::to_string(spaces_.size()) +
                          " namespaces, its limit (--max-namespaces of larder metadata-server), and forgets none: "
                          "raise it there, or begin with an empty journal");
      }
      // It is among the others once it is in the journal's queue: a number that is in memory alone would be a gap in
      // the journal.
      const auto id = static_cast<metadata::NamespaceId>(spaces_.size());
      Spaces fresh;
      space = &add_space(fresh, id, name_space, std::min(pages, options_.max_pages));
      metadata::CommitLog::Piece piece = log_.make_piece(record_bytes(name_space.name.size()));
      if (!piece.empty()) metadata::record_namespace(piece.front(), id, name_space, space->pages);
      space->defined = log_.append(piece);
      spaces_.merge(fresh);
    }
    defined = space->defined;
    given = space->pages;
  }
  LARDER_RETURN_IF_ERROR(log_.commit(defined, defined));
  return given;
} catch (const std::exception&) {
  return out_of_memory();
}

std::vector<RankedMutex*> EmbeddedMetadata::mutexes_of(std::span<Space* const> spaces) {
  std::vector<RankedMutex*> mutexes;
  mutexes.reserve(spaces.size());
  for (Space* const space : spaces) mutexes.push_back(&space->mutex);
  std::sort(mutexes.begin(), mutexes.end(), std::less<>());
  mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
  return mutexes;
}

struct EmbeddedMetadata::FindWork {
  std::vector<Space*> spaces;   // of each entry of what is wanted
  std::vector<HashedKey> keys;  // of all entries, one after the other
  std::vector<std::vector<std::optional<PageRef>>> answer;

  [[nodiscard]] std::uint64_t publications() const {
    std::uint64_t sum = 0;  // they only grow: the same sum is the same numbers
    for (const Space* const space : spaces) sum += space->publications.load(std::memory_order_acquire);
    return sum;
  }
  [[nodiscard]] std::size_t absent() const {
    std::size_t count = 0;
    for (const auto& row : answer) count += static_cast<std::size_t>(std::count(row.begin(), row.end(), std::nullopt));
    return count;
  }
};

Status EmbeddedMetadata::plan_find(std::span<const MetadataKeys> wanted, FindWork& work) {
  std::size_t keys = 0;
  for (const MetadataKeys& part : wanted) keys += part.keys.size();
  work.keys.reserve(keys);
  work.spaces.reserve(wanted.size());
  work.answer.reserve(wanted.size());
  for (const MetadataKeys& part : wanted) {
    LARDER_ASSIGN_OR_RETURN(Space* const space, space_of(part.name_space));
    work.spaces.push_back(space);
    for (const std::string_view key : part.keys) {
      LARDER_RETURN_IF_ERROR(check_key(key));
      work.keys.push_back({key, metadata::hash_key(key)});
    }
    work.answer.emplace_back(part.keys.size());
  }
  return Status::ok();
}

void EmbeddedMetadata::find_each(FindWork& work, Nanos lease) {
  std::span<const HashedKey> left(work.keys);
  for (std::size_t i = 0; i < work.spaces.size(); ++i) {
    Space& space = *work.spaces[i];
    const std::span<const HashedKey> keys = left.first(work.answer[i].size());
    left = left.subspan(keys.size());
    for (std::size_t from = 0; from < keys.size(); from += kKeysPerLock) {
      LockGuard guard(space.mutex);
      space.table.find(part_of(keys, from), lease, clock_.now(), part_of(work.answer[i], from));
    }
  }
}

void EmbeddedMetadata::find_absent(FindWork& work, Nanos lease) {
  const std::vector<RankedMutex*> mutexes = mutexes_of(work.spaces);
  LockAll guard(mutexes);
  std::size_t first = 0;
  for (std::size_t i = 0; i < work.spaces.size(); ++i) {
    const std::span<std::optional<PageRef>> row(work.answer[i]);
    for (std::size_t from = 0, to = 0; from < row.size(); from = to + 1) {  // what is at `to`, was found
      for (to = from; to < row.size() && !row[to]; ++to) {}
      if (to == from) continue;
      const auto keys = std::span<const HashedKey>(work.keys).subspan(first + from, to - from);
      work.spaces[i]->table.find(keys, lease, clock_.now(), row.subspan(from, to - from));
    }
    first += row.size();
  }
}

Result<std::vector<std::vector<std::optional<PageRef>>>> EmbeddedMetadata::find(std::span<const MetadataKeys> wanted,
                                                                                Nanos lease) try {
  if (lease.count() < 0) return invalid_argument("a lease is not negative");
  lease = std::min(lease, options_.max_lease);
  FindWork work;
  LARDER_RETURN_IF_ERROR(plan_find(wanted, work));
  const std::uint64_t before = work.publications();
  find_each(work, lease);
  const bool is_one_look = work.spaces.size() == 1 && work.keys.size() <= kKeysPerLock;
  if (is_one_look || work.publications() == before) return std::move(work.answer);
  // A group came meanwhile: some of its pages may have been looked for before that, and the others after it.
  const std::size_t absent = work.absent();
  const bool may_be_half = absent > 0 && absent < work.keys.size();
  if (may_be_half && absent <= kKeysSeenAtOnce) find_absent(work, lease);
  return std::move(work.answer);
} catch (const std::exception&) {
  return out_of_memory();
}

Result<std::vector<std::vector<Reserved>>> EmbeddedMetadata::reserve(const MetadataSession& session,
                                                                     std::span<const ReserveItems> wanted,
                                                                     Nanos ttl) try {
  if (ttl.count() <= 0) return invalid_argument("a reservation needs a time above 0");
  std::vector<Space*> spaces;
  for (const ReserveItems& items : wanted) {
    const Result<Space*> space = space_of(items.name_space);
    if (!space) return space.status();
    spaces.push_back(*space);
    for (const ReserveItem& item : items.items) LARDER_RETURN_IF_ERROR(metadata::check_item(item));
  }
  LARDER_RETURN_IF_ERROR(log_.admit());
  ttl = std::min(ttl, options_.max_ttl);
  std::vector<std::vector<Reserved>> answer(wanted.size());
  Ticket synced = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Ticket needed = reserve_in(*spaces[i], session, wanted[i].items, ttl, answer[i]);
    synced = std::max(synced, needed);
  }
  // Also what an earlier call with this session reserved may still be on its way to the journal.
  LARDER_RETURN_IF_ERROR(log_.commit(log_.last(), synced));
  return answer;
} catch (const std::exception&) {
  return out_of_memory();
}

Ticket EmbeddedMetadata::reserve_in(Space& space, const MetadataSession& session, std::span<const ReserveItem> items,
                                    Nanos ttl, std::vector<Reserved>& answer) {
  const std::vector<metadata::ReserveWish> wishes = wishes_of(items);
  answer.reserve(items.size());
  std::uint64_t protected_from = 0;
  for (std::size_t from = 0; from < wishes.size(); from += kKeysPerLock) {
    LockGuard guard(space.mutex);
    const std::uint64_t recent = space.table.make_recent(part_of(wishes, from), clock_.now());
    if (from == 0) protected_from = recent;
  }
  Ticket synced = 0;
  for (std::size_t from = 0; from < wishes.size(); from += kKeysPerLock) {
    synced = std::max(synced, reserve_part(space, session, part_of(wishes, from), ttl, protected_from, answer));
  }
  return synced;
}

Ticket EmbeddedMetadata::reserve_part(Space& space, const MetadataSession& session,
                                      std::span<const metadata::ReserveWish> wishes, Nanos ttl,
                                      std::uint64_t protected_from, std::vector<Reserved>& answer) {
  std::size_t bytes = record_bytes();  // of the generations
  for (const metadata::ReserveWish& wish : wishes) bytes += record_bytes(wish.key.bytes.size());
  std::vector<metadata::ReserveAnswer> answers(wishes.size());
  metadata::CommitLog::Piece piece = log_.make_piece(bytes);
  LockGuard guard(space.mutex);
  const metadata::AppendAtEnd at_end(log_, piece);
  const std::uint64_t most = space.table.next_generation() + wishes.size();
  const bool needs_generations = !piece.empty() && most > space.generation_end;
  if (needs_generations) metadata::record_generations(piece.front(), space.id, most + kGenerationBlock);
  const auto write_down = [&] {
    for (std::size_t i = 0; i < wishes.size() && !piece.empty(); ++i) {
      if (!answers[i].is_new) continue;
      metadata::record_reserved(piece.front(), space.id, answers[i].reserved.ref, wishes[i].parent_hash,
                                wishes[i].key.bytes);
    }
  };
  const TimePoint now = clock_.now();
  try {
    space.table.reserve(session, wishes, now + ttl, now, protected_from, answers);
  } catch (const std::exception&) {
    // No memory. These pages had other keys before, which must not be there again after a restart.
    write_down();
    throw;
  }
  write_down();
  for (const metadata::ReserveAnswer& one : answers) answer.push_back(one.reserved);
  const Ticket ticket = log_.append(piece);
  if (needs_generations) {
    space.generation_end = most + kGenerationBlock;
    space.generation_ticket = ticket;
  }
  return space.generation_ticket;
}

Result<std::uint64_t> EmbeddedMetadata::remove(std::span<const ConfirmItem> items) try {
  std::vector<Space*> spaces;
  for (const ConfirmItem& item : items) {
    const bool is_same = !spaces.empty() && item.name_space == items[spaces.size() - 1].name_space;
    const Result<Space*> space = is_same ? Result<Space*>(spaces.back()) : space_of(item.name_space);
    if (!space) return space.status();
    LARDER_RETURN_IF_ERROR(check_key(item.key));
    spaces.push_back(*space);
  }
  LARDER_RETURN_IF_ERROR(log_.admit());
  std::uint64_t removed = 0;
  for (std::size_t from = 0, to = 0; from < items.size(); from = to) {
    while (to < items.size() && spaces[to] == spaces[from] && to - from < kKeysPerLock) ++to;
    removed += remove_in(*spaces[from], items.subspan(from, to - from));
  }
  LARDER_RETURN_IF_ERROR(log_.commit(log_.last(), 0));
  return removed;
} catch (const std::exception&) {
  return out_of_memory();
}

std::uint64_t EmbeddedMetadata::remove_in(Space& space, std::span<const ConfirmItem> items) {
  metadata::CommitLog::Piece piece = log_.make_piece(items.size() * record_bytes());
  std::uint64_t removed = 0;
  LockGuard guard(space.mutex);
  const metadata::AppendAtEnd at_end(log_, piece);
  for (const ConfirmItem& item : items) {
    const HashedKey key{item.key, metadata::hash_key(item.key)};
    const std::optional<PageRef> dropped = space.table.remove(key, item.ref, clock_.now());
    if (!dropped) continue;
    ++removed;
    if (!piece.empty()) metadata::record_forgotten(piece.front(), space.id, *dropped);
  }
  return removed;
}

Result<std::uint64_t> EmbeddedMetadata::clear(const MetadataNamespace& name_space, std::string_view prefix) try {
  const Result<Space*> space = space_of(&name_space);
  if (!space) return space.status();
  LARDER_RETURN_IF_ERROR(log_.admit());
  std::uint64_t dropped = 0;
  metadata::ClearPart part{0, kKeysPerLock, 0};
  while (part.from < (*space)->pages) {
    dropped += clear_part(**space, prefix, part);
    LARDER_RETURN_IF_ERROR(log_.commit(log_.last(), 0));  // so that no more than a part waits in memory
  }
  // Synced: what somebody wanted to be gone does not come back with the power.
  const Ticket last = log_.last();
  LARDER_RETURN_IF_ERROR(log_.commit(last, last));
  return dropped;
} catch (const std::exception&) {
  return out_of_memory();
}

std::uint64_t EmbeddedMetadata::clear_part(Space& space, std::string_view prefix, metadata::ClearPart& part) {
  metadata::CommitLog::Piece piece = log_.make_piece(part.count * record_bytes());
  LockGuard guard(space.mutex);
  const metadata::AppendAtEnd at_end(log_, piece);
  if (part.from == 0) part.before = space.table.next_generation();
  return space.table.clear(prefix, part, clock_.now(), [&](const PageRef& ref) {
    if (!piece.empty()) metadata::record_forgotten(piece.front(), space.id, ref);
  });
}

Result<std::map<MetadataNamespace, NamespaceStats>> EmbeddedMetadata::stats() try {
  std::map<MetadataNamespace, NamespaceStats> all;
  for (Space* const space : spaces()) {
    LockGuard guard(space->mutex);
    all[space->name] = space->table.stats(clock_.now());
  }
  return all;
} catch (const std::exception&) {
  return out_of_memory();
}

Status EmbeddedMetadata::check() {
  for (Space* const space : spaces()) {
    LockGuard guard(space->mutex);
    const Status status = space->table.check();
    if (!status.is_ok()) return internal_error("namespace '" + space->name.text() + "', " + status.message());
  }
  return Status::ok();
}

}  // namespace larder
