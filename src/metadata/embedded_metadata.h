// SPDX-License-Identifier: Apache-2.0
// The page-index service in this process; also what the HTTP server serves.
//
// Purpose: MetadataService over one PageTable per namespace (metadata/page_table.h) and one journal for all of them.
// Threads: any. One lock per namespace (rank kMetadata), and no I/O under any: an answer waits for the journal after
// the locks are gone (metadata/commit_log.h). Groups are published under the locks of all their namespaces, and find()
// takes one lock after the other: where something was published meanwhile, it looks once more, under all locks, for
// what it has not found, so that it sees groups whole. A confirmation is in the journal with all its groups and
// namespaces or not at all; other calls are there one namespace after the other, a clear() in parts.
// Durability with a journal: what was answered survives kill -9. A power cut of the machine loses the last changes that
// were not asked for as `durable` (namespaces, clears, and what keeps generations from repeating always are).
// After a restart stored pages count as leased for max_lease, and used pages that hold no key rest for the longer of
// max_lease and max_io_lifetime.
// Errors, besides those of MetadataService: kOverloaded from initialize(): max_namespaces are there. kUnavailable from
// everything that changes: the journal refuses (a full disk); find() goes on, and the service mends itself when the
// journal does. kUnavailable from any call: memory ran out; nothing throws.
// Cost: find 128 keys: about 5 us with 1,000,000 stored pages; reserve and confirm them: 40 us, with RocksDB some 300
// us. Neither depends on the number of stored pages, but for the misses of the processor's caches (larder bench
// metadata).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "metadata/commit_log.h"
#include "metadata/journal.h"
#include "metadata/journal_records.h"
#include "metadata/page_table.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

struct EmbeddedMetadataOptions {
  Nanos max_lease = std::chrono::seconds(120);
  Nanos max_ttl = kUsualMaxReservation;               // of a reservation
  Nanos max_io_lifetime = std::chrono::seconds(120);  // the longest that a write takes after its process gave it up
  std::size_t max_namespaces = 1024;
  std::uint64_t max_pages = kMaxNamespacePages;  // the quota of each namespace: initialize() gives no more
};

class EmbeddedMetadata final : public MetadataService {
 public:
  // Reads what the journal has. journal null: nothing outlives the object. `clock` outlives the object.
  // kInvalidArgument: an option. kCorrupt, kUnsupported, kUnavailable: the journal; kUnavailable: memory, too.
  [[nodiscard]] static Result<std::unique_ptr<EmbeddedMetadata>> create(
      const EmbeddedMetadataOptions& options, Clock& clock, std::unique_ptr<metadata::Journal> journal = nullptr);
  ~EmbeddedMetadata() override;

  [[nodiscard]] bool changes_may_wait() const override { return log_.has_journal(); }
  [[nodiscard]] Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override;
  [[nodiscard]] Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                              Nanos lease) override;
  [[nodiscard]] Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                                   std::span<const ReserveItems> wanted,
                                                                   Nanos ttl) override;
  [[nodiscard]] Result<std::vector<Status>> confirm(const ConfirmRequest& request) override;
  [[nodiscard]] Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override;
  [[nodiscard]] Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override;
  [[nodiscard]] Result<std::map<MetadataNamespace, NamespaceStats>> stats() override;

  // The invariants of every namespace; kInternal with what is broken. Slow: for tests and tools.
  [[nodiscard]] Status check();

 private:
  struct Space;
  using Spaces = std::map<MetadataNamespace, std::unique_ptr<Space>>;
  struct ConfirmWork;

  EmbeddedMetadata(const EmbeddedMetadataOptions& options, Clock& clock, std::unique_ptr<metadata::Journal> journal);
  [[nodiscard]] Status recover();
  [[nodiscard]] Result<Space*> space_of(const MetadataNamespace* name_space) LARDER_EXCLUDES(registry_mutex_);
  [[nodiscard]] std::vector<Space*> spaces() LARDER_EXCLUDES(registry_mutex_);
  // Of these spaces, as LockAll wants them.
  [[nodiscard]] static std::vector<RankedMutex*> mutexes_of(std::span<Space* const> spaces);
  struct FindWork;
  [[nodiscard]] Status plan_find(std::span<const MetadataKeys> wanted, FindWork& work);
  void find_each(FindWork& work, Nanos lease);
  // Those that were not found, once more: all that was published until then is seen.
  void find_absent(FindWork& work, Nanos lease) LARDER_NO_THREAD_SAFETY;  // under all locks
  Space& add_space(Spaces& into, metadata::NamespaceId id, const MetadataNamespace& name_space,
                   std::uint64_t pages) const;
  // Gives the ticket that must be synced before the answer.
  [[nodiscard]] metadata::Ticket reserve_in(Space& space, const MetadataSession& session,
                                            std::span<const ReserveItem> items, Nanos ttl,
                                            std::vector<Reserved>& answer);
  // Nothing as recent as `protected_from` is evicted.
  [[nodiscard]] metadata::Ticket reserve_part(Space& space, const MetadataSession& session,
                                              std::span<const metadata::ReserveWish> wishes, Nanos ttl,
                                              std::uint64_t protected_from, std::vector<Reserved>& answer);
  [[nodiscard]] std::uint64_t remove_in(Space& space, std::span<const ConfirmItem> items);
  // The first part notes what the others are to leave alone. Gives the number of keys dropped.
  [[nodiscard]] std::uint64_t clear_part(Space& space, std::string_view prefix, metadata::ClearPart& part);
  [[nodiscard]] Status plan_confirm(const ConfirmRequest& request, ConfirmWork& work);
  void mark(const ConfirmRequest& request, ConfirmWork& work);
  void record(const ConfirmWork& work, metadata::CommitLog::Piece& piece);
  void publish(const ConfirmRequest& request, const ConfirmWork& work);
  void publish_part(const ConfirmRequest& request, const ConfirmWork& work, std::size_t from,
                    std::size_t to) LARDER_NO_THREAD_SAFETY;  // under all locks
  void release(const ConfirmRequest& request, const ConfirmWork& work, std::size_t number);

  // constant after construction
  const EmbeddedMetadataOptions options_;
  Clock& clock_;

  metadata::CommitLog log_;
  RankedMutex registry_mutex_{LockRank::kMetadata};   // never together with that of a Space
  Spaces spaces_ LARDER_GUARDED_BY(registry_mutex_);  // they stay
};

}  // namespace larder
