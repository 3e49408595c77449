// SPDX-License-Identifier: Apache-2.0
#include "metadata/embedded_metadata.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "metadata/embedded_impl.h"

namespace larder {
namespace {

using metadata::HashedKey;
using metadata::JournalBatch;
using metadata::Ticket;

constexpr std::size_t kKeysPerLock = 1024;                          // a long request lets others in between
constexpr std::uint64_t kGenerationBlock = std::uint64_t{1} << 20;  // one sync of the journal each

}  // namespace

Status check_namespace(const MetadataNamespace& name_space) {
  const auto is_bad = [](char c) { return c == ':' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name_space.name.empty() || name_space.text().size() > kMaxNamespaceBytes ||
      std::any_of(name_space.name.begin(), name_space.name.end(), is_bad)) {
    return invalid_argument("a namespace's name has 1 to " + std::to_string(kMaxNamespaceBytes) +
                            " bytes with its rank, no ':' and no control characters");
  }
  return Status::ok();
}

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeyBytes) return Status::ok();
  return invalid_argument("a key has 1 to " + std::to_string(kMaxKeyBytes) + " bytes, not " +
                          std::to_string(key.size()));
}

EmbeddedMetadata::EmbeddedMetadata(const EmbeddedMetadataOptions& options, Clock& clock,
                                   std::unique_ptr<metadata::Journal> journal)
    : options_(options), clock_(clock), log_(std::move(journal)) {}

EmbeddedMetadata::~EmbeddedMetadata() = default;

Result<std::unique_ptr<EmbeddedMetadata>> EmbeddedMetadata::create(const EmbeddedMetadataOptions& options, Clock& clock,
                                                                   std::unique_ptr<metadata::Journal> journal) {
  const Nanos zero{0};
  if (options.max_lease < zero || options.max_ttl <= zero || options.max_io_lifetime < zero ||
      options.max_namespaces == 0 || options.max_pages == 0 || options.max_pages > kMaxNamespacePages) {
    return invalid_argument("metadata service: the time limits and quotas must be positive");
  }
  std::unique_ptr<EmbeddedMetadata> service(new EmbeddedMetadata(options, clock, std::move(journal)));
  if (service->log_.has_journal()) LARDER_RETURN_IF_ERROR(service->recover());
  return service;
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
    if (pages == 0 || pages > kMaxNamespacePages || !check_namespace(name_space).is_ok() ||
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
  JournalBatch batch;
  metadata::record_format(batch);
  const Ticket ticket = log_.append(batch);
  return log_.commit(ticket, ticket);
}

Result<EmbeddedMetadata::Space*> EmbeddedMetadata::space_of(const MetadataNamespace* name_space) {
  if (name_space == nullptr) return invalid_argument("a request without a namespace");
  LARDER_RETURN_IF_ERROR(check_namespace(*name_space));
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

Result<std::uint64_t> EmbeddedMetadata::initialize(const MetadataNamespace& name_space, std::uint64_t pages) {
  LARDER_RETURN_IF_ERROR(check_namespace(name_space));
  if (pages == 0 || pages > kMaxNamespacePages) {
    return invalid_argument("a namespace has 1 to " + std::to_string(kMaxNamespacePages) + " pages, not " +
                            std::to_string(pages));
  }
  LARDER_RETURN_IF_ERROR(log_.admit());
  Ticket defined = 0;
  std::uint64_t given = 0;
  {
    LockGuard guard(registry_mutex_);
    const auto found = spaces_.find(name_space);
    Space* space = found == spaces_.end() ? nullptr : found->second.get();
    if (space == nullptr) {
      if (spaces_.size() >= options_.max_namespaces) {
        return overloaded("the metadata service has " + std::to_string(spaces_.size()) + " namespaces, its limit");
      }
      // It is among the others once it is in the journal's queue, and what follows needs no memory: a number that is
      // in memory alone would be a gap in the journal.
      const auto id = static_cast<metadata::NamespaceId>(spaces_.size());
      Spaces fresh;
      space = &add_space(fresh, id, name_space, std::min(pages, options_.max_pages));
      JournalBatch batch;
      metadata::record_namespace(batch, id, name_space, std::min(pages, options_.max_pages));
      space->defined = log_.append(batch);
      spaces_.merge(fresh);
    }
    defined = space->defined;
    given = space->pages;
  }
  LARDER_RETURN_IF_ERROR(log_.commit(defined, defined));
  return given;
}

Result<std::vector<std::vector<std::optional<PageRef>>>> EmbeddedMetadata::find(std::span<const MetadataKeys> wanted,
                                                                                Nanos lease) {
  if (lease.count() < 0) return invalid_argument("a lease is not negative");
  lease = std::min(lease, options_.max_lease);
  std::vector<std::vector<std::optional<PageRef>>> answer(wanted.size());
  std::vector<HashedKey> keys;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Result<Space*> space = space_of(wanted[i].name_space);
    if (!space) return space.status();
    keys.clear();
    keys.reserve(wanted[i].keys.size());
    for (const std::string_view key : wanted[i].keys) {
      LARDER_RETURN_IF_ERROR(check_key(key));
      keys.push_back({key, metadata::hash_key(key)});
    }
    answer[i].resize(keys.size());
    const std::span<std::optional<PageRef>> out(answer[i]);
    const std::span<const HashedKey> all(keys);
    for (std::size_t from = 0; from < keys.size(); from += kKeysPerLock) {
      const std::size_t count = std::min(kKeysPerLock, keys.size() - from);
      LockGuard guard((*space)->mutex);
      (*space)->table.find(all.subspan(from, count), lease, clock_.now(), out.subspan(from, count));
    }
  }
  return answer;
}

Result<std::vector<std::vector<Reserved>>> EmbeddedMetadata::reserve(const MetadataSession& session,
                                                                     std::span<const ReserveItems> wanted, Nanos ttl) {
  if (ttl.count() <= 0) return invalid_argument("a reservation needs a time above 0");
  std::vector<Space*> spaces;
  for (const ReserveItems& items : wanted) {
    const Result<Space*> space = space_of(items.name_space);
    if (!space) return space.status();
    spaces.push_back(*space);
    for (const ReserveItem& item : items.items) {
      LARDER_RETURN_IF_ERROR(check_key(item.key));
      if (!item.parent.empty()) LARDER_RETURN_IF_ERROR(check_key(item.parent));
    }
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
}

Ticket EmbeddedMetadata::reserve_in(Space& space, const MetadataSession& session, std::span<const ReserveItem> items,
                                    Nanos ttl, std::vector<Reserved>& answer) {
  std::vector<metadata::ReserveWish> wishes;
  wishes.reserve(items.size());
  for (const ReserveItem& item : items) {
    const bool follows = !wishes.empty() && item.parent == wishes.back().key.bytes;
    const std::uint64_t parent =
        follows ? wishes.back().key.hash : (item.parent.empty() ? 0 : metadata::hash_key(item.parent));
    wishes.push_back({{item.key, metadata::hash_key(item.key)}, parent});
  }
  std::vector<metadata::ReserveAnswer> answers(items.size());
  answer.reserve(items.size());
  JournalBatch batch;
  LockGuard guard(space.mutex);
  const bool needs_generations =
      log_.has_journal() && space.table.next_generation() + items.size() > space.generation_end;
  const std::uint64_t generation_end = space.table.next_generation() + items.size() + kGenerationBlock;
  if (needs_generations) metadata::record_generations(batch, space.id, generation_end);
  const TimePoint now = clock_.now();
  Ticket ticket = 0;
  try {
    space.table.reserve(session, wishes, now + ttl, now, answers);
    for (std::size_t i = 0; i < items.size(); ++i) {
      answer.push_back(answers[i].reserved);
      if (!answers[i].is_new || !log_.has_journal()) continue;
      metadata::record_reserved(batch, space.id, answers[i].reserved.ref, wishes[i].parent_hash, wishes[i].key.bytes);
    }
    ticket = log_.append(batch);
  } catch (const std::exception&) {
    // No memory. The journal still has the keys that these pages had before: the same request, sent again, must write
    // down what it gets.
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (answers[i].is_new) space.table.release(session, items[i].key, answers[i].reserved.ref);
    }
    throw;
  }
  if (needs_generations) {
    space.generation_end = generation_end;
    space.generation_ticket = ticket;
  }
  return space.generation_ticket;
}

Result<std::uint64_t> EmbeddedMetadata::remove(std::span<const ConfirmItem> items) {
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
  for (std::size_t i = 0; i < items.size(); ++i) {
    const HashedKey key{items[i].key, metadata::hash_key(items[i].key)};
    LockGuard guard(spaces[i]->mutex);
    const std::optional<PageRef> dropped = spaces[i]->table.remove(key, items[i].ref, clock_.now());
    if (!dropped) continue;
    ++removed;
    JournalBatch batch;
    metadata::record_forgotten(batch, spaces[i]->id, *dropped);
    (void)log_.append(batch);
  }
  LARDER_RETURN_IF_ERROR(log_.commit(log_.last(), 0));
  return removed;
}

Result<std::uint64_t> EmbeddedMetadata::clear(const MetadataNamespace& name_space, std::string_view prefix) {
  const Result<Space*> space = space_of(&name_space);
  if (!space) return space.status();
  LARDER_RETURN_IF_ERROR(log_.admit());
  std::uint64_t dropped = 0;
  {
    std::vector<PageRef> forgotten;
    JournalBatch batch;
    LockGuard guard((*space)->mutex);
    dropped = (*space)->table.clear(prefix, clock_.now(), forgotten);
    if (log_.has_journal()) {
      for (const PageRef& ref : forgotten) metadata::record_forgotten(batch, (*space)->id, ref);
    }
    (void)log_.append(batch);
  }
  // Synced: what somebody wanted to be gone does not come back with the power.
  const Ticket last = log_.last();
  LARDER_RETURN_IF_ERROR(log_.commit(last, last));
  return dropped;
}

Result<std::map<MetadataNamespace, NamespaceStats>> EmbeddedMetadata::stats() {
  std::map<MetadataNamespace, NamespaceStats> all;
  for (Space* const space : spaces()) {
    LockGuard guard(space->mutex);
    all[space->name] = space->table.stats(clock_.now());
  }
  return all;
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
