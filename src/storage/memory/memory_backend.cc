// SPDX-License-Identifier: Apache-2.0
#include "storage/memory/memory_backend.h"

#include <cstring>
#include <list>
#include <unordered_map>
#include <utility>

#include "storage/operation.h"
#include "storage/option_text.h"

namespace larder {
namespace {

// A page as written. Immutable, shared with the reads in flight.
struct StoredPage {
  EnvelopeBytes envelope;
  std::vector<std::byte> payload;
};

struct PageId {
  Digest256 namespace_digest, layout_fingerprint, key;
  PoolName pool;
  friend bool operator==(const PageId&, const PageId&) = default;
};
struct PageIdHash {
  std::size_t operator()(const PageId& id) const noexcept {
    return id.key.prefix64() ^ (id.namespace_digest.prefix64() * 31) ^ static_cast<std::size_t>(id.pool);
  }
};

struct StoredGroup {
  std::vector<PageId> pages;
  std::uint64_t bytes = 0;  // charged against max_size
};
using GroupList = std::list<StoredGroup>;  // most recently used first

class MemoryBackend final : public StorageBackend {
 public:
  MemoryBackend(std::uint64_t max_bytes, std::size_t queue_limit, Executor& executor)
      : max_bytes_(max_bytes), executor_(executor), gate_("memory", queue_limit) {
    info_.name = "memory";
    info_.atomic_groups = true;
  }
  ~MemoryBackend() override { gate_.drain(); }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return submit<ExistsOperation>(std::move(request), std::move(done), &MemoryBackend::run_exists);
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return submit<ReadOperation>(std::move(request), std::move(done), &MemoryBackend::run_read);
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return submit<WriteOperation>(std::move(request), std::move(done), &MemoryBackend::run_write);
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return submit<ClearOperation>(std::move(scope), std::move(done), &MemoryBackend::run_clear);
  }
  [[nodiscard]] BackendStats stats() const override {
    const std::uint64_t queued = gate_.in_flight();
    LockGuard guard(mutex_);
    BackendStats out = stats_;
    out.pages = pages_.size();
    out.physical_bytes = charged_bytes_;
    out.capacity_bytes = max_bytes_ == kUnlimitedBytes ? 0 : max_bytes_;
    out.queued = queued;
    return out;
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override { return gate_.close_within(limit); }

 private:
  struct Slot {
    std::shared_ptr<const StoredPage> page;
    GroupList::iterator group;
  };
  using PageMap = std::unordered_map<PageId, Slot, PageIdHash>;

  template <class Op, class Request, class Done>
  Status submit(Request request, Done done, void (MemoryBackend::*run)(Op&)) {
    return submit_operation<Op>(gate_, executor_, std::move(request), std::move(done),
                                [this, run](const std::shared_ptr<Op>& op) { (this->*run)(*op); });
  }

  static PageId id_of(const StoreScope& scope, PoolName pool, const PageKey& key) {
    return {scope.namespace_digest, scope.fingerprint(pool), key, pool};
  }

  void run_exists(ExistsOperation& op) LARDER_EXCLUDES(mutex_);
  void run_read(ReadOperation& op) LARDER_EXCLUDES(mutex_);
  void run_write(WriteOperation& op) LARDER_EXCLUDES(mutex_);
  void run_clear(ClearOperation& op) LARDER_EXCLUDES(mutex_);
  Status read_item(const StoreScope& scope, const ReadItem& item) LARDER_EXCLUDES(mutex_);
  Status write_group(const StoreScope& scope, const PageGroup& group) LARDER_EXCLUDES(mutex_);
  void insert_locked(std::vector<std::pair<PageId, std::shared_ptr<const StoredPage>>>& made) LARDER_REQUIRES(mutex_);
  // Pages dropped.
  std::uint64_t drop_group_locked(GroupList::iterator group) LARDER_REQUIRES(mutex_);

  // constant after construction
  const std::uint64_t max_bytes_;
  Executor& executor_;
  BackendInfo info_;

  OperationGate gate_;  // synchronises itself
  mutable RankedMutex mutex_{LockRank::kStorage};
  PageMap pages_ LARDER_GUARDED_BY(mutex_);
  GroupList groups_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t charged_bytes_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_generation_ LARDER_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_group_ LARDER_GUARDED_BY(mutex_) = 1;
  BackendStats stats_ LARDER_GUARDED_BY(mutex_);
};

void MemoryBackend::run_exists(ExistsOperation& op) {
  ExistsResult result;
  LockGuard guard(mutex_);
  for (const PoolName pool : op.request.pools) {
    PoolPresence& out = result.presence.emplace_back(PoolPresence{pool, {}});
    out.present.reserve(op.request.keys.size());
    const bool has_pool = !op.request.scope->fingerprint(pool).is_zero();
    for (const PageKey& key : op.request.keys) {
      out.present.push_back(has_pool && pages_.contains(id_of(*op.request.scope, pool, key)));
    }
  }
  op.result = std::move(result);
}

void MemoryBackend::run_read(ReadOperation& op) {
  for (std::size_t i = 0; i < op.request.items.size(); ++i) {
    op.result.items[i] = read_item(*op.request.scope, op.request.items[i]);
  }
}

Status MemoryBackend::read_item(const StoreScope& scope, const ReadItem& item) {
  const PageId id = id_of(scope, item.pool, item.key);
  const std::size_t wanted = payload_bytes(item.payload);
  std::shared_ptr<const StoredPage> page;
  {
    LockGuard guard(mutex_);
    ++stats_.reads;
    const auto at = pages_.find(id);
    if (at == pages_.end() || at->second.page->payload.size() != wanted) {
      ++stats_.read_misses;
      return not_found("page is not in the memory backend");
    }
    page = at->second.page;
    groups_.splice(groups_.begin(), groups_, at->second.group);
  }
  std::size_t offset = 0;
  for (const Segment& piece : item.payload) {
    if (piece.size != 0) std::memcpy(piece.data, page->payload.data() + offset, piece.size);
    offset += piece.size;
  }
  const ExpectedPage expected{item.pool, item.key, scope.namespace_digest, id.layout_fingerprint, wanted};
  const Status verified = verify_page(expected, page->envelope, item.payload);
  LockGuard guard(mutex_);
  if (verified.is_ok()) {
    ++stats_.read_hits;
    return verified;
  }
  ++stats_.corrupt;
  const auto at = pages_.find(id);
  if (at != pages_.end() && at->second.page == page) {  // not a newer write
    stats_.bytes -= wanted;
    pages_.erase(at);  // its group keeps the charge until it leaves
  }
  return verified;
}

void MemoryBackend::run_write(WriteOperation& op) {
  for (std::size_t i = 0; i < op.request.groups.size(); ++i) {
    Status status = check_group(*op.request.scope, op.request.groups[i]);
    if (status.is_ok()) {
      status = write_group(*op.request.scope, op.request.groups[i]);
    } else {
      LockGuard guard(mutex_);
      ++stats_.write_errors;
    }
    op.result.groups[i] = std::move(status);
  }
}

Status MemoryBackend::write_group(const StoreScope& scope, const PageGroup& group) {
  std::vector<std::pair<PageId, std::shared_ptr<const StoredPage>>> made;
  std::uint64_t generation = 0, group_id = 0, charge = 0;
  {
    LockGuard guard(mutex_);
    ++stats_.writes;
    group_id = next_group_++;
    generation = next_generation_;
    next_generation_ += group.items.size();
  }
  for (const WriteItem& item : group.items) charge += payload_bytes(item.payload) + kMemoryPageOverheadBytes;
  if (charge > max_bytes_) {
    LockGuard guard(mutex_);
    ++stats_.write_errors;
    return invalid_argument("a group of " + std::to_string(charge) + " bytes exceeds max_size of the memory backend");
  }
  for (const WriteItem& item : group.items) {
    auto page = std::make_shared<StoredPage>();
    page->payload.reserve(payload_bytes(item.payload));
    for (const Segment& piece : item.payload) {
      page->payload.insert(page->payload.end(), piece.data, piece.data + piece.size);
    }
    const Segment whole{page->payload.data(), page->payload.size()};
    const bool is_last = &item == &group.items.back();
    page->envelope = encode_envelope({item.pool, is_last ? kEnvelopeCommitMark : std::uint8_t{0}, item.key,
                                      scope.namespace_digest, scope.fingerprint(item.pool), generation++,
                                      page->payload.size(), payload_checksum({&whole, 1}), group_id});
    made.emplace_back(id_of(scope, item.pool, item.key), std::move(page));
  }
  LockGuard guard(mutex_);
  insert_locked(made);
  return Status::ok();
}

void MemoryBackend::insert_locked(std::vector<std::pair<PageId, std::shared_ptr<const StoredPage>>>& made) {
  StoredGroup fresh;
  for (const auto& [id, page] : made) {
    const auto at = pages_.find(id);
    if (at == pages_.end()) {
      fresh.bytes += page->payload.size() + kMemoryPageOverheadBytes;
    } else {
      groups_.splice(groups_.begin(), groups_, at->second.group);  // a duplicate counts as a use
    }
  }
  // A group whose duplicates are the oldest pages must not lose them to its own new ones: they were moved to the front.
  while (!groups_.empty() && charged_bytes_ + fresh.bytes > max_bytes_) {
    stats_.evicted += drop_group_locked(std::prev(groups_.end()));
  }
  groups_.push_front(std::move(fresh));
  std::uint64_t charged = 0;  // again: the eviction may have taken a duplicate after all
  for (auto& [id, page] : made) {
    const std::uint64_t size = page->payload.size();
    const auto [at, added] = pages_.try_emplace(id, Slot{std::move(page), groups_.begin()});
    if (!added) {
      ++stats_.duplicate_writes;
      continue;
    }
    groups_.front().pages.push_back(id);
    charged += size + kMemoryPageOverheadBytes;
    stats_.bytes += size;
  }
  groups_.front().bytes = charged;
  charged_bytes_ += charged;
  if (groups_.front().pages.empty()) groups_.pop_front();
  // Only a group made almost of duplicates can be above the limit here; it is at the front, so others pay.
  while (charged_bytes_ > max_bytes_ && groups_.size() > 1) {
    stats_.evicted += drop_group_locked(std::prev(groups_.end()));
  }
}

std::uint64_t MemoryBackend::drop_group_locked(GroupList::iterator group) {
  std::uint64_t dropped = 0;
  for (const PageId& id : group->pages) {
    const auto at = pages_.find(id);
    if (at == pages_.end() || at->second.group != group) continue;  // dropped as corrupt, and perhaps written anew
    stats_.bytes -= at->second.page->payload.size();
    pages_.erase(at);
    ++dropped;
  }
  charged_bytes_ -= group->bytes;
  groups_.erase(group);
  return dropped;
}

void MemoryBackend::run_clear(ClearOperation& op) {
  LockGuard guard(mutex_);
  for (auto group = groups_.begin(); group != groups_.end();) {
    const auto next = std::next(group);
    // A group is written under one scope, so its first page speaks for all.
    if (!op.request || group->pages.front().namespace_digest == op.request->namespace_digest) {
      (void)drop_group_locked(group);
    }
    group = next;
  }
  op.result = Status::ok();
}

Result<std::unique_ptr<StorageBackend>> create_memory(const BackendOptions& options,
                                                      const BackendEnvironment& environment) {
  if (environment.executor == nullptr) return invalid_argument("memory backend: no executor given");
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t max_size, size_option(options, "max_size", 1'000'000'000));
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t queue_limit, count_option(options, "queue_limit", 1024, 1, 1'000'000));
  return std::unique_ptr<StorageBackend>(std::make_unique<MemoryBackend>(max_size, queue_limit, *environment.executor));
}

}  // namespace

Status register_memory_backend(BackendFactory& factory) {
  return factory.add("memory",
                     {{"max_size", "1G", "bytes kept; the group used longest ago leaves first"},
                      {"queue_limit", "1024", "operations in flight before submit refuses"}},
                     create_memory);
}

}  // namespace larder
